"""Maps every exception of redis-py to an error of sqe-chain; nothing else decides about them.

A test fails when redis-py gains an exception class that `MEANINGS` does not name.
"""

from __future__ import annotations

from typing import Final

from redis import exceptions

from sqe_chain.adapters.driver_errors import CERTIFICATE, Meaning, error_of, meaning_in
from sqe_chain.errors import ChainError

MEANINGS: Final[dict[type[BaseException], Meaning]] = {kind: meaning for meaning, kinds in (
    (Meaning.TRY_AGAIN, (
        exceptions.RedisError, exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError,
        exceptions.MaxConnectionsError, exceptions.InvalidResponse, exceptions.OutOfMemoryError,
        exceptions.ReadOnlyError, exceptions.ExecAbortError, exceptions.TryAgainError, exceptions.ClusterDownError,
        exceptions.MasterDownError, exceptions.ClusterError, exceptions.SlotNotCoveredError,
        exceptions.NoScriptError,
    )),
    (Meaning.SETTINGS, (
        exceptions.AuthenticationError, exceptions.AuthenticationWrongNumberOfArgsError,
        exceptions.AuthorizationError, exceptions.ExternalAuthProviderError, exceptions.NoPermissionError,
        exceptions.ModuleError, exceptions.AskError, exceptions.MovedError, exceptions.ClusterCrossSlotError,
        exceptions.RedisClusterException,
    )),
    (Meaning.REPLY, (
        exceptions.ResponseError,
    )),
    (Meaning.PROGRAM, (
        exceptions.DataError, exceptions.PubSubError, exceptions.WatchError, exceptions.LockError,
        exceptions.LockNotOwnedError, exceptions.ChildDeadlockedError, exceptions.CrossSlotTransactionError,
        exceptions.InvalidPipelineStack, exceptions.NoSuchFieldsetError, exceptions.IncorrectPolicyType,
    )),
) for kind in kinds}  # fmt: skip
"""Exception class of redis-py -> what it means. A class that is missing counts as its parent."""

_SETTINGS_REPLIES: Final = (
    "WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT", "MOVED", "ASK", "NOPROTO", "ERR unknown command",
    "ERR DB index", "ERR invalid DB index", "ERR AUTH", "ERR Client sent AUTH",
    "ERR This instance has cluster support disabled", "This instance has cluster support disabled",
    "WAITAOF cannot be used", "unknown command", "The user executing the script can't run this command",
    "DB index is out of range",
)  # fmt: skip
"""Beginnings of replies that waiting does not fix. All others (MISCONF, BUSY, NOREPLICAS, …) may pass."""


def meaning_of(error: BaseException) -> Meaning:
    """The meaning of an exception, by its class, its parents, and for a reply its text."""
    meaning = meaning_in(MEANINGS, error)
    if meaning is Meaning.REPLY:
        return Meaning.SETTINGS if str(error).startswith(_SETTINGS_REPLIES) else Meaning.TRY_AGAIN
    return Meaning.SETTINGS if meaning is Meaning.TRY_AGAIN and CERTIFICATE in str(error) else meaning


def mapped(error: BaseException, address: str) -> ChainError | None:
    """Our error for an exception of redis-py; None for programming errors, which must crash."""
    text = f"{address}: {type(error).__name__}: {error}"
    if isinstance(error, exceptions.AskError):
        text += "; this is a node of a Redis Cluster: write redis+cluster:// (with TLS rediss+cluster://)"
    return error_of(meaning_of(error), text)
