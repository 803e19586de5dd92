"""Maps every exception of cassandra-driver to an error of sqe-chain; nothing else decides about them.

A test fails when the driver gains an exception class that `MEANINGS` does not name.
"""

from __future__ import annotations

import ssl
from enum import Enum
from typing import Final

import cassandra
from cassandra import cluster, connection, protocol

from sqe_chain.errors import ChainError, ConfigurationError, Unavailable


class Meaning(Enum):
    """What to do about an exception."""

    TRY_AGAIN = "the servers or the network: it may pass; whether a write was done is unknown"
    SETTINGS = "address, login, rights, tables, limits: somebody has to change something"
    SEVERAL = "one error for each node that was asked: the worst of them decides"
    PROGRAM = "misuse of the driver, or a part of it that is not used here: crash"


MEANINGS: Final[dict[type[BaseException], Meaning]] = {
    cassandra.DriverException: Meaning.TRY_AGAIN,
    cassandra.RequestExecutionException: Meaning.TRY_AGAIN,
    cassandra.Unavailable: Meaning.TRY_AGAIN,
    cassandra.Timeout: Meaning.TRY_AGAIN,
    cassandra.ReadTimeout: Meaning.TRY_AGAIN,
    cassandra.WriteTimeout: Meaning.TRY_AGAIN,
    cassandra.CDCWriteFailure: Meaning.TRY_AGAIN,
    cassandra.CoordinationFailure: Meaning.TRY_AGAIN,
    cassandra.ReadFailure: Meaning.TRY_AGAIN,
    cassandra.WriteFailure: Meaning.TRY_AGAIN,
    cassandra.FunctionFailure: Meaning.PROGRAM,
    cassandra.RequestValidationException: Meaning.SETTINGS,
    cassandra.ConfigurationException: Meaning.SETTINGS,
    cassandra.AlreadyExists: Meaning.TRY_AGAIN,
    cassandra.InvalidRequest: Meaning.SETTINGS,
    cassandra.Unauthorized: Meaning.SETTINGS,
    cassandra.AuthenticationFailed: Meaning.SETTINGS,
    cassandra.OperationTimedOut: Meaning.TRY_AGAIN,
    cassandra.UnsupportedOperation: Meaning.PROGRAM,
    cassandra.UnresolvableContactPoints: Meaning.TRY_AGAIN,
    cassandra.DependencyException: Meaning.PROGRAM,
    cluster.NoHostAvailable: Meaning.SEVERAL,
    cluster.QueryExhausted: Meaning.PROGRAM,
    cluster.UserTypeDoesNotExist: Meaning.PROGRAM,
    connection.ConnectionException: Meaning.TRY_AGAIN,
    connection.ConnectionShutdown: Meaning.TRY_AGAIN,
    connection.ConnectionBusy: Meaning.TRY_AGAIN,
    connection.ProtocolError: Meaning.TRY_AGAIN,
    connection.CrcMismatchException: Meaning.TRY_AGAIN,
    connection.ProtocolVersionUnsupported: Meaning.SETTINGS,
    protocol.ErrorMessage: Meaning.TRY_AGAIN,
    protocol.ErrorMessageSub: Meaning.TRY_AGAIN,
    protocol.RequestExecutionException: Meaning.TRY_AGAIN,
    protocol.RequestValidationException: Meaning.SETTINGS,
    protocol.ServerError: Meaning.TRY_AGAIN,
    protocol.ProtocolException: Meaning.PROGRAM,
    protocol.BadCredentials: Meaning.SETTINGS,
    protocol.UnavailableErrorMessage: Meaning.TRY_AGAIN,
    protocol.OverloadedErrorMessage: Meaning.TRY_AGAIN,
    protocol.IsBootstrappingErrorMessage: Meaning.TRY_AGAIN,
    protocol.TruncateError: Meaning.TRY_AGAIN,
    protocol.WriteTimeoutErrorMessage: Meaning.TRY_AGAIN,
    protocol.ReadTimeoutErrorMessage: Meaning.TRY_AGAIN,
    protocol.ReadFailureMessage: Meaning.TRY_AGAIN,
    protocol.WriteFailureMessage: Meaning.TRY_AGAIN,
    protocol.CDCWriteException: Meaning.TRY_AGAIN,
    protocol.FunctionFailureMessage: Meaning.PROGRAM,
    protocol.SyntaxException: Meaning.PROGRAM,
    protocol.UnauthorizedErrorMessage: Meaning.SETTINGS,
    protocol.InvalidRequestException: Meaning.SETTINGS,
    protocol.ConfigurationException: Meaning.SETTINGS,
    protocol.AlreadyExistsException: Meaning.TRY_AGAIN,
    protocol.PreparedQueryNotFound: Meaning.TRY_AGAIN,
    protocol.ClientWriteError: Meaning.TRY_AGAIN,
    protocol.NotSupportedError: Meaning.PROGRAM,
    protocol.InternalError: Meaning.PROGRAM,
}
"""Exception class of cassandra-driver -> what it means. A class that is missing counts as its parent."""

RAISED: Final = (
    cassandra.DriverException, cluster.NoHostAvailable, connection.ConnectionException, protocol.ErrorMessage,
    OSError,
)  # fmt: skip
"""What the driver raises when servers, networks or settings are to blame."""

_TOO_LARGE: Final = ("too large", "exceeds allowed maximum")
_CERTIFICATE: Final = "CERTIFICATE_VERIFY_FAILED"

_ALTERED: Final = ("does not exist", "Undefined column name")
"""How the server says that a keyspace, a table or a column is not there."""


def meaning_of(error: BaseException) -> Meaning:
    """The meaning of an exception: by its class and its parents; of one that wraps several, by those."""
    if isinstance(error, cluster.NoHostAvailable):
        causes = error.errors.values() if isinstance(error.errors, dict) else error.errors
        found = {meaning_of(cause) for cause in causes if isinstance(cause, BaseException)}
        return Meaning.SETTINGS if Meaning.SETTINGS in found else Meaning.TRY_AGAIN
    if isinstance(error, ssl.SSLError) or _CERTIFICATE in str(error):
        return Meaning.SETTINGS
    if isinstance(error, OSError):
        return Meaning.TRY_AGAIN
    return next((MEANINGS[kind] for kind in type(error).__mro__ if kind in MEANINGS), Meaning.PROGRAM)


def mapped(error: BaseException, address: str) -> ChainError | None:
    """Our error for an exception of cassandra-driver.

    Args:
        error: the exception.
        address: the cluster, without secrets.

    Returns:
        The error to raise; None for programming errors, which must crash.
    """
    text = f"{address}: {type(error).__name__}: {error}"
    if any(words in str(error) for words in _TOO_LARGE):
        return ConfigurationError(
            f"{text}; a single write (a state, a plan) must fit into a message and a mutation of the "
            "server: raise its native_transport_max_message_size and max_mutation_size, or keep less in one state"
        )
    meaning = meaning_of(error)
    if meaning is Meaning.TRY_AGAIN:
        return Unavailable(text)
    if any(words in str(error) for words in _ALTERED):
        text = f"{text}; somebody has dropped or altered it: restore it from a snapshot; if it was never there, run sqe-chain store init"
    if meaning is Meaning.SETTINGS:
        return ConfigurationError(text)
    return None
