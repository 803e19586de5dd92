"""Goal: the doctor finds each fault that was planted, by its name, and nothing where all is well.

Method: a flow in memory that has run; one thing is broken in topics, offsets, store, claim, declaration or machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import ChainError, LostOffsets, RecreatedTopic, TruncatedInput, Unavailable
from sqe_chain.ext.doctor.checks import examine
from sqe_chain.ext.doctor.diagnostic import KINDS
from sqe_chain.ext.doctor.facts import Gathering
from sqe_chain.ext.doctor.machine import Disk
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Commit
from sqe_chain.protocol.claim import FORGETS
from sqe_chain.runtime.connecting import follow_failover
from sqe_chain.stages import Tumbling
from sqe_chain.testing.faults import FaultScript, InjectedFault
from tests.support.doctor_world import WELL, World, doubled, key_of, totals
from tests.support.mirrored import Clusters
from tests.support.number_flows import add
from tests.support.suites import points


@pytest.fixture
def world() -> Iterator[World]:
    made = World.make(totals())
    yield made
    made.service.log.clear()


@pytest.fixture
def republisher() -> Iterator[World]:
    made = World.make(doubled())
    yield made
    made.service.log.clear()


def test_nothing_is_found_where_all_is_well(world: World, republisher: World) -> None:
    assert world.examine() == []
    assert republisher.examine() == []


def test_nothing_is_found_while_the_service_is_at_work(world: World, republisher: World) -> None:
    """It takes up a record before any of the doctor's calls."""
    for made in (world, republisher):
        for at in points(made.flow.name):
            script = FaultScript()
            script.injected.append(InjectedFault(made.work, passes=at))
            assert made.diagnose(script) == [], at
            if script.injected:
                break


def delete(world: World, topic: str) -> None:
    world.service.log.delete(topic, keep_commits=True)


def recreate(world: World) -> None:
    delete(world, "numbers")
    world.service.log.create_topic("numbers", 2)
    world.configure("numbers")


def speak_to_another(world: World) -> None:
    """A cluster that has all topics, as a mirror has: the plan names another one."""
    world.service.log = MemoryLog(f"other-{id(world)}")
    for topic in ("numbers", "sums", world.flow.dead_letter_topic):
        world.service.log.create_topic(topic, 2)
        world.service.log.recreate(topic)  # in memory the first topic of a name has the same id everywhere


def lose_offsets(world: World) -> None:
    for _ in range(2):
        world.service.feed("numbers", Int64Value(value=1), partition=0)
    world.service.log.truncate_before("numbers", 0, 6)


def forget_commits(world: World) -> None:
    world.service.log.delete_group("totals")


def commit_by_another(world: World) -> None:
    world.service.log.commit("totals", {("numbers", 0): Commit(3, "")})


def lose_home(world: World) -> None:
    world.store.restore_home("totals", None)


def go_back(world: World) -> None:
    """Bring back the store of an earlier time."""
    copy = world.store.copy_all()
    world.service.feed("numbers", Int64Value(value=1), partition=0)
    world.service.run_until_caught_up()
    world.store.restore_all(copy)


def forget_locations(world: World) -> None:
    known = world.store.locations("totals")
    assert known is not None
    world.store.forget_locations("totals", known)


def be_killed(world: World) -> None:
    world.alive = False


def be_killed_with_a_lag(world: World) -> None:
    world.alive = False
    world.service.feed("numbers", Int64Value(value=1), partition=0)


def be_killed_in_a_plan(world: World) -> None:
    world.alive = False
    world.set_header(lambda header: replace(header, begun_id="half", cursor=b""))


def be_half_forgotten(world: World) -> None:
    home, _ = world.store.home("totals")
    assert home is not None
    world.store.set_home("totals", home, replace(home, owner=json.dumps({FORGETS: "totals"})))


def mix_histories(world: World) -> None:
    """A header of a plan that was never sealed: another history."""
    world.alive = False
    world.set_header(lambda header: replace(header, plan_id="another"))


def make_weak(world: World) -> None:
    world.store.check = lambda: ["appendonly is off"]  # type: ignore[method-assign]


