"""Maps every exception of psycopg to an error of sqe-chain; nothing else decides about them.

A server's error has a code of five characters (SQLSTATE), whose first two are its class. An error while connecting has
none, because libpq does not pass it on: then the server's text decides.
"""

from __future__ import annotations

from typing import Final

import psycopg

from sqe_chain.adapters.store_rules import CERTIFICATE, Meaning, error_of, meaning_in
from sqe_chain.errors import RESTORE_OR_REBUILD, ChainError, ConfigurationError, StoreInconsistent

MEANINGS: Final[dict[type[BaseException], Meaning]] = {
    psycopg.Warning: Meaning.PROGRAM,
    psycopg.Rollback: Meaning.PROGRAM,
    psycopg.Error: Meaning.REPLY,
    psycopg.InterfaceError: Meaning.PROGRAM,
    psycopg.DatabaseError: Meaning.REPLY,
    psycopg.DataError: Meaning.REPLY,
    psycopg.OperationalError: Meaning.REPLY,
    psycopg.IntegrityError: Meaning.REPLY,
    psycopg.InternalError: Meaning.REPLY,
    psycopg.ProgrammingError: Meaning.REPLY,
    psycopg.NotSupportedError: Meaning.REPLY,
}
"""Exception class of psycopg -> what it means; REPLY: its SQLSTATE decides. Those of single codes count as their parents."""

CODES: Final = {code: meaning for meaning, codes in (
    (Meaning.TRY_AGAIN, (
        "08",     # connection
        "25006",  # read-only: a replica, or a server that somebody has set to it
        "40",     # rolled back: deadlock, serialization
        "53",     # too few resources: disk, memory, connections
        "55",     # locked, or not in the right state
        "57",     # operator: it shuts down, starts, or has cancelled the statement
        "58",     # operating system: input or output
    )),
    (Meaning.SETTINGS, (
        "0A",     # not supported: an older server
        "28",     # login
        "3D", "3F",  # no such database, or schema
        "42501",  # rights
        "42P01", "42703", "42P10",  # no such table, column, or index
        "42883",  # no such function
        "54",     # limits of the program
        "22021", "22P05",  # a character that the database's encoding does not have
        "XX000",  # internal error
    )),
) for code in codes}  # fmt: skip
"""SQLSTATE, or its class -> what it means. One that is missing is a programming error."""

_DAMAGED: Final = ("XX001", "XX002")
_CONSTRAINT: Final = "23"
_RAISED: Final = "P0001"  # by a function, such as that of a trigger
_ALTERED: Final = ("3F000", "42P01", "42703", "42P10")

_REFUSED: Final = (
    "password", "authentication", "pg_hba.conf", "does not exist", "is not permitted to log in", "permission denied",
    "certificate", "SSL was required", "does not support SSL", "sslrootcert", "no encryption", CERTIFICATE,
)  # fmt: skip
"""Parts of the texts of errors while connecting, where trying again does not help."""

_REPLICA: Final = ("session is read-only", "server is in hot standby mode", "25006")


def meaning_of(error: BaseException) -> Meaning:
    """The meaning of an exception: by its SQLSTATE; of one without, by its class and text."""
    meaning = meaning_in(MEANINGS, error)
    if meaning is not Meaning.REPLY or not isinstance(error, psycopg.Error):
        return meaning
    code = error.sqlstate
    if code is not None:
        return CODES.get(code, CODES.get(code[:2], Meaning.PROGRAM))
    if not isinstance(error, psycopg.OperationalError):
        return Meaning.PROGRAM  # psycopg's own: values that cannot be sent
    return Meaning.SETTINGS if any(words in str(error) for words in _REFUSED) else Meaning.TRY_AGAIN


def _is_refused_by_owner(error: BaseException, code: str) -> bool:
    """Whether what a user has added to a table of states (`view_tables`) refuses a row."""
    if not isinstance(error, psycopg.Error):
        return False
    return code == _RAISED or (code[:2] == _CONSTRAINT and (error.diag.table_name or "").endswith("_rows"))


def error_for(error: BaseException, address: str) -> ChainError | None:
    """Our error for an exception of psycopg; None for programming errors, which must crash."""
    code = getattr(error, "sqlstate", None) or ""
    text = f"{address}: {type(error).__name__}: {' '.join(str(error).split())}"
    if code in _DAMAGED:
        return StoreInconsistent(f"{text}; the database is damaged: {RESTORE_OR_REBUILD}")
    if _is_refused_by_owner(error, code):
        return ConfigurationError(
            f"{text}; a constraint, an index or a trigger of your own refuses a row of a table of states. Expected none that refuses "
            "any. Drop it"
        )
    if code in _ALTERED:
        text = f"{text}; somebody has dropped or altered it: restore it from a backup; if it was never there, run sqe-chain store init"
    if any(words in f"{code} {error}" for words in _REPLICA):
        text = f"{text}; the server is a replica, or takes no writes. Expected the primary. Name it, or all servers"
    return error_of(meaning_of(error), text)
