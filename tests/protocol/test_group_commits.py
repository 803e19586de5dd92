"""A flow without stages keeps its place in its group's commits: they are renewed, watched, and taken along to its first stage."""

from __future__ import annotations

from typing import Literal
from uuid import uuid4

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import (
    GroupInUse,
    NoCommittedOffset,
    PartitionsMismatch,
    PlanMismatch,
    RecreatedTopic,
    ServiceStopped,
    StoreInconsistent,
    Superseded,
)
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Commit
from sqe_chain.protocol.without_plans import RENEW_MS, Republisher
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.number_flows import add, values_published
from tests.support.typed_results import states_as

Start = Literal["earliest", "latest"] | None


def number_of(value: bytes) -> Int64Value:
    return Int64Value(value=int(value))


def passing_on(*, stages: bool = False, raw: bool = False, outputs: int = 1) -> Flow:
    flow = Flow("pass-on", state_partitions=1)
    source = flow.source("in", number_of, raw=True) if raw else flow.source("in", Int64Value)
    source.to("out", partitions=outputs)
    if stages:
        source.aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    return flow


def rehearsed(
    flow: Flow, log: MemoryLog | None = None, start: Start = None, partitions: int = 1
) -> Rehearsal:
    return Rehearsal(flow, log=log, settings=Settings(start=start), partitions={"in": partitions})


def feed(rehearsal: Rehearsal, *numbers: int, partition: int = 0) -> None:
    for number in numbers:
        rehearsal.feed("in", Int64Value(value=number), partition=partition)


def test_the_commit_of_a_quiet_partition_is_renewed_while_others_are_busy() -> None:
    """Kafka forgets the commit of each partition by itself, as long after it was made."""
    rehearsal = rehearsed(passing_on(), partitions=2)
    feed(rehearsal, 1, partition=1)
    rehearsal.run_until_caught_up()
    committed = rehearsal.commits()["in", 1]
    rehearsal.log.forget("pass-on")
    feed(rehearsal, 2)
    rehearsal.batch()
    assert ("in", 1) not in rehearsal.commits(), "not with each batch"
    rehearsal.clock.jump(RENEW_MS)
    feed(rehearsal, 3)
    rehearsal.batch()
    assert rehearsal.commits()["in", 1] == committed


@pytest.mark.parametrize("start", [None, "latest", "earliest"])
def test_a_partition_whose_commit_is_forgotten_and_whose_beginning_is_gone_asks_where_to_go_on(
    start: Start,
) -> None:
    rehearsal = rehearsed(passing_on(), partitions=2)
    feed(rehearsal, 1, 2, 3, partition=1)
    feed(rehearsal, 4)
    rehearsal.run_until_caught_up()
    kept = rehearsal.commits()["in", 0]
    rehearsal.log.forget("pass-on")
    rehearsal.log.commit("pass-on", {("in", 0): kept})
    rehearsal.log.truncate_before("in", 1, 2)
    again = rehearsed(passing_on(), rehearsal.log, start)
    if start != "earliest":
        with pytest.raises(NoCommittedOffset, match=r"in\[1\].*--start earliest"):
            again.start()
        return
    again.run_until_caught_up()
    assert values_published(again) == [4, 1, 2, 3, 3]


def test_that_a_flow_has_run_before_is_noticed_where_others_publish_too() -> None:
    rehearsal = rehearsed(passing_on())
    feed(rehearsal, 1)
    rehearsal.run_until_caught_up()
    rehearsal.log.forget("pass-on")
    for _ in range(1_500):
        rehearsal.log.append("out", 0, b"of another program")
    with pytest.raises(NoCommittedOffset, match="'pass-on/out' holds what the flow has made"):
        rehearsed(passing_on(), rehearsal.log, "latest").start()


