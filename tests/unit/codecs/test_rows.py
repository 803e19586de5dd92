"""Rows of files as values of a declared type: structs, dataclasses, dicts, protobuf, bytes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from google.protobuf.json_format import ParseError
from google.protobuf.struct_pb2 import Struct
from google.protobuf.type_pb2 import Field

from sqe_chain import Flow
from sqe_chain.codecs import codec_for
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.ext.files.codec import Rows


class Place(msgspec.Struct):
    line: str


class Reading(msgspec.Struct):
    robot: str
    screws: int
    torque: float | None = None
    ok: bool = True
    at: datetime | None = None
    price: Decimal = Decimal(1)
    note: str | None = None
    place: Place | None = None


@dataclass
class Plain:
    robot: str
    screws: int = 7


def test_columns_of_csv_are_read_from_text() -> None:
    read = Rows(codec_for(Reading), csv=True).decode
    full = b'{"robot":"r1","screws":"-3","torque":"1.5","ok":"false","at":"2026-11-23T06:00:00Z","price":"1.20","more":"x"}'
    assert read(full) == Reading(
        "r1", -3, 1.5, ok=False, at=datetime(2026, 11, 23, 6, tzinfo=UTC), price=Decimal("1.20")
    )
    empty = b'{"robot":"","screws":"3","torque":"","ok":"","at":"","price":"","note":""}'
    assert read(empty) == Reading("", 3, None, note="")
    for wrong in (
        b'{"robot":"r1","screws":""}',
        b'{"robot":"r1","screws":"x"}',
        b'{"robot":"r1"}',
        b"r\xff1",
    ):
        with pytest.raises(msgspec.DecodeError if wrong[:1] == b"r" else msgspec.ValidationError):
            read(wrong)
    with pytest.raises(ValueError, match="the row has 3 fields"):
        read(b'["1","2","3"]')


@pytest.mark.parametrize("csv", [True, False])
def test_it_is_the_same_in_another_process(csv: bool) -> None:
    codec = Rows(codec_for(Plain), csv=csv)
    data = b'{"robot":"r1","screws":%s}' % (b'"3"' if csv else b"3")
    assert pickle.loads(pickle.dumps(codec)).decode(data) == Plain("r1", 3)  # noqa: S301 - our own
    assert codec.type_name == "json:Plain"
    assert codec.reads("json:Plain")


def test_other_formats_have_types_which_are_checked() -> None:
    read = Rows(codec_for(Reading)).decode
    assert read(b'{"robot":"r1","screws":3,"price":"1.5","place":{"line":"A"}}') == Reading(
        "r1", 3, price=Decimal("1.5"), place=Place("A")
    )
    with pytest.raises(msgspec.ValidationError):
        read(b'{"robot":"r1","screws":"3"}')
    assert Rows(codec_for(dict)).decode(b'{"a":[1]}') == {"a": [1]}
    assert Rows(codec_for(dict), csv=True).decode(b'{"a":""}') == {"a": ""}
    assert Rows(codec_for(bytes), csv=True).decode(b'{"a":1}') == b'{"a":1}'


def test_protobuf_is_read_from_columns() -> None:
    read = Rows(codec_for(Field), csv=True).decode
    assert read(b'{"name":"x","number":"","packed":"TRUE","jsonName":"y","unknown":"z"}') == Field(
        name="x", packed=True, json_name="y"
    )
    with pytest.raises(ParseError, match="packed"):
        read(b'{"name":"x","packed":"perhaps"}')
    struct = Struct()
    struct.update({"a": [1, "b"]})
    assert Rows(codec_for(Struct)).decode(b'{"a":[1,"b"]}') == struct


def test_what_cannot_be_read_is_refused_where_it_is_declared() -> None:
    flow = Flow("wrong")
    for arguments, text in (
        (("a b", Reading, "x.csv"), "source name 'a b'"),
        (("rows", Reading, ()), "need paths"),
        (("rows", Reading, None), "need paths"),
        (("rows", Reading, ["a.csv", 7]), "need paths"),
        (("rows", Reading, "data/*"), "has no suffix of a format"),
        (("rows", Reading, ["a.csv", "b.jsonl"]), "csv and jsonl"),
        (("rows", None, "a.csv"), "need the type of a row"),
        (("n" * 217, Reading, "a.csv"), "source name"),
    ):
        bad: Any = arguments
        with pytest.raises(FlowError, match=text):
            flow.files(*bad)
    with pytest.raises(FlowError, match="a Csv of sqe_chain"):
        flow.files("rows", Reading, "a.csv", csv=";")  # type: ignore[call-overload]
    flow.files("rows", Reading, "a.csv")
    with pytest.raises(FlowError, match="is already read at"):
        flow.files("rows", Reading, "b.csv")
    timed = Flow("timed")
    timed.files("rows", Plain, "a.csv").aggregate(
        "robots", key=lambda one: one.robot, state=dict, fold=lambda _state, _one: None, expire_after_ms=1_000
    )
    with pytest.raises(FlowError, match=r"give files\(\.\.\., timestamp=\.\.\.\)"):
        timed.compile()


def test_codecs_with_bytes_of_their_own_read_no_rows() -> None:
    class Own(type(codec_for(bytes))):  # type: ignore[misc]
        name = "own"

    codec = Own(bytes)
    assert Rows(codec).decode(b"x") == b"x"

    class Other:
        name = "other"
        python_type = int

    with pytest.raises(ConfigurationError, match="reads bytes of its own"):
        Rows(Other())  # type: ignore[arg-type]