def remark(world: World) -> None:
    world.store.remarks = lambda: ["one {node} answers"]  # type: ignore[method-assign]


def lose_plan(world: World) -> None:
    copy = world.store.copy_home("totals")
    copy.plans.clear()
    world.store.restore_home("totals", copy)


def take_no_writes(world: World) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise Unavailable("OOM command not allowed when used memory > 'maxmemory'")

    world.store.write = refuse  # type: ignore[method-assign]


def be_away_for_days(world: World) -> None:
    world.alive = False
    world.later_ms = 4 * 86_400_000


def skip_one(world: World) -> None:
    world.service.log.append("numbers", 0, b"no envelope")
    world.service.run_until_caught_up()


PLANTED: dict[str, Callable[[World], object]] = {
    "missing-input": lambda world: delete(world, "numbers"),
    "missing-output": lambda world: delete(world, "sums"),
    "missing-dead-letters": lambda world: delete(world, "totals.dead-letters"),
    "few-partitions": lambda world: setattr(world, "flow", totals(partitions=2)),
    "one-replica": lambda world: world.configure("sums", replicas=1),
    "min-insync": lambda world: world.configure("sums", min_insync_replicas=1),
    "few-replicas": lambda world: world.configure("sums", replicas=1, min_insync_replicas=2),
    "small-records": lambda world: world.configure("sums", max_message_bytes=1_000),
    "compacted-dead-letters": lambda world: world.configure("totals.dead-letters", compacted=True),
    "failed-records": skip_one,
    "no-writes": take_no_writes,
    "write-caching": lambda world: world.configure("sums", write_caching=True),
    "compacted-input": lambda world: world.configure("numbers", compacted=True),
    "short-retention": lambda world: world.configure("numbers", retention_ms=3_600_000),
    "small-retention": lambda world: world.configure("numbers", retention_bytes=1_000),
    "refuses-times": lambda world: world.configure("numbers", before_max_ms=1_000),
    "recreated-input": recreate,
    "another-cluster": speak_to_another,
    "lost-records": lose_offsets,
    "truncated-input": lambda world: world.service.log.truncate_after("numbers", 0, 3),
    "clock-ahead": lambda world: setattr(world, "later_ms", -4_102_444_800_000 - 10**9),
    "no-commits": forget_commits,
    "foreign-commit": commit_by_another,
    "commits-expire": be_away_for_days,
    "clocks-differ": lambda world: setattr(world.store, "ahead_ms", -90_000),
    "plan-lost": lose_plan,
    "half-forgotten": be_half_forgotten,
    "cell-lost": lambda world: world.store.restore_part("totals", "total", 0),
    "states-lost": lambda world: world.set_header(lambda header: replace(header, lost="a row is gone")),
    "store-empty": lose_home,
    "store-behind": go_back,
    "stale-claim": be_killed,
    "behind": be_killed_with_a_lag,
    "open-plan": be_killed_in_a_plan,
    "inconsistent": mix_histories,
    "home-behind": lambda world: world.set_header(lambda header: replace(header, number=header.number + 5)),
    "not-located": forget_locations,
    "PartitionsMismatch": lambda world: setattr(world, "flow", totals(partitions=2)),
    "ChangedType": lambda world: setattr(world, "flow", totals(state=StringValue)),
    "weak-store": make_weak,
    "store-remark": remark,
    "disk-full": lambda world: setattr(
        world, "machine", replace(WELL, disks=(Disk(Path("/srv"), 1 << 20, 1 << 41),))
    ),
    "no-temporary-directory": lambda world: setattr(world, "machine", replace(WELL, temporary=False)),
    "open-files": lambda world: setattr(world, "machine", replace(WELL, open_files=256)),
    "memory": lambda world: setattr(world, "machine", replace(WELL, memory_free=1 << 20)),
    "no-java": lambda world: setattr(world, "machine", replace(WELL, java="")),
    "old-java": lambda world: setattr(world, "machine", replace(WELL, java_version=11)),
    "no-numpy": lambda world: setattr(world, "machine", replace(WELL, numpy=False)),
    "old-python": lambda world: setattr(world, "machine", replace(WELL, python=(3, 10))),
}


