"""Goal: what map_batches cannot do is refused where it is declared. Method: each error; what later steps know of its values."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow, count, sum_
from sqe_chain.flow.picture import as_text


class Fastening(msgspec.Struct):
    robot: str
    screws: int


class Loose(msgspec.Struct):
    what: Any


class Foreign:
    pass


def same(batch: Any) -> Any:
    return batch


def with_context(batch: Any, context: Any) -> Any:
    return batch


SCHEMA = pa.schema([("robot", pa.string()), ("screws", pa.int64())])


def source() -> Any:
    return Flow("f").source("in", Fastening)


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: source().map_batches(7, Fastening), "map_batches"),
        (
            lambda: source().map_batches(with_context, Fastening),
            "must take 1 argument\\(s\\), and no context",
        ),
        (lambda: source().map_batches(same, "Fastening"), "schema='Fastening'; a type, or a pyarrow.Schema"),
        (lambda: source().map_batches(same, Foreign), "there is no codec for Foreign"),
        (lambda: source().map_batches(same, Loose), "Loose.what is "),
        (lambda: source().map_batches(same, dict), "the fields of dict are not known"),
        (lambda: source().map_batches(same, Fastening, index=""), "index=''; the name of a column"),
        (lambda: source().map_batches(same, Fastening, index=0), "index=0; the name of a column"),
        (
            lambda: source().map_batches(same, Fastening, index="robot"),
            "index='robot' is a field of Fastening",
        ),
        (lambda: source().map_batches(same, Fastening, columns="robot"), "columns='robot'; names of fields"),
        (lambda: source().map_batches(same, Fastening, columns=[]), "columns=.*; names of fields"),
        (lambda: source().map_batches(same, Fastening, columns=[1]), "columns=.*; names of fields"),
        (
            lambda: source().map_batches(same, Fastening, columns=["screw"]),
            "no field 'screw'; it has robot, screws",
        ),
        (lambda: source().map(same).map_batches(same, Fastening), "the type of the values is not known here"),
        (
            lambda: Flow("f").source("in", dict).map_batches(same, Fastening),
            "the fields of dict are not known",
        ),
        (lambda: Flow("f").source("in", Loose).map_batches(same, Fastening), "Loose.what is "),
    ],
)
def test_what_cannot_work_is_refused(declare: Any, text: str) -> None:
    with pytest.raises(FlowError, match=f"test_map_batches.py:[0-9]+: .*{text}"):
        declare()


def test_it_comes_before_stages() -> None:
    stage = source().aggregate("per-robot", key="robot", events=count())
    for stream in (stage, stage.changes(), stage.changes().map(same)):
        with pytest.raises(FlowError, match="map_batches cannot follow a stage"):
            stream.map_batches(same, Fastening)


def test_it_must_be_used() -> None:
    stream = source().map_batches(same, Fastening)
    with pytest.raises(FlowError, match="nothing is done with this map_batches"):
        stream.flow.compile()


def test_pyarrow_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = source()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FlowError, match="needs the package 'pyarrow': pip install 'sqe-chain"):
        stream.map_batches(same, Fastening)


def test_later_steps_know_the_type() -> None:
    typed = source().map(same).map_batches(same, Fastening, columns=Fastening)
    typed.map_batches(same, StringValue, columns=["robot"])
    with pytest.raises(FlowError, match="Fastening has no field 'bolts'"):
        typed.filter(bool).aggregate("bolts", key="robot", bolts=sum_("bolts"))
    dicts = source().map_batches(same, SCHEMA)
    dicts.aggregate("screws", key="robot", screws=sum_("screws"))


def test_it_is_shown() -> None:
    flow = Flow("f")
    flow.source("in", Fastening).map_batches(same, SCHEMA).to("out", partitions=1)
    assert "map_batches: same" in as_text(flow.compile())
