"""Workers carry out commands, report how these failed, and are replaced when lost. Method: real processes, no broker, no store."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.engines.shared_outputs import SharedOutputs
from sqe_chain.engines.units import UnitPacker, merged
from sqe_chain.engines.workers import Team, WorkersEngine
from sqe_chain.engines.workers.tasks import Done, Outboxes, Parcel, Tasks
from sqe_chain.engines.workers.team import MOST_LOSSES
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import ChainError, ConfigurationError, EngineLost, GapError, Unavailable
from sqe_chain.ext.dev.process import ProcessIdentity, wait_until
from sqe_chain.flow import Flow
from sqe_chain.ports import Range
from sqe_chain.runtime.connecting import EngineChoice
from sqe_chain.task.results import Job, Portion, Report
from sqe_chain.task.states import Claim, Transition
from tests.support import worker_commands as commands
from tests.support.unit_rows import blocks_of, rows_of

PATIENCE_S = 300.0


@pytest.fixture
def team() -> Iterator[Team]:
    found = Team(2, "workers of a test")
    yield found
    found.close()


def test_each_worker_gets_its_own_command(team: Team) -> None:
    assert team.call([commands.pid, commands.pid]) == team.pids()


def test_threads_get_the_answers_to_their_own_commands(team: Team) -> None:
    def ask(number: int) -> list[Any]:
        return team.call([partial(commands.echo, text=f"{number}/{member}") for member in range(2)])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(200)))
    assert found == [[f"{number}/0", f"{number}/1"] for number in range(200)]


class TeamOfScript:
    """A team of one worker that reports what a test gives it."""

    size, generation = 1, 0

    def __init__(self, *reports: Report) -> None:
        self._reports = list(reports)

    def prepare(self, _command: object) -> None:
        """Nothing is sent."""

    def call(self, commands: Sequence[Any]) -> list[Any]:
        """The next report for work, 0 for writes."""
        (command,) = commands
        works = isinstance(command, partial) and command.func in {Tasks.process, Tasks.fold}
        return [Done(self._reports.pop(0))] if works else [0]


def compared(first: dict[str, int], again: dict[str, int], level: int) -> None:
    """Lose a worker while outputs are published (level 0), or states of a level are written."""
    flow = Flow("two", state_partitions=1)
    stage = flow.source("t", Int64Value).aggregate("one", key=str, state=Int64Value, fold=lambda *_: [])
    stage.aggregate("two", key=str, state=Int64Value, fold=lambda *_: None)
    rest = [Report(), Report()]
    team = TeamOfScript(Report(gives=first), *rest, Report(gives=again), *rest)
    engine = WorkersEngine(flow.compile(), MemoryLog(), {"": MemoryStore("of a test")}, cast("Team", team))
    portion = Portion(Range("t", bytes(16), 0, 0, 1), PartitionMarks("t", bytes(16), 0))
    engine.process(Job(Transition("two", Claim(1, "run"), 0, "0"), 1), [portion])
    if level == 0:
        team.generation = 1
        engine.publish()
        return
    for written in range(2, level - 1, -1):
        team.generation += written == level
        engine.persist(written, "plan", {})


GIVEN = {"topic/u": 1, "headers/u": 2, "states/one/0": 3, "states/two/0": 4}


@pytest.mark.parametrize("name", GIVEN)
def test_what_new_workers_compute_is_compared_before_anything_is_written(name: str) -> None:
    compared(GIVEN, dict(GIVEN), 0)
    for other in (GIVEN | {name: 9}, {own: value for own, value in GIVEN.items() if own != name}):
        with pytest.raises(EngineLost, match="came out differently"):
            compared(GIVEN, other, 0)


def test_where_states_are_written_only_those_before_them_come_out_as_before() -> None:
    """What is written is not folded again, and gives nothing to what follows."""
    compared(GIVEN, {"states/one/0": 3}, 1)
    with pytest.raises(EngineLost, match="came out differently"):
        compared(GIVEN, {"states/one/0": 9}, 1)


def test_an_error_comes_back_by_its_own_name_and_a_permanent_one_first(team: Team) -> None:
    with pytest.raises(GapError, match="a hole") as caught:
        team.call([commands.be_away, commands.find_a_gap])
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 1, 7)
    with pytest.raises(ChainError, match="a task failed unexpectedly: ValueError: unexpected"):
        team.call([commands.go_wrong, commands.pid])
    assert team.call([commands.pid, commands.pid]) == team.pids(), "an error is no reason to replace anybody"


def test_a_warning_of_a_library_reaches_the_log_of_the_service(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    team.call([commands.warn, commands.pid])
    assert caplog.record_tuples == [("some.library", logging.WARNING, "careful: 3")]


def test_a_lost_worker_is_replaced_and_begins_as_the_others_did(team: Team, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    team.prepare(partial(commands.remember, file=begun))
    before, generation = team.call([commands.pid, commands.pid]), team.generation
    with pytest.raises(Unavailable, match=r"worker 2 of 2 \(process \d+\) was killed by SIGKILL"):
        team.call([commands.pid, commands.die])
    assert team.generation == generation + 1, "before new ones start: what was kept is gone now"
    after = team.call([commands.pid, commands.pid])
    assert not set(before) & set(after)
    assert begun.read_text() == "x" * 4


def test_a_worker_that_dies_while_it_has_nothing_to_do_is_noticed(team: Team) -> None:
    one = ProcessIdentity.of(team.pids()[0])
    assert one is not None
    team.call([commands.pid, commands.pid])
    os.kill(one.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="worker 1 of 2"):
        team.call([commands.pid, commands.pid])
    assert len(set(team.call([commands.pid, commands.pid]))) == 2


def test_losses_in_one_batch_are_limited(team: Team) -> None:
    for _ in range(MOST_LOSSES - 1):
        with pytest.raises(Unavailable):
            team.call([commands.pid, commands.die])
    with pytest.raises(EngineLost, match="start the service again"):
        team.call([commands.pid, commands.die])
    team.end_batch()
    with pytest.raises(Unavailable):
        team.call([commands.pid, commands.die])


def test_signals_to_all_processes_end_no_worker_whenever_they_come(tmp_path: Path) -> None:
    """At its first instruction, and in the middle of a command."""
    team, go_on = Team(2, "workers of a test"), tmp_path / "go-on"
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            for pid in team.pids():
                os.kill(pid, number)
        team.send_command(partial(commands.wait_for, file=go_on))
        assert wait_until(go_on.with_suffix(".waiting").exists, PATIENCE_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            for pid in team.pids():
                os.kill(pid, number)
        go_on.touch()
        assert team.call([commands.pid, commands.pid]) == team.pids()
    finally:
        team.close()


def test_workers_end_with_the_team_in_the_middle_of_a_command(tmp_path: Path) -> None:
    team, never = Team(2, "workers of a test"), tmp_path / "never"
    team.send_command(partial(commands.wait_for, file=never))
    assert wait_until(never.with_suffix(".waiting").exists, PATIENCE_S)
    found = [ProcessIdentity.of(pid) for pid in team.pids()]
    team.close()
    assert [one for one in found if one is not None and one.alive()] == []


units = st.tuples(
    st.integers(0, 2),
    st.integers(1, 2),
    st.just("t"),
    st.integers(0, 2),
    st.integers(0, 30),
    st.binary(max_size=4),
)


@given(st.lists(st.sets(units, max_size=30), min_size=1, max_size=3))
def test_units_in_outboxes_come_in_order(found: list[set[Any]]) -> None:
    files = [os.memfd_create(f"outbox-{number}") for number in range(len(found))]
    try:
        outboxes = [Outboxes(files, number) for number in range(len(found))]
        parcels: list[Parcel] = []
        seen: set[Any] = set()
        for outbox, own in zip(outboxes, found, strict=True):
            packer = UnitPacker()
            rows = [(*one, b"key", "tag", b"value", None, ()) for one in sorted(own - seen)]
            seen |= own
            packed = [*packer.add(blocks_of(cast("Any", rows))), *packer.finish()]
            parcels += [outbox.put(1, one) for one in packed]
        parcels.sort(key=lambda parcel: parcel.first)
        assert [row[:6] for row in rows_of(merged(map(outboxes[0].get, parcels)))] == sorted(seen)
        outboxes[0].clear()
        assert os.fstat(files[0]).st_size == 0
    finally:
        for file in files:
            os.close(file)


def test_a_system_without_files_in_memory_runs_workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS is."""
    monkeypatch.delattr(os, "memfd_create")
    team, shared = Team(2, "workers of a test"), SharedOutputs(wanted=True)
    try:
        assert team.call([commands.pid, commands.pid]) == team.pids()
    finally:
        team.close()
    shared.begin()
    assert shared.file is None, "then outputs go through the pipe"


