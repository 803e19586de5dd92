"""Maps every exception of redis-py to an error of sqe-chain; nothing else decides about them.

A test fails when redis-py gains an exception class that `MEANINGS` does not name.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from redis import exceptions

from sqe_chain.errors import ChainError, ConfigurationError, Unavailable


class Meaning(Enum):
    """What to do about an exception."""

    TRY_AGAIN = "the server or the network: it may pass; sending again is safe"
    SETTINGS = "address, login, rights, kind of server: somebody has to change something"
    REPLY = "an error that the server itself sent: its first word decides"
    PROGRAM = "misuse of the driver, or a part of it that is not used here: crash"


MEANINGS: Final[dict[type[BaseException], Meaning]] = {
    exceptions.RedisError: Meaning.TRY_AGAIN,
    exceptions.ConnectionError: Meaning.TRY_AGAIN,
    exceptions.TimeoutError: Meaning.TRY_AGAIN,
    exceptions.BusyLoadingError: Meaning.TRY_AGAIN,
    exceptions.MaxConnectionsError: Meaning.TRY_AGAIN,
    exceptions.InvalidResponse: Meaning.TRY_AGAIN,
    exceptions.OutOfMemoryError: Meaning.TRY_AGAIN,
    exceptions.ReadOnlyError: Meaning.TRY_AGAIN,
    exceptions.ExecAbortError: Meaning.TRY_AGAIN,
    exceptions.TryAgainError: Meaning.TRY_AGAIN,
    exceptions.ClusterDownError: Meaning.TRY_AGAIN,
    exceptions.MasterDownError: Meaning.TRY_AGAIN,
    exceptions.ClusterError: Meaning.TRY_AGAIN,
    exceptions.SlotNotCoveredError: Meaning.TRY_AGAIN,
    exceptions.NoScriptError: Meaning.TRY_AGAIN,
    exceptions.AuthenticationError: Meaning.SETTINGS,
    exceptions.AuthenticationWrongNumberOfArgsError: Meaning.SETTINGS,
    exceptions.AuthorizationError: Meaning.SETTINGS,
    exceptions.ExternalAuthProviderError: Meaning.SETTINGS,
    exceptions.NoPermissionError: Meaning.SETTINGS,
    exceptions.ModuleError: Meaning.SETTINGS,
    exceptions.AskError: Meaning.SETTINGS,
    exceptions.MovedError: Meaning.SETTINGS,
    exceptions.ClusterCrossSlotError: Meaning.SETTINGS,
    exceptions.RedisClusterException: Meaning.SETTINGS,
    exceptions.ResponseError: Meaning.REPLY,
    exceptions.DataError: Meaning.PROGRAM,
    exceptions.PubSubError: Meaning.PROGRAM,
    exceptions.WatchError: Meaning.PROGRAM,
    exceptions.LockError: Meaning.PROGRAM,
    exceptions.LockNotOwnedError: Meaning.PROGRAM,
    exceptions.ChildDeadlockedError: Meaning.PROGRAM,
    exceptions.CrossSlotTransactionError: Meaning.PROGRAM,
    exceptions.InvalidPipelineStack: Meaning.PROGRAM,
    exceptions.NoSuchFieldsetError: Meaning.PROGRAM,
    exceptions.IncorrectPolicyType: Meaning.PROGRAM,
}
"""Exception class of redis-py -> what it means. A class that is missing counts as its parent."""

_SETTINGS_REPLIES: Final = (
    "WRONGTYPE",
    "NOPERM",
    "NOAUTH",
    "WRONGPASS",
    "CROSSSLOT",
    "MOVED",
    "ASK",
    "NOPROTO",
    "ERR unknown command",
    "ERR DB index",
    "ERR invalid DB index",
    "ERR AUTH",
    "ERR Client sent AUTH",
    "ERR This instance has cluster support disabled",
    "This instance has cluster support disabled",
    "WAITAOF cannot be used",
    "unknown command",
    "The user executing the script can't run this command",
    "DB index is out of range",
)
"""Beginnings of replies that waiting does not fix. All others (MISCONF, BUSY, NOREPLICAS, …) may pass."""

_CERTIFICATE: Final = "CERTIFICATE_VERIFY_FAILED"


def meaning_of(error: BaseException) -> Meaning:
    """The meaning of an exception, by its class, its parents, and for a reply its text."""
    found = next((MEANINGS[kind] for kind in type(error).__mro__ if kind in MEANINGS), Meaning.PROGRAM)
    if found is Meaning.REPLY:
        return Meaning.SETTINGS if str(error).startswith(_SETTINGS_REPLIES) else Meaning.TRY_AGAIN
    if found is Meaning.TRY_AGAIN and _CERTIFICATE in str(error):
        return Meaning.SETTINGS
    return found


def mapped(error: BaseException, address: str) -> ChainError | None:
    """Our error for an exception of redis-py.

    Args:
        error: the exception.
        address: the server, without secrets.

    Returns:
        The error to raise; None for programming errors, which must crash.
    """
    text = f"{address}: {type(error).__name__}: {error}"
    meaning = meaning_of(error)
    if meaning is Meaning.TRY_AGAIN:
        return Unavailable(text)
    if meaning is Meaning.SETTINGS:
        if isinstance(error, exceptions.AskError):
            text += "; this is a node of a Redis Cluster: write redis+cluster:// (with TLS rediss+cluster://)"
        return ConfigurationError(text)
    return None
