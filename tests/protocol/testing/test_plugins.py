"""Goal: a stage kind, a store and a codec of other packages plug in with two files each, and are exact through crashes.

Method: the packages in tests/plugins are installed as pip would do it, by the entry points of their pyproject.toml. One
flow uses all three, and crashes around every call to broker and store.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow import Flow, kinds
from sqe_chain.plans.events import When
from sqe_chain.runtime.states import states
from sqe_chain.stages import Dropped, RecordKind, StageKind, Tumbling
from sqe_chain.stages.root_replays import RootsKind
from sqe_chain.testing import Rehearsal
from tests.support.plugins import MODULES, PACKAGES, install


@dataclass
class Report:
    robot: str = ""
    screws: int = 0


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with install(tmp_path, monkeypatch):
        yield


def add(total: Int64Value, report: Report) -> None:
    total.value += report.screws


def count(total: Int64Value, _: Dropped) -> None:
    total.value += 1


def flow_of(count_of_key: int = 2) -> Flow:
    flow = Flow("plugged", state_partitions=2)
    first = flow.source("reports", Report, codec="pipes", raw=True).stage(
        "first", "keep-first", key=lambda report: report.robot, count=count_of_key
    )
    first.aggregate("screws", key=lambda report: report.robot, state=Int64Value, fold=add)
    first.dropped().aggregate("left", key=lambda one: one.reason, state=Int64Value, fold=count)
    return flow


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("installed")
def test_a_flow_of_plugged_in_parts_is_exact_through_a_crash_at_every_call(
    tmp_path: Path, when: When
) -> None:
    number = 0
    while True:
        url = f"folder://{tmp_path}/{when}-{number}?max_rows=1"
        rehearsal = Rehearsal(flow_of(), partitions={"reports": 2}, store=open_store(url))
        for screws, robot in enumerate("aabbbacc"):
            rehearsal.feed("reports", f"{robot}|{1 << screws}".encode(), partition=screws % 2)
            if screws == 3:
                rehearsal.run_until_caught_up()
        rehearsal.crash_at_call(number, when)
        rehearsal.run_until_caught_up()
        assert {key: total.value for key, total in rehearsal.states("screws").items()} == {
            b"a": 0b11,
            b"b": 0b1100,
            b"c": 0b11000000,
        }
        assert {key: total.value for key, total in rehearsal.states("left").items()} == {b"duplicate": 2}
        if not rehearsal.crashes:
            break
        number += 1
    assert number > 15
    with states(rehearsal.flow, "screws", url) as stored:
        assert stored["b"].value == 0b1100


@pytest.mark.parametrize("module", MODULES)
def test_each_takes_a_module_and_its_metadata(module: str) -> None:
    """And no file of sqe_chain knows of it."""
    package = PACKAGES / module
    assert {file.name for file in package.iterdir() if file.is_file()} == {f"{module}.py", "pyproject.toml"}
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name,),) = (found.keys() for found in project["entry-points"].values())
    for file in PACKAGES.parents[1].glob("sqe_chain/**/*.py"):
        text = file.read_text(encoding="utf-8")
        assert f'"{name}"' not in text, file
        assert module not in text, file


@pytest.mark.usefixtures("installed")
def test_a_picture_shows_the_kind_and_a_setting_is_checked_where_it_is_declared() -> None:
    assert "keep-first first" in flow_of().to_text()
    with pytest.raises(FlowError, match=r"test_plugins\.py:\d+: count=0; at least 1"):
        flow_of(0)
    source = Flow("f").source("t", Int64Value)
    with pytest.raises(FlowError, match=r"test_plugins\.py:\d+: .*'size'"):
        source.stage("s", "keep-first", size=3)
    with pytest.raises(FlowError, match="no changes"):
        source.stage("s", "keep-first", count=3).changes()
    with pytest.raises(FlowError, match=r"keep-last.*deduplicate.*keep-first"):
        source.stage("t", "keep-last")
    with pytest.raises(ConfigurationError, match="folder:// needs a path"):
        open_store("folder://")
    with pytest.raises(ConfigurationError, match=r"use one of memory://.*, folder://"):
        open_store("file:///x")


def test_a_kind_is_given_itself_or_by_name_not_both() -> None:
    source = Flow("f").source("t", Int64Value)
    with pytest.raises(FlowError, match="kind=3; a StageKind, or the name of one"):
        source.stage("s", 3)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="compat: settings are for a kind given by name"):
        source.stage("s", RootsKind(), compat="kuka")
    with pytest.raises(FlowError, match="buckets are for states by key"):
        source.stage("s", RootsKind(), buckets=2)

    class Loud(RootsKind):
        name = "loud"
        order = "times"

    with pytest.raises(FlowError, match=r"loud.*order"):
        source.stage("s", Loud())

    class Roots(RootsKind):
        """Another one of a name that is taken."""

    with pytest.raises(FlowError, match=r"root_replays\.RootsKind"):
        source.stage("s", Roots())


def test_kinds_of_this_package_come_through_the_same_door() -> None:
    flow = Flow("f")
    source = flow.source("t", Int64Value)
    source.stage("s", "distinct", windows=Tumbling(10), key=lambda value: str(value.value)).to(
        "u", partitions=1
    )
    for name in kinds.BUILT_IN:
        kind = kinds.kind_named(name)
        assert isinstance(kind, type)
        assert issubclass(kind, StageKind)
        assert kind.name == name
    rehearsal = Rehearsal(flow)
    for value in (1, 1, 2):
        rehearsal.feed("t", Int64Value(value=value), timestamp_ms=5)
    rehearsal.run_until_caught_up()
    assert sorted(envelope.payload_as(Int64Value).value for envelope in rehearsal.published("u")) == [1, 2]
    assert issubclass(RootsKind, RecordKind)
