r"""Reads change events of Debezium: JSON with or without a schema, and Avro by a schema registry.

    >>> source = '{"connector":"postgresql","snapshot":"false","ts_ms":5,"sequence":"[\\"70\\",\\"90\\"]","lsn":90}'
    >>> read = EventDecoder(("id",))
    >>> read.decode(b'{"op":"u","before":null,"after":{"id":1,"n":2},"source":%s}' % source.encode(), b'{"id":1}')
    ChangeEvent(op='update', key='1', after='{"id":1,"n":2}', position=(70, 90), time_ms=5)

docs/database-changes.md describes `position`, and why it may be compared. An event that is none, or whose position proves
nothing, is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, Self, cast

import msgspec

from sqe_chain.codecs.change import Op
from sqe_chain.codecs.codec import Codec, Place
from sqe_chain.codecs.json_codec import Json
from sqe_chain.errors import PoisonError

_OPS: Final[dict[str, Op]] = {"r": "read", "c": "insert", "u": "update", "d": "delete"}
_FILE_NUMBER: Final = re.compile(r"\.(\d+)$")
_UNWRAPPED: Final = (
    "Expected the events of a table as Debezium writes them, with `op` and `source`. Remove the transform ExtractNewRecordState from "
    "the connector, and name a table's topic: not one of heartbeats, transactions or schema changes"
)

_INCREMENTAL: Final = "incremental"

_UNAVAILABLE: Final = frozenset(("__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="))
"""What is written for a large column that an update has not changed; the second for bytes."""


class _WithKey(Protocol):
    @property
    def key(self) -> bytes | None: ...


class _Source(msgspec.Struct):
    """Where a change comes from; each connector fills in its own fields."""

    connector: str
    ts_ms: int = 0
    snapshot: str | bool | None = None
    sequence: str | None = None
    lsn: int | None = None
    file: str | None = None
    pos: int | None = None
    row: int | None = None


class _Body(msgspec.Struct):
    op: str | None = None
    source: _Source | None = None
    after: msgspec.Raw = msgspec.Raw(b"null")


class _Message(_Body):
    """An event, or a schema and the event as its payload."""

    payload: _Body | None = None


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """A change event, as far as it does not depend on the type of the rows.

    Attributes:
        op: what was done.
        key: the columns of the record's key, as text.
        after: the row after it, as JSON; None: deleted.
        position: as of `Change`.
        time_ms: as of `Change`.
    """

    op: Op
    key: str
    after: str | None
    position: tuple[int, ...]
    time_ms: int


_JSON: Final = Json(dict)
_read_message: Final = msgspec.json.Decoder(_Message).decode
_read_key: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True)
class EventDecoder:
    """The decoder of a source of change events; called with a record's value and context.

    Args:
        columns: the columns that the keys of records must have.
    """

    columns: tuple[str, ...]

    def __call__(self, data: bytes, context: _WithKey) -> ChangeEvent:
        return self.decode(data, context.key)

    def decode(self, data: bytes, key: bytes | None) -> ChangeEvent:
        """The event in a record.

        Args:
            data: the record's value.
            key: its key.

        Raises:
            PoisonError: it is no change event of a known connector, of one row with this key.
            msgspec.DecodeError: it is not JSON, or a field has another type.
        """
        if data[:1] == b"\0":
            raise PoisonError(
                "the change event is framed for a schema registry (it begins with a zero byte). Expected JSON. "
                "Give changes_of codec=Avro(dict)"
            )
        message = _read_message(data)
        body = message if message.payload is None else message.payload
        source = body.source
        if body.op is None or source is None:
            raise PoisonError(f"the record is no change event: it has no `op` and `source`. {_UNWRAPPED}")
        op = _OPS.get(body.op)
        if op is None:
            raise _refused_op(body.op)
        after = None if op == "delete" else bytes(body.after).decode()
        if op != "delete" and after == "null":
            raise PoisonError(f"the change event (op={body.op!r}) has no row after it. {_UNWRAPPED}")
        return ChangeEvent(op, self._key(key), after, _position(source, op), source.ts_ms)

    def _key(self, key: bytes | None) -> str:
        wanted = ", ".join(self.columns)
        if key is None:
            raise PoisonError(
                f"the record of a change has no key: the table has no primary key. Expected {wanted}. Give the table a primary key, or "
                "name unique columns in message.key.columns of the connector"
            )
        columns = _read_key(key)
        if columns.keys() == {"schema", "payload"}:
            columns = columns["payload"]
        if columns.keys() != set(self.columns):
            raise PoisonError(
                f"the record's key has the columns {', '.join(columns)}. Expected {wanted}, as key= of changes_of names them. Name those "
                "of the record's key, which are the table's primary key"
            )
        if len(self.columns) > 1:
            return msgspec.json.encode([columns[name] for name in self.columns]).decode()
        (only,) = columns.values()
        return only if isinstance(only, str) else msgspec.json.encode(only).decode()


class EventCodec(Codec[ChangeEvent]):
    """The codec of a source of change events that are not JSON, such as Avro by a schema registry.

    They become the JSON that Debezium writes otherwise, and are read as that: bytes as base 64, decimals and times as text.

    Args:
        payloads: what reads values and keys as dicts.
        columns: the columns that the keys of records must have.
    """

    name: ClassVar[str] = "debezium"
    deterministic: ClassVar[bool] = False
    self_describing: ClassVar[bool] = True
    wants_key: ClassVar[bool] = True

    def __init__(self, payloads: Codec[dict[str, Any]], columns: tuple[str, ...]) -> None:
        super().__init__(ChangeEvent)
        self._payloads, self._read = payloads, EventDecoder(columns)
        vars(self).update(wants_registry=payloads.wants_registry)

    def at(self, place: Place) -> Self:
        return type(self)(self._payloads.at(place), self._read.columns)

    def prepare(self, notes: Mapping[str, str]) -> Mapping[str, str]:
        return self._payloads.prepare(notes)

    def encode(self, value: ChangeEvent) -> bytes:
        raise TypeError(f"{value}. Expected nothing: only Debezium writes change events")

    def decode(self, data: bytes) -> ChangeEvent:
        return self.decode_keyed(data, None)

    def decode_keyed(self, data: bytes, key: bytes | None) -> ChangeEvent:
        """The event in a record; raises as `EventDecoder.decode` does.

        Raises:
            ValueError: it is not what its schema describes, or has a number that JSON does not have.
            UnknownSchema: the registry does not have its schema.
            Unavailable: the registry does not answer.
        """
        record = self._payloads.decode(data)
        # What is not looked at is not copied: the row before, and Debezium's own times.
        wanted = {name: record[name] for name in ("op", "source", "after") if name in record}
        own_key = None if key is None else _JSON.encode(self._payloads.decode(key))
        return self._read.decode(_JSON.encode(wanted), own_key)


def key_of(event: ChangeEvent) -> str:
    """The key of an event."""
    return event.key


def time_of(event: ChangeEvent) -> int:
    """The event time of an event: that of its commit."""
    return event.time_ms


def _refused_op(op: str) -> PoisonError:
    if op == "t":
        return PoisonError(
            "the table was truncated (op='t'): the event does not name the rows that are gone. Expected DELETE. Delete the rows "
            "instead; or stop, and fold a new topic from a new snapshot"
        )
    return PoisonError(f"the record is no change of a row: op={op!r}. {_UNWRAPPED}")


def _position(source: _Source, op: Op) -> tuple[int, ...]:
    """The place of a change in the database's log.

    Raises:
        PoisonError: the connector is not known, or has not written it.
    """
    if source.connector == "postgresql":
        position = _postgres(source, op)
    elif source.snapshot == _INCREMENTAL:
        raise PoisonError(
            f"the row was read by an incremental snapshot of connector {source.connector!r}, whose position proves nothing. Expected an "
            "initial snapshot. Give the connector a topic.prefix of its own to read a table again"
        )
    elif source.connector in {"mysql", "mariadb"}:
        position = _mysql(source, op)
    else:
        raise PoisonError(
            f"the change comes from the connector {source.connector!r}, whose positions are not known here. Expected postgresql, mysql "
            "or mariadb. Write the rows to another topic, and filter with drop_stale or deduplicate"
        )
    if position is None:
        raise PoisonError(
            f"the change event of connector {source.connector!r} has no position in `source`. Expected sequence (PostgreSQL), or file, "
            "pos and row (MySQL). Run Debezium 1.7 or later, and remove transforms that change `source`"
        )
    return position


def _postgres(source: _Source, op: Op) -> tuple[int, ...] | None:
    # Rows of an incremental snapshot have the position at which the connector has closed their window: between two changes.
    if op == "read" and source.snapshot != _INCREMENTAL:
        return None if source.lsn is None else (source.lsn,)
    # Not `lsn` alone: transactions are emitted in the order of their commits, and their changes lie mixed in the log.
    numbers = cast("list[str | None]", msgspec.json.decode(source.sequence or "[]"))
    if len(numbers) != 2 or numbers[1] is None:  # noqa: PLR2004 - the commit before, and its own
        return None
    return int(numbers[0] or 0), int(numbers[1])


def _mysql(source: _Source, op: Op) -> tuple[int, ...] | None:
    number = _FILE_NUMBER.search(source.file or "")
    if number is None or source.pos is None:
        return None
    place = int(number[1]), source.pos
    return place if op == "read" else (*place, source.row or 0)


def may_lack(row: bytes) -> bool:
    """Whether columns of a row, as JSON, may be missing: large ones (TOAST) that an update has not changed."""
    return any(placeholder.encode() in row for placeholder in _UNAVAILABLE)


def fill_row(row: bytes, known: bytes | None) -> bytes:
    """A row as JSON, with the known values of the columns that it lacks.

    Args:
        row: the row.
        known: the same row before, as JSON; None: nothing is known.
    """
    values = {} if known is None else msgspec.json.decode(known)
    columns = msgspec.json.decode(row).items()
    return msgspec.json.encode(
        {name: values.get(name, value) if _is_lacking(value) else value for name, value in columns}
    )


def lacking_columns(row: bytes) -> list[str]:
    """The columns that a row, as JSON, lacks."""
    return [name for name, value in msgspec.json.decode(row).items() if _is_lacking(value)]


def _is_lacking(value: object) -> bool:
    if isinstance(value, list) and len(value) == 1:  # of an array
        return _is_lacking(value[0])
    return isinstance(value, str) and value in _UNAVAILABLE
