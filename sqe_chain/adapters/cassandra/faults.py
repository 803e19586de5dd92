"""Maps every exception of cassandra-driver to an error of sqe-chain; nothing else decides about them.

A test fails when the driver gains an exception class that `MEANINGS` does not name.
"""

from __future__ import annotations

import ssl
from typing import Final

import cassandra
from cassandra import cluster, connection, protocol

from sqe_chain.adapters.store_rules import CERTIFICATE, Meaning, error_of, meaning_in
from sqe_chain.errors import ChainError, ConfigurationError

MEANINGS: Final[dict[type[BaseException], Meaning]] = {kind: meaning for meaning, kinds in (
    (Meaning.TRY_AGAIN, (
        cassandra.DriverException, cassandra.RequestExecutionException, cassandra.Unavailable, cassandra.Timeout,
        cassandra.ReadTimeout, cassandra.WriteTimeout, cassandra.CDCWriteFailure, cassandra.CoordinationFailure,
        cassandra.ReadFailure, cassandra.WriteFailure, cassandra.AlreadyExists, cassandra.OperationTimedOut,
        cassandra.UnresolvableContactPoints, connection.ConnectionException, connection.ConnectionShutdown,
        connection.ConnectionBusy, connection.ProtocolError, connection.CrcMismatchException, protocol.ErrorMessage,
        protocol.ErrorMessageSub, protocol.RequestExecutionException, protocol.ServerError,
        protocol.UnavailableErrorMessage, protocol.OverloadedErrorMessage, protocol.IsBootstrappingErrorMessage,
        protocol.TruncateError, protocol.WriteTimeoutErrorMessage, protocol.ReadTimeoutErrorMessage,
        protocol.ReadFailureMessage, protocol.WriteFailureMessage, protocol.CDCWriteException,
        protocol.AlreadyExistsException, protocol.PreparedQueryNotFound, protocol.ClientWriteError,
    )),
    (Meaning.PROGRAM, (
        cassandra.FunctionFailure, cassandra.UnsupportedOperation, cassandra.DependencyException,
        cluster.QueryExhausted, cluster.UserTypeDoesNotExist, protocol.ProtocolException,
        protocol.FunctionFailureMessage, protocol.SyntaxException, protocol.NotSupportedError,
        protocol.InternalError,
    )),
    (Meaning.SETTINGS, (
        cassandra.RequestValidationException, cassandra.ConfigurationException, cassandra.InvalidRequest,
        cassandra.Unauthorized, cassandra.AuthenticationFailed, connection.ProtocolVersionUnsupported,
        protocol.RequestValidationException, protocol.BadCredentials, protocol.UnauthorizedErrorMessage,
        protocol.InvalidRequestException, protocol.ConfigurationException,
    )),
    (Meaning.SEVERAL, (
        cluster.NoHostAvailable,
    )),
) for kind in kinds}  # fmt: skip
"""Exception class of cassandra-driver -> what it means. A class that is missing counts as its parent."""

RAISED: Final = (
    cassandra.DriverException, cluster.NoHostAvailable, connection.ConnectionException, protocol.ErrorMessage,
    OSError,
)  # fmt: skip
"""What the driver raises when servers, networks or settings are to blame."""

_TOO_LARGE: Final = ("too large", "exceeds allowed maximum")
_ALTERED: Final = ("does not exist", "Undefined column name")
"""Parts of the server's text where a keyspace, a table or a column is not there."""


def meaning_of(error: BaseException) -> Meaning:
    """The meaning of an exception: by its class and its parents; of one that wraps several, by those."""
    if isinstance(error, cluster.NoHostAvailable):
        causes = error.errors.values() if isinstance(error.errors, dict) else error.errors
        meanings = {meaning_of(cause) for cause in causes if isinstance(cause, BaseException)}
        return Meaning.SETTINGS if Meaning.SETTINGS in meanings else Meaning.TRY_AGAIN
    if isinstance(error, ssl.SSLError) or CERTIFICATE in str(error):
        return Meaning.SETTINGS
    if isinstance(error, OSError):
        return Meaning.TRY_AGAIN
    return meaning_in(MEANINGS, error)


def error_for(error: BaseException, address: str) -> ChainError | None:
    """Our error for an exception of cassandra-driver; None for programming errors, which must crash."""
    text = f"{address}: {type(error).__name__}: {error}"
    if any(words in str(error) for words in _TOO_LARGE):
        return ConfigurationError(
            f"{text}; a single write (a state, a plan) must fit into a message and a mutation of the "
            "server: raise its native_transport_max_message_size and max_mutation_size, or keep less in one state"
        )
    meaning = meaning_of(error)
    if meaning is not Meaning.TRY_AGAIN and any(words in str(error) for words in _ALTERED):
        text = f"{text}; somebody has dropped or altered it: restore it from a snapshot; if it was never there, run sqe-chain store init"
    return error_of(meaning, text)