@pytest.mark.parametrize("start", [None, "earliest", "latest"])
def test_start_latest_is_refused_where_outputs_show_that_the_flow_has_run_before(start: Start) -> None:
    """Records that it has not read yet would be skipped, in silence: only its commits show where it was."""
    rehearsal = rehearsed(passing_on())
    feed(rehearsal, 1)
    rehearsal.run_until_caught_up()
    rehearsal.log.forget("pass-on")
    feed(rehearsal, 2)
    again = rehearsed(passing_on(), rehearsal.log, start)
    if start == "latest":
        with pytest.raises(NoCommittedOffset, match="'pass-on/out' holds what the flow has made"):
            again.start()
        rehearsal.log.end_session("pass-on")
        rehearsal.log.commit("pass-on", {("in", 0): Commit(1, "")})
        again.run_until_caught_up()
        assert values_published(again) == [1, 2], "where somebody has set the offsets"
        return
    again.run_until_caught_up()
    assert values_published(again) == [1, 1, 2]


@pytest.mark.parametrize("before", ["nothing", "another flow", "the topic before it"])
def test_start_latest_begins_at_the_end_of_what_was_never_read(before: str) -> None:
    log = MemoryLog(uuid4().hex)
    if before != "nothing":
        other = Flow("other" if before == "another flow" else "pass-on")
        other.source("in", Int64Value).to("out", partitions=1)
        first = rehearsed(other, log)
        feed(first, 1)
        first.run_until_caught_up()
        if before == "the topic before it":
            log.recreate("in")
    rehearsal = rehearsed(passing_on(), log, "latest")
    feed(rehearsal, 2)
    there = len(log.records("out"))
    rehearsal.start()
    feed(rehearsal, 3)
    rehearsal.run_until_caught_up()
    assert len(log.records("out")) == there + 1


def moved(rehearsal: Rehearsal, offset: int) -> None:
    """What `sqe-chain rewind` does."""
    mover = rehearsal.start()
    assert isinstance(mover, Republisher)
    mover.rewind({("in", 0): offset})
    mover.leave()
    rehearsal.service = None


@pytest.mark.parametrize("woken", ["while the newer run is alive", "later"])
def test_a_run_whose_place_a_newer_one_has_taken_commits_nothing_and_ends(woken: str) -> None:
    rehearsal = rehearsed(passing_on())
    feed(rehearsal, 1)
    rehearsal.run_until_caught_up()
    alive = rehearsal.zombie()
    feed(rehearsal, 2)
    rehearsal.run_until_caught_up()
    if woken == "later":
        rehearsal.log.end_session("pass-on")
    before = rehearsal.commits()
    for _ in range(2):
        with pytest.raises(Superseded, match="newer run"):
            alive.wake()
    assert rehearsal.commits() == before
    assert values_published(rehearsal) == [1, 2]


def test_a_run_whose_session_has_ended_goes_on_if_nobody_came_in_between() -> None:
    rehearsal = rehearsed(passing_on())
    feed(rehearsal, 1)
    rehearsal.run_until_caught_up()
    rehearsal.log.end_session("pass-on")
    feed(rehearsal, 2)
    rehearsal.batch()
    assert values_published(rehearsal) == [1, 2]
    with pytest.raises(GroupInUse):
        rehearsal.log.commit("pass-on", {("in", 0): Commit(0, "")})


def test_a_run_that_sleeps_while_the_flow_is_rewound_does_not_undo_that() -> None:
    rehearsal = rehearsed(passing_on())
    feed(rehearsal, 1, 2)
    rehearsal.run_until_caught_up()
    alive = rehearsal.zombie()
    moved(rehearsal, 1)
    rehearsal.clock.jump(RENEW_MS)
    with pytest.raises(Superseded):
        alive.wake()
    rehearsal.run_until_caught_up()
    assert values_published(rehearsal) == [1, 2, 2]


def test_a_rewind_is_refused_while_a_run_is_alive_and_waits_for_one_that_was_killed() -> None:
    rehearsal = rehearsed(passing_on())
    feed(rehearsal, 1, 2)
    rehearsal.run_until_caught_up()
    alive = rehearsal.zombie()
    mover = Republisher(environment_of(rehearsal))
    before = rehearsal.commits()
    with pytest.raises(ServiceStopped, match="a run is alive"):
        mover.check_stopped()
    assert rehearsal.commits() == before
    feed(rehearsal, 3)
    assert alive.wake(), "it goes on"
    rehearsal.clock.while_waiting = lambda: rehearsal.log.end_session("pass-on")
    mover.check_stopped()


