"""What makes two records equal: their key, an id, or both; and the name of the row that remembers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

from sqe_chain.errors import PoisonError
from sqe_chain.stages.record import Record

Identity = Callable[[Record], bytes | str | None]
"""The id of a record; None: it has none, and equals no other."""

SHORT: Final = b"e"
LONG: Final = b"f"
_LONGEST_SHORT: Final = 128
"""Longest id, in bytes, that is part of the row's name as it is; of a longer one it is the SHA-256."""


def by_key(record: Record) -> bytes | None:
    """The same key: `deduplicate_by_key`."""
    return record.key


def by_key_and(identity: Identity) -> Identity:
    r"""The same key and the same id: `deduplicate_by_key_value`. None where either is.

    Args:
        identity: gives the id.

    >>> same = by_key_and(lambda record: record.value)
    >>> same(Record(key=b"robot", value="7")), same(Record(key=b"robot")), same(Record(value="7"))
    (b'\x00\x00\x00\x05robot7', None, None)
    """

    def both(record: Record) -> bytes | None:
        id_of_record = None if record.key is None else identity(record)
        if id_of_record is None or record.key is None:
            return None
        return len(record.key).to_bytes(4, "big") + record.key + _bytes(id_of_record)

    return both


def row_of(identity: Identity, record: Record) -> bytes | None:
    """Name of the row that remembers the record's id: at most 129 bytes; None if it has no id.

    Raises:
        PoisonError: the id is neither bytes nor str.
        Exception: whatever `identity` raises.
    """
    id_of_record = identity(record)
    return None if id_of_record is None else row_named(_bytes(id_of_record))


def row_named(name: bytes) -> bytes:
    """Name of the row that remembers an id."""
    return SHORT + name if len(name) <= _LONGEST_SHORT else LONG + sha256(name).digest()


def rows_by_key_and(keys: Sequence[bytes | None], ids: Sequence[object]) -> list[bytes | None]:
    r"""The rows of records by `by_key_and`, side by side.

    Args:
        keys: their keys.
        ids: what gives an id has given for each.

    Raises:
        PoisonError: an id is neither bytes nor str.

    >>> rows_by_key_and([b"robot", b"robot", None], ["7", None, "7"])
    [b'e\x00\x00\x00\x05robot7', None, None]
    """
    begins = {key: len(key).to_bytes(4, "big") + key for key in set(keys) if key is not None}
    return [
        None if id_of_record is None or key is None else row_named(begins[key] + _bytes(id_of_record))
        for key, id_of_record in zip(keys, ids, strict=True)
    ]


def rows_of(row_of_record: Callable[[Record], bytes | None], records: Iterable[Record]) -> list[bytes]:
    """The rows of records, each once. A record for which the user's function fails has none: `accept` will raise."""
    rows: dict[bytes, None] = {}
    for record in records:
        with suppress(Exception):
            row = row_of_record(record)
            if row is not None:
                rows[row] = None
    return list(rows)


def _bytes(id_of_record: object) -> bytes:
    if isinstance(id_of_record, bytes):
        return id_of_record
    if isinstance(id_of_record, str):
        try:
            return id_of_record.encode()
        except UnicodeEncodeError as error:
            raise PoisonError(f"the id is a str that cannot be encoded as UTF-8: {error}") from error
    raise PoisonError(
        f"the id must be bytes or str, or None where there is none, not {type(id_of_record).__name__}"
    )