@pytest.mark.parametrize("check", PLANTED)
def test_a_planted_fault_is_found(world: World, check: str) -> None:
    PLANTED[check](world)
    findings = world.examine()
    assert check in {finding.check for finding in findings}, findings
    assert all(finding.text and finding.subject for finding in findings)


AT_A_REPUBLISHER: dict[str, Callable[[World], object]] = {
    "place-lost": lambda world: world.service.log.delete_group("doubled"),
    "short-commits": lambda world: world.service.log.set_commits_kept(3_600_000),
}


@pytest.mark.parametrize("check", AT_A_REPUBLISHER)
def test_a_place_that_only_commits_keep_may_be_forgotten(republisher: World, check: str) -> None:
    AT_A_REPUBLISHER[check](republisher)
    assert [finding.check for finding in republisher.examine()] == [check]


AT_A_TRANSACTIONAL_FLOW: dict[str, Callable[[World], object]] = {
    "missing-markers": lambda world: world.service.log.delete("totals.published"),
    "expiring-markers": lambda world: world.configure("totals.published", compacted=False),
}


@pytest.mark.parametrize("check", AT_A_TRANSACTIONAL_FLOW)
def test_what_a_transactional_flow_needs_is_looked_at(check: str) -> None:
    world = World.make(totals(transactional=True))
    assert world.examine() == []
    AT_A_TRANSACTIONAL_FLOW[check](world)
    assert [finding.check for finding in world.examine()] == [check]
    world.service.log.clear()


def test_a_live_run_of_a_transactional_flow_is_not_fenced() -> None:
    world = World.make(totals(transactional=True))
    assert world.diagnose() == []
    world.work()
    fences = [write for write in world.service.script.written if write.startswith("fence")]
    assert fences == ["fence of totals/0"], "the run had no need to fence anybody again"
    world.service.log.clear()


def test_each_kind_of_finding_is_planted() -> None:
    elsewhere = {"held-back", "unreachable", "no-engine", "newer-revision", "unknown-revision"}
    # A log in memory has no logins and no groups.
    of_servers = {"no-right", "unknown-rights", "not-tried", "group-members"}
    assert (
        KINDS.keys() - PLANTED.keys() - AT_A_REPUBLISHER.keys() - AT_A_TRANSACTIONAL_FLOW.keys()
        == elsewhere | of_servers
    )


def by_minutes() -> CompiledFlow:
    flow = Flow("totals", state_partitions=2, poison="dead_letter")
    windows = flow.source("numbers", Int64Value).windowed(
        "minutes", Tumbling(60_000), key=key_of, state=Int64Value, fold=add
    )
    windows.to("sums", partitions=1)
    return flow.compile()


def test_the_partition_that_holds_back_event_time_is_named() -> None:
    world = World.make(by_minutes())
    assert world.examine() == []
    world.service.feed("numbers", Int64Value(value=1), partition=1, timestamp_ms=2_000)
    for minute in range(3):
        world.service.feed("numbers", Int64Value(value=1), partition=0, timestamp_ms=minute * 60_000)
    world.service.batch()
    world.later_ms = 120_000
    (finding,) = world.examine()
    world.service.log.clear()
    assert (finding.check, finding.subject) == ("held-back", "numbers[1]")


@pytest.mark.parametrize("append_time", [True, False])
def test_a_record_of_the_future_names_whose_clock_is_wrong(world: World, append_time: bool) -> None:
    world.configure("numbers", append_time=append_time)
    PLANTED["clock-ahead"](world)
    texts = [finding.text for finding in world.examine() if finding.check == "clock-ahead"]
    assert texts
    assert all(text.endswith("at the broker" if append_time else "at the producer") for text in texts)