def test_when_a_run_has_ended_its_group_takes_commits_of_others() -> None:
    rehearsal = rehearsed(passing_on())
    service = rehearsal.start()
    with pytest.raises(GroupInUse, match="has members"):
        rehearsal.log.commit("pass-on", {("in", 0): Commit(0, "")})
    service.leave()
    rehearsal.log.commit("pass-on", {("in", 0): Commit(0, "")})


def test_with_its_first_stage_a_flow_fences_the_runs_that_had_none() -> None:
    before = rehearsed(passing_on())
    feed(before, 1, 2)
    before.run_until_caught_up()
    sleeping = before.zombie()
    after = rehearsed(passing_on(stages=True), before.log)
    after.start()
    feed(before, 3)
    with pytest.raises(Superseded):
        sleeping.wake()
    after.run_until_caught_up()
    assert values_published(after) == [1, 2, 3]


@pytest.mark.parametrize("start", [None, "latest"])
def test_with_its_first_stage_a_flow_goes_on_where_it_was(start: Start) -> None:
    """Also where retention has deleted what was read."""
    before = rehearsed(passing_on())
    feed(before, 1, 2)
    before.run_until_caught_up()
    feed(before, 10, 20)
    before.log.truncate_before("in", 0, 1)
    after = rehearsed(passing_on(stages=True), before.log, start)
    after.run_until_caught_up()
    assert states_as(Int64Value, after, "sum")[b"all"].value == 30
    assert values_published(after) == [1, 2, 10, 20]
    after.rebuild()
    assert states_as(Int64Value, after, "sum")[b"all"].value == 30


def test_a_first_stage_waits_until_a_batch_that_was_begun_without_it_is_finished() -> None:
    before = rehearsed(passing_on())
    feed(before, 1, 2)
    before.crash(step=7, when="before")
    before.run_until_crash()
    with pytest.raises(PlanMismatch, match="was killed in the middle of it"):
        rehearsed(passing_on(stages=True), before.log).start()
    before.restart()
    before.run_until_caught_up()
    feed(before, 10)
    after = rehearsed(passing_on(stages=True), before.log)
    after.run_until_caught_up()
    assert states_as(Int64Value, after, "sum")[b"all"].value == 10


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("crashes", [False, True, "rewound", "forgotten"])
def test_an_output_comes_after_its_first_stage_when_nothing_is_to_be_published_again(
    *, crashes: bool | str, others: bool
) -> None:
    """After a stage it has other lanes: its readers would count twice what a run published, and did not commit."""

    def behind() -> Flow:
        flow = Flow("pass-on", state_partitions=1)
        source = flow.source("in", Int64Value)
        source.aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add).changes().to(
            "out", partitions=1
        )
        return flow

    before = rehearsed(passing_on())
    feed(before, 1, 2)
    before.run_until_caught_up()
    feed(before, 10, 20)
    if crashes in {"rewound", "forgotten"}:
        before.run_until_caught_up()
        if crashes == "rewound":
            before.rewind({("in", 0): 0})
        else:
            before.log.forget("pass-on")
        before.start(Settings(max_records=2))
        before.batch()
    elif crashes:
        before.crash(step=7, when="before")
        before.run_until_crash()
    for _ in range(150 if others else 0):
        before.log.append("out", 0, b"of another program")
    if crashes:
        reason = (
            "killed in the middle"
            if crashes is True
            else r"of in\[0\] up to offset 4, and its group's commit is 2"
        )
        with pytest.raises(PlanMismatch, match=reason):
            rehearsed(behind(), before.log).start()
        before.restart()
        before.run_until_caught_up()
    after = rehearsed(behind(), before.log)
    after.run_until_caught_up()
    assert [state.value for state in states_as(Int64Value, after, "sum").values()] == (
        [] if crashes else [30]
    )


