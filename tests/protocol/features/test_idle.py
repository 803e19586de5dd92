"""Goal: a writer is marked idle when no record of it can be under way any more, and not a moment before.

Method: a topic behind two republishers. The test sets their commits by hand, and what is known of the writer, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.features.decision import CaughtUp
from sqe_chain.features.event_times import KnownTimes
from sqe_chain.features.waiting import IdleWriters
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.retrying import RetryingLog
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Bounds, Commit, TopicPartition
from sqe_chain.stages import Tumbling
from sqe_chain.task.event_times import ORIGIN, EventTimes, Hop, TopicWriter
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of

HEARD_MS, IDLE_MS = 100_000, 5_000
SILENT_MS = HEARD_MS + IDLE_MS
HOPS = ("first", "raw"), ("second", "mid")
WRITER = "second/in"


class Silent:
    """Two records are in each partition of `raw` and in `mid`, one in `in`; republishers have committed all of it."""

    def __init__(self) -> None:
        flow = Flow("windows", state_partitions=1)
        flow.source("in", StringValue).windowed(
            "w", Tumbling(1_000), key=lambda _: "k", state=StringValue, fold=lambda state, value: None
        ).to("results", partitions=1)
        self.found = Rehearsal(flow, settings=Settings(idle_ms=IDLE_MS))
        self.log = self.found.log
        self.log.create_topic("raw", 2)
        self.log.create_topic("mid", 1)
        for topic, partition, count in (("raw", 0, 2), ("raw", 1, 2), ("mid", 0, 2), ("in", 0, 1)):
            for _ in range(count):
                self.log.append(topic, partition, b"")
        self.commit("first", "raw", 2, 2)
        self.commit("second", "mid", 2)
        self.idle = IdleWriters(environment_of(self.found))
        self.heard_ms = HEARD_MS

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        self.log.commit(group, {(topic, at): Commit(offset, "") for at, offset in enumerate(offsets)})

    def look(
        self,
        clock_ms: int = SILENT_MS,
        *,
        stop: int = 1,
        end: int = 1,
        at_end: bool = False,
        origin: bool = False,
    ) -> CaughtUp:
        times = EventTimes(self.heard_ms)
        if not origin:
            times.writers[WRITER] = TopicWriter(self.heard_ms, None, 1, HOPS)
        known = KnownTimes({("in", 0): times}, 0)
        bounds = {HERE: Bounds(0, end)}
        return self.idle.find(known, {HERE: stop}, bounds, clock_ms, SEEN, at_end=at_end)


HERE = "in", 0
SEEN = ((HEARD_MS, 700), (HEARD_MS + 1, 900))
"""The latest event times that were known by two clocks."""
GONE: CaughtUp = {HERE: {WRITER: 701}}
WAITED_FOR: CaughtUp = {HERE: {}}
AT_END: CaughtUp = {HERE: {WRITER: None}}


def test_it_is_marked_idle_when_it_has_been_silent_for_long_enough() -> None:
    assert Silent().look() == GONE
    assert Silent().look(SILENT_MS - 1) == WAITED_FOR
    assert Silent().look(HEARD_MS, at_end=True) == AT_END, "no more input is expected"


def test_it_is_taken_to_be_as_far_as_all_others_were_before_the_idle_time() -> None:
    """Its records are appended at most `idle_ms` after everything else of their time."""
    assert Silent().look(SILENT_MS + 1) == {HERE: {WRITER: 901}}
    assert Silent().look(SILENT_MS + 60_000) == {HERE: {WRITER: 901}}


def test_what_nobody_republished_needs_no_commits() -> None:
    assert Silent().look(origin=True) == {HERE: {ORIGIN: 701}}
    assert Silent().look(SILENT_MS - 1, origin=True) == WAITED_FOR


def test_a_partition_that_is_not_read_to_its_end_proves_nothing() -> None:
    assert Silent().look(stop=1, end=2) == {}


@pytest.mark.parametrize(
    ("group", "offsets"), [("first", (1, 2)), ("first", (2, 1)), ("first", (1, 1)), ("second", (1,))]
)
def test_it_is_waited_for_while_any_republisher_is_behind_in_any_partition(
    group: str, offsets: tuple[int, ...]
) -> None:
    silent = Silent()
    topic = dict(HOPS)[group]
    silent.commit(group, topic, *offsets)
    assert silent.look() == silent.look(at_end=True) == WAITED_FOR
    silent.commit(group, topic, *(2 for _ in offsets))
    assert silent.look() == GONE


def test_a_partition_without_a_commit_counts_as_not_passed_on() -> None:
    silent = Silent()
    silent.log.delete_group("first")
    silent.commit("first", "raw", 2)
    assert silent.look() == WAITED_FOR


def test_a_republisher_without_any_commit_does_not_exist_any_more() -> None:
    silent = Silent()
    silent.log.delete_group("first")
    assert silent.look() == GONE


def test_a_topic_that_is_gone_holds_nothing_back() -> None:
    silent = Silent()
    silent.commit("second", "mid", 0)
    silent.log.delete("mid")
    assert silent.look() == GONE


def test_only_what_was_there_when_it_fell_silent_has_to_be_passed_on() -> None:
    """Else a topic into which others write all the time would hold it back without end."""
    silent = Silent()
    silent.commit("first", "raw", 1, 2)
    assert silent.look() == WAITED_FOR
    silent.log.append("raw", 0, b"later")
    silent.commit("first", "raw", 2, 2)
    assert silent.look() == GONE


def test_the_second_is_asked_for_what_is_there_when_the_first_has_finished() -> None:
    silent = Silent()
    silent.commit("first", "raw", 1, 2)
    assert silent.look() == WAITED_FOR
    silent.log.append("mid", 0, b"what the first has passed on last")
    silent.commit("first", "raw", 2, 2)
    assert silent.look() == WAITED_FOR
    silent.commit("second", "mid", 3)
    assert silent.look() == GONE


def test_what_was_passed_on_last_may_have_arrived_meanwhile() -> None:
    """Republishers have committed; what they published before that is in the partition by now, and not yet read."""
    silent = Silent()
    silent.log.append("in", 0, b"what was on its way")
    assert silent.look(stop=1, end=1) == WAITED_FOR


def test_a_writer_with_a_new_record_has_to_be_silent_again_and_is_checked_again() -> None:
    silent = Silent()
    assert silent.look() == GONE
    silent.heard_ms += 60_000
    assert silent.look(SILENT_MS + 1_000) == WAITED_FOR
    silent.log.append("raw", 1, b"more")
    assert silent.look(SILENT_MS + 60_000) == WAITED_FOR
    silent.commit("first", "raw", 2, 3)
    assert silent.look(SILENT_MS + 60_000) == {HERE: {WRITER: 901}}


def test_a_writer_has_been_silent_since_it_was_heard_of_in_any_partition() -> None:
    """In whatever order a plan names them."""

    def heard(at_ms: int) -> EventTimes:
        times = EventTimes(0)
        times.writers[WRITER] = TopicWriter(at_ms, None, 1, HOPS)
        return times

    for first, second in ((50, 100), (100, 50)):
        known = KnownTimes({("in", 0): heard(first), ("in", 1): heard(second)}, 0)
        assert known.at(("in", 2), {("in", 2): {}}, 0).silent_since() == {WRITER: 100}


def silent_in(env: Environment, hops: Mapping[int, tuple[Hop, ...]]) -> CaughtUp:
    """A look at silent partitions of `in`, all read to their ends, whose writers' records have come by these ways."""
    known = dict[TopicPartition, EventTimes]()
    for partition, way in hops.items():
        times = EventTimes(HEARD_MS)
        times.writers[f"{way[-1][0]}/{partition}"] = TopicWriter(HEARD_MS, None, None, way)
        known["in", partition] = times
    offsets, bounds = dict.fromkeys(known, 1), dict.fromkeys(known, Bounds(0, 1))
    return IdleWriters(env).find(KnownTimes(known, 0), offsets, bounds, SILENT_MS, SEEN)