# --- who does what -------------------------------------------------------------------------------


class RecordedTeam:
    """A team that does nothing, and keeps the shares that it was given."""

    size, generation = 2, 0

    def __init__(self) -> None:
        self.shares: list[list[list[tuple[str, int]]]] = []

    def prepare(self, command: object) -> None:
        pass

    def call(self, commands: Sequence[Any]) -> list[Done]:
        if "assigned" in commands[0].keywords:
            assigned = [command.keywords["assigned"] for command in commands]
            self.shares.append(
                [[(one.read.topic, one.read.partition) for task in own for one in task] for own in assigned]
            )
        return [Done(Report()) for _ in commands]


def engine_of(team: RecordedTeam) -> WorkersEngine:
    flow = Flow("shared")
    flow.source(("a", "b"), Int64Value).to("t", partitions=1)
    return WorkersEngine(flow.compile(), MemoryLog("shared"), {}, cast("Team", team))


def portions(*places: tuple[str, int]) -> list[Portion]:
    return [
        Portion(Range(topic, bytes(16), partition, 0, 1), PartitionMarks(topic, bytes(16), partition))
        for topic, partition in places
    ]


def job(*, in_place: bool) -> Job:
    return Job(Transition("shared", Claim(1, "run"), 0, "id"), 0, in_place)


def test_a_partition_keeps_its_worker_and_a_new_one_goes_to_the_worker_with_least() -> None:
    team = RecordedTeam()
    engine = engine_of(team)
    engine.process(job(in_place=False), portions(("a", 0), ("a", 1), ("a", 2)))
    engine.process(job(in_place=False), portions(("a", 2), ("a", 1), ("b", 0)))
    assert team.shares == [[[("a", 0), ("a", 2)], [("a", 1)]], [[("a", 2)], [("a", 1), ("b", 0)]]]


def test_without_a_shuffle_a_worker_has_the_same_partition_of_all_topics() -> None:
    team = RecordedTeam()
    engine_of(team).process(job(in_place=True), portions(("a", 0), ("a", 1), ("b", 0), ("b", 1)))
    assert team.shares == [[[("a", 0), ("b", 0)], [("a", 1), ("b", 1)]]]


def test_a_number_of_workers_that_cannot_be_is_refused() -> None:
    assert EngineChoice("inprocess", workers=2).by_workers
    assert not EngineChoice("inprocess").by_workers
    for choice, text in (
        ({"name": "spark", "workers": 2}, "Expected --engine inprocess"),
        ({"name": "inprocess", "workers": 0}, "Expected 1 to 64"),
        ({"name": "inprocess", "workers": 65}, "Expected 1 to 64"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            EngineChoice(**choice)  # type: ignore[arg-type]