def test_a_flow_does_not_lose_its_last_stage() -> None:
    """Its plans have read on, and its outputs came on lanes of state partitions."""
    before = rehearsed(passing_on(stages=True))
    feed(before, 1, 2)
    before.run_until_caught_up()
    feed(before, 3)
    with pytest.raises(PlanMismatch, match="without stages, and plan 1 has committed"):
        rehearsed(passing_on(), before.log).start()
    before.run_until_caught_up()
    assert values_published(before) == [1, 2, 3]


class Republished:
    """A flow that passes on what a service upstream has published, on many lanes, and later counts it, too."""

    def __init__(self, lanes: int) -> None:
        up = Flow("up")
        up.source("raw", number_of, raw=True).to("in", partitions=1)
        self.up = Rehearsal(up, log=MemoryLog(uuid4().hex), partitions={"raw": lanes})
        self.publish(range(lanes))
        self.flow = rehearsed(passing_on(), self.up.log)
        self.flow.run_until_caught_up()

    def publish(self, partitions: range) -> None:
        for partition in partitions:
            self.up.feed("raw", b"1", partition=partition)
        self.up.run_until_caught_up()

    def publish_again(self) -> None:
        """All that there was, at new offsets."""
        self.up.log.forget("up")
        self.up.log.commit("up", {("raw", 0): Commit(0, "")})
        self.up.restart()
        self.up.run_until_caught_up()

    def count(self) -> int:
        self.flow.run_until_caught_up()
        return sum(state.value for state in states_as(Int64Value, self.flow, "sum").values())


@pytest.mark.parametrize("way", ["on", "rebuild", "twice", "rewind", "import"])
def test_what_it_had_read_before_its_first_stage_is_not_counted_when_it_comes_again(way: str) -> None:
    world = Republished(20)
    world.flow = rehearsed(passing_on(stages=True), world.up.log)
    world.publish(range(3))
    assert world.count() == 3
    world.publish_again()
    assert world.count() == 3
    for _ in range({"rebuild": 1, "twice": 2, "import": 1}.get(way, 0)):
        world.flow.rebuild()
    if way == "rewind":
        world.flow.rebuild({("in", 0): 21})
    if way == "import":
        lines = world.flow.exported()
        world.flow = rehearsed(passing_on(stages=True), world.up.log)
        world.flow.imported(lines)
        world.flow.rebuild()
    world.publish(range(5))
    assert world.count() == 8


def test_where_the_store_has_lost_what_it_had_read_a_rebuild_is_refused() -> None:
    world = Republished(20)
    world.flow = rehearsed(passing_on(stages=True), world.up.log)
    world.publish(range(3))
    assert world.count() == 3
    with pytest.raises(StoreInconsistent, match="had read before its first stage"):
        rehearsed(passing_on(stages=True), world.up.log).rebuild()


def test_marks_that_do_not_fit_into_a_commit_are_missed_by_a_first_stage() -> None:
    world = Republished(150)
    with pytest.raises(NoCommittedOffset, match=r"the marks of in\[0\] did not fit"):
        rehearsed(passing_on(stages=True), world.up.log).start()
    world.publish(range(3))
    world.flow.run_until_caught_up()
    assert len(values_published(world.flow)) == 153


@pytest.mark.parametrize("raw", [True, False])
def test_with_its_first_stage_it_compares_topics_and_outputs_as_before(*, raw: bool) -> None:
    before = rehearsed(passing_on(raw=raw))
    before.feed("in", b"1" if raw else Int64Value(value=1))
    before.run_until_caught_up()
    before.log.grow("out", 2)
    with pytest.raises(PartitionsMismatch, match="'out' was created with 1"):
        rehearsed(passing_on(stages=True, raw=raw, outputs=2), before.log).start()
    before.log.recreate("in", keep_commits=True)
    before.feed("in", b"5" if raw else Int64Value(value=5))
    after = rehearsed(passing_on(stages=True, raw=raw), before.log)
    if not raw:
        with pytest.raises(RecreatedTopic):
            after.start()
        return
    after.run_until_caught_up()
    assert states_as(Int64Value, after, "sum")[b"all"].value == 5
    assert "stays counted" in str(after.events("notice"))