class Asked(MemoryLog):
    """A broker whose answers are counted; `second` is called before the commits of that republisher are given."""

    def __init__(self, silent: Silent) -> None:
        super().__init__(silent.log.name)
        self.asked = Counter[str]()
        self.second: Callable[[], object] = lambda: None

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        self.asked["bounds"] += 1
        return super().bounds(partitions)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        self.asked["committed"] += 1
        if group == "second":
            self.second()
        return super().committed(group, partitions)


def asking(silent: Silent, partitions: int) -> tuple[Environment, Asked]:
    silent.log.grow("in", partitions)
    for partition in range(1, partitions):
        silent.log.append("in", partition, b"")
    env = environment_of(silent.found)
    log = Asked(silent)
    env.log = RetryingLog(log, env.retry)
    return env, log


def test_brokers_are_asked_as_often_for_many_silent_partitions_as_for_one() -> None:
    counts = []
    for partitions in (1, 50):
        env, log = asking(Silent(), partitions)
        assert len(silent_in(env, dict.fromkeys(range(partitions), HOPS))) == partitions
        counts.append(log.asked)
    assert counts[0] == counts[1]


def test_a_republisher_behind_another_one_is_asked_for_what_was_there_after_that_one() -> None:
    """Its topic was asked for before, for another partition: what the one before has passed on since is not in that answer."""
    silent = Silent()
    env, log = asking(silent, 2)

    def publish() -> None:
        log.second = lambda: None
        silent.log.append("raw", 0, b"what the second passes on into the topic of the first")

    log.second = publish
    there, back = HOPS, HOPS[::-1]
    found = silent_in(env, {0: there, 1: back})
    assert found["in", 0]
    assert not found["in", 1]
