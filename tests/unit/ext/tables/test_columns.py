"""Goal: columns follow from protobuf, structs and dataclasses, and what cannot be a column is refused by its name."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from google.protobuf.api_pb2 import Api
from google.protobuf.source_context_pb2 import SourceContext
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.type_pb2 import Field
from google.protobuf.wrappers_pb2 import UInt64Value

from sqe_chain.errors import FlowError
from sqe_chain.ext.tables import Column, Memtable, TableSchema
from sqe_chain.ext.tables.columns import columns_of
from tests.support.dynamic_messages import message_type


class Inner(msgspec.Struct):
    at: int


class Outer(msgspec.Struct):
    key: str
    inner: Inner
    mixed: int | str = 0


@dataclasses.dataclass
class Plain:
    key: str
    day: dt.date | None
    many: tuple[float, ...] = ()


def types(payload: type, given: Any = None) -> dict[str, str]:
    return {column.name: column.type for column in columns_of(payload, given)}


def test_of_a_dataclass() -> None:
    assert types(Plain) == {"key": "string", "day": "date", "many": "list<float64>"}


def test_of_protobuf() -> None:
    names = ["kind", "number", "name", "packed"]
    assert types(Field, names) == {"kind": "int32", "number": "int32", "name": "string", "packed": "bool"}
    assert types(UInt64Value) == {"value": "decimal(20,0)"}
    with pytest.raises(FlowError, match=r"'methods' of Api cannot be a column"):
        columns_of(Api)


def test_protobuf_rows() -> None:
    made = message_type(
        {"State": "string key = 1; int64 at = 2; repeated int32 codes = 3; uint64 much = 4; double bar = 5"}
    )
    schema = TableSchema.of(made, partition_key="key", row_key="at")
    memtable = Memtable(schema)
    memtable.ingest(made(key="k", at=7, codes=[1, 2], much=2**64 - 1))
    (row,) = memtable.flush().data.to_pylist()
    assert row == {
        "key": "k",
        "at": 7,
        "codes": [1, 2],
        "much": Decimal(2**64 - 1),
        "bar": None,
        "_sqe_sequence": 0,
    }


def test_a_protobuf_timestamp_is_a_time() -> None:
    column = Column("seconds", "timestamp", of=lambda value: value.ToDatetime(tzinfo=dt.UTC))
    schema = TableSchema.of(Timestamp, partition_key="nanos", row_key="seconds", columns=["nanos", column])
    memtable = Memtable(schema)
    memtable.ingest(Timestamp(seconds=1_700_000_000, nanos=0))
    (row,) = memtable.flush().data.to_pylist()
    assert row["seconds"] == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)


def test_what_cannot_be_a_column_is_refused_by_its_name() -> None:
    for names in (None, ["key", "inner"], ["key", "mixed"], ["key", "nothing"]):
        with pytest.raises(FlowError, match=r"'inner'|'mixed'|'nothing'"):
            columns_of(Outer, names)
    computed = columns_of(Outer, ["key", Column("at", "int64", of=lambda value: value.inner.at)])
    assert [column.type for column in computed] == ["string", "int64"]
    with pytest.raises(FlowError, match="not known"):
        columns_of(int)
    with pytest.raises(FlowError, match="unknown type"):
        columns_of(None)


@pytest.mark.parametrize(
    "wrong", ["int63", "decimal(39,0)", "decimal(3,4)", "list<list<int64>>", "list<>", "", None]
)
def test_types_that_there_are_not(wrong: Any) -> None:
    with pytest.raises(FlowError, match="one of bool"):
        Column("a", wrong)


@pytest.mark.parametrize("wrong", ["", "1a", "a-b", "_sqe_a", "a" * 200, None])
def test_names_that_cannot_be(wrong: Any) -> None:
    with pytest.raises(FlowError, match="letters, digits"):
        Column(wrong, "int64")


def test_a_message_with_one_column_only_has_no_row_key() -> None:
    with pytest.raises(FlowError, match="each column once"):
        TableSchema.of(SourceContext, partition_key="file_name", row_key="file_name")


class Computed(msgspec.Struct):
    robot: str
    at_ms: int

    @property
    def line(self) -> str:
        return self.robot[:1]

    def shift(self) -> int:
        return self.at_ms // 1_000


@dataclasses.dataclass
class PlainReading:
    robot: str
    at_ms: int


class Named(NamedTuple):
    robot: str
    at_ms: int


@pytest.mark.parametrize("payload", [Computed, PlainReading, Named])
@pytest.mark.parametrize(
    "given", [{"robot": "string", "at": "int64"}, [Column("robot", "string"), Column("at", "int64")]]
)
def test_columns_that_are_no_fields_are_refused_when_they_are_declared(payload: Any, given: Any) -> None:
    with pytest.raises(FlowError, match=r"'at' is not a field of .*; it has robot, at_ms"):
        columns_of(payload, given)


def test_what_is_computed_like_a_field_may_be_a_column_and_a_method_may_not() -> None:
    schema = TableSchema.of(
        Computed,
        partition_key="robot",
        row_key="at_ms",
        columns={"robot": "string", "at_ms": "int64", "line": "string"},
    )
    assert schema.batch([Computed("r1", 7)]).to_pylist() == [{"robot": "r1", "at_ms": 7, "line": "r"}]
    with pytest.raises(FlowError, match="'shift' is not a field"):
        columns_of(Computed, {"robot": "string", "shift": "int64"})


def test_types_whose_fields_nobody_knows_take_any_name() -> None:
    for payload in (dict, SimpleNamespace, None):
        assert [one.name for one in columns_of(payload, {"robot": "string", "at": "int64"})] == [
            "robot",
            "at",
        ]