def test_a_cluster_that_the_flow_has_left_is_one_finding() -> None:
    clusters = Clusters()
    clusters.feed("ant bee")
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    clusters.fail_over()
    clusters.feed("cow")
    flow, stores = clusters.flow.compile(), {"": clusters.store}

    def named(log: MemoryLog) -> set[str]:
        followed = follow_failover(log, stores, flow)
        facts = Gathering(flow, followed, stores, lambda: 0, lambda _: None).gather()
        return {finding.check for finding in examine(facts) if finding.severity == "error"}

    left, where_it_is = named(clusters.first), named(clusters.second)
    assert left - where_it_is == {"another-cluster"}
    assert not where_it_is & {"unreachable", "another-cluster"}


def test_a_broker_that_is_away_is_one_finding(world: World) -> None:
    world.service.log.set_down(down=True)
    assert [finding.check for finding in world.examine()] == ["unreachable"]


def killed_after_the_seal(flow: CompiledFlow) -> World:
    """It has sealed a plan that reads offsets 5 to 9 of both partitions, and published nothing of it."""
    world = World.make(flow)
    for number in range(10):
        world.service.feed("numbers", Int64Value(value=number), partition=number % 2, timestamp_ms=1_000)
    world.service.crash(step=5)
    world.service.run_until_crash()
    world.alive = False
    return world


@pytest.mark.parametrize(
    ("break_it", "check", "error"),
    [
        (lambda log: log.truncate_before("numbers", 0, 6), "lost-records", LostOffsets),
        (lambda log: log.truncate_after("numbers", 0, 7), "truncated-input", TruncatedInput),
        (lambda log: log.recreate("numbers", 2, keep_commits=True), "recreated-input", RecreatedTopic),
        (lambda log: log.recreate("numbers", 1, keep_commits=True), "recreated-input", RecreatedTopic),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_inputs_of_an_open_plan_are_needed(
    break_it: Callable[[MemoryLog], object], check: str, error: type[ChainError], *, raw: bool
) -> None:
    world = killed_after_the_seal(totals(raw=raw))
    assert not {finding for finding in world.examine() if finding.severity == "error"}
    break_it(world.service.log)
    found = {finding.check for finding in world.examine() if finding.severity == "error"}
    assert check in found
    with pytest.raises(error):
        world.service.restart()
    world.service.log.clear()


@pytest.mark.parametrize("begin", [5, 10])
def test_records_that_an_open_plan_has_left_may_be_gone(begin: int) -> None:
    """Those before it always, and its own when it is finished."""
    world = killed_after_the_seal(totals())
    if begin > 5:
        world.service.run_until_caught_up()
    world.service.log.truncate_before("numbers", 0, begin)
    assert not {finding for finding in world.examine() if finding.severity == "error"}
    world.service.restart()
    world.service.log.clear()


def test_a_raw_input_that_was_created_again_is_another_root() -> None:
    world = World.make(totals(raw=True))
    recreate(world)
    assert not {finding for finding in world.examine() if finding.severity == "error"}
    world.service.restart()
    world.service.log.clear()


def test_records_that_wait_for_event_time_are_needed() -> None:
    world = World.make(by_minutes())
    for minute in range(3):
        world.service.feed("numbers", Int64Value(value=1), partition=0, timestamp_ms=minute * 60_000)
    world.service.batch()
    world.service.service = None
    world.service.log.truncate_before("numbers", 0, 8)  # all of them were read, and two wait
    found = {finding.check for finding in world.examine() if finding.severity == "error"}
    assert found == {"lost-records"}
    with pytest.raises(LostOffsets):
        world.service.restart()
    world.service.log.clear()


@pytest.mark.parametrize(
    ("break_it", "check", "error"),
    [
        (lose_offsets, "lost-records", LostOffsets),
        (lambda world: world.service.log.truncate_after("numbers", 0, 3), "truncated-input", TruncatedInput),
        (recreate, "recreated-input", RecreatedTopic),
    ],
)
def test_a_flow_without_stages_needs_what_comes_after_its_commits(
    republisher: World, break_it: Callable[[World], object], check: str, error: type[ChainError]
) -> None:
    break_it(republisher)
    found = {finding.check for finding in republisher.examine() if finding.severity == "error"}
    assert found == {check}
    republisher.service.service = None
    with pytest.raises(error):
        republisher.service.batch()
