"""Goal: change events are read, and what is none, or proves nothing, is refused by name. Method: events, and parts that are replaced."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from sqe_chain.codecs import codec_for
from sqe_chain.codecs.change import change_of
from sqe_chain.codecs.debezium import ChangeEvent, EventDecoder
from sqe_chain.codecs.registry import codec_of_tag, tag_of
from sqe_chain.errors import PoisonError

DECODER = EventDecoder(("id",))
MYSQL = {
    "connector": "mysql",
    "ts_ms": 5,
    "snapshot": "false",
    "file": "mysql-bin.000012",
    "pos": 400,
    "row": 3,
}
POSTGRES = {
    "connector": "postgresql", "ts_ms": 5, "snapshot": "false", "sequence": '["70","90"]', "lsn": 90, "extra": 1
}  # fmt: skip


def event(source: dict[str, Any] | None = None, **body: Any) -> bytes:
    known = {"before": None, "after": {"id": 1}, "op": "c", "source": POSTGRES | (source or {})}
    return json.dumps(known | body).encode()


@pytest.mark.parametrize(
    ("source", "op", "position"),
    [
        (POSTGRES, "u", (70, 90)),
        (POSTGRES | {"sequence": '[null,"90"]'}, "c", (0, 90)),
        (POSTGRES | {"sequence": '[null,"90"]', "snapshot": "first"}, "r", (90,)),
        (POSTGRES | {"sequence": '["90","90"]', "lsn": None, "snapshot": "incremental"}, "r", (90, 90)),
        (MYSQL, "u", (12, 400, 3)),
        (MYSQL | {"snapshot": "last"}, "r", (12, 400)),
        (MYSQL | {"connector": "mariadb", "row": None}, "c", (12, 400, 0)),
    ],
)
@pytest.mark.parametrize("schema", [False, True])
def test_the_position_is_that_of_the_connector(
    source: Any, op: str, position: tuple[int, ...], *, schema: bool
) -> None:
    value, key = json.loads(event(op=op, source=source)), {"id": 1}
    parts = [{"schema": {}, "payload": part} if schema else part for part in (value, key)]
    read = DECODER.decode(*(json.dumps(part).encode() for part in parts))
    assert (read.position, read.key, json.loads(read.after or ""), read.time_ms) == (
        position,
        "1",
        {"id": 1},
        5,
    )


@pytest.mark.parametrize(
    ("columns", "key", "text"),
    [
        (("id",), {"id": "a"}, "a"),
        (("id",), {"id": 7}, "7"),
        (("id",), {"id": [1]}, "[1]"),
        (("id", "at"), {"at": 2, "id": "a"}, '["a",2]'),
    ],
)
def test_the_key_is_that_of_the_record(columns: tuple[str, ...], key: Any, text: str) -> None:
    assert EventDecoder(columns).decode(event(), json.dumps(key).encode()).key == text


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"\0\0\0\0\1", "framed for a schema registry"),
        (b'{"ts_ms": 5}', "it has no `op` and `source`"),
        (b'{"id": 1, "customer": "ann"}', "ExtractNewRecordState"),
        (event(op="m"), "no change of a row: op='m'"),
        (event(op="t", after=None), "the table was truncated"),
        (event(op="u", after=None), "no row after it"),
        (
            event(source=MYSQL | {"snapshot": "incremental"}, op="r"),
            "incremental snapshot of connector 'mysql'",
        ),
        (event({"connector": "oracle"}), "connector 'oracle'"),
        (event({"sequence": None}), "no position in `source`"),
        (event({"sequence": '["7"]'}), "no position in `source`"),
        (event(source=MYSQL | {"file": "log"}), "no position in `source`"),
    ],
)
def test_what_is_no_change_is_refused_by_name(value: bytes, error: str) -> None:
    with pytest.raises(PoisonError, match=error):
        DECODER.decode(value, b'{"id": 1}')


@pytest.mark.parametrize(
    ("key", "error"), [(None, "has no primary key"), (b'{"no": 1}', r"has the columns no. Expected id")]
)
def test_a_key_that_is_not_the_tables_is_refused_by_name(key: bytes | None, error: str) -> None:
    with pytest.raises(PoisonError, match=error):
        DECODER.decode(event(), key)


def test_a_deletion_has_no_row_whatever_the_event_has() -> None:
    read = DECODER.decode(event(op="d", before={"id": 1, "n": 0}), b'{"id": 1}')
    assert read == ChangeEvent("delete", "1", None, (70, 90), 5)


def test_changes_are_found_again_by_their_tag_and_survive_pickling() -> None:
    codec = codec_for(change_of(dict))
    assert codec_of_tag(tag_of(codec)).python_type is change_of(dict)
    change = change_of(dict)("update", {"n": 1}, None, (1, 2), 3)
    assert codec.decode(codec.encode(change)) == change
    again = pickle.loads(pickle.dumps(change))  # noqa: S301 - our own
    assert again == change
    assert type(again) is change_of(dict)
