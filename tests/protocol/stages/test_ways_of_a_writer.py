"""Goal: a republisher that reads several topics is waited for while it is behind on any of them.

Method: it has passed on one topic to its end and is down. Of the other, a record is still to come that is earlier than all that
is known. The reader runs as if no more input is expected.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.features.event_times import KnownTimes
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.task.event_times import EventTimes
from sqe_chain.testing.rehearsal import Rehearsal

HOUR_MS = 3_600_000
NUMBERS = itertools.count()
Event = dict[str, Any]


def add(total: Int64Value, _: Event) -> None:
    total.value += 1


def key_of(event: Event) -> str:
    return str(event["key"])


@pytest.mark.few(16)  # two defects of the past showed in few of them
@pytest.mark.parametrize("behind", ["a", "b"])
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_what_comes_by_another_topic_is_waited_for(
    behind: str, partitions: int, hops: int, *, in_place: bool
) -> None:
    """With two partitions, each knows one of the two ways only. Without a shuffle, each state partition waits for its own one."""
    log = MemoryLog(f"ways-{next(NUMBERS)}")
    topic, relays = ["a", "b"], list[Rehearsal]()
    for hop in range(hops):
        relay = Flow(f"relay-{hop}")
        relay.source(topic, dict, raw=hop == 0).to(f"hop-{hop}", key=key_of, partitions=partitions)
        relays.append(Rehearsal(relay, partitions={"a": 1, "b": 1}, log=log))
        topic = [f"hop-{hop}"]
    flow = Flow("hours", state_partitions=partitions if in_place else 1)
    windows = flow.source(topic, dict).windowed(
        "windows", Tumbling(HOUR_MS), key=key_of, state=Int64Value, fold=add, guard=None, retention_ms=10**12
    )
    windows.to("results", partitions=1)
    windows.dropped().to("late", partitions=1)
    service = Rehearsal(flow, log=log)
    ahead = "b" if behind == "a" else "a"
    keys = {
        name: next(
            key for key in map(str, range(9)) if partition_of(key.encode(), partitions) == place % partitions
        )
        for place, name in enumerate((ahead, behind))
    }

    def append(topic: str, hour: int, key: str) -> None:
        log.append(topic, 0, json.dumps({"key": key}).encode(), key.encode(), None, hour * HOUR_MS)

    def pass_on() -> None:
        for one in relays:
            one.batch()
        service.batch()

    for name in (behind, ahead):
        append(name, 0, keys[name])
    pass_on()
    append(ahead, 10, keys[ahead])
    pass_on()
    append(behind, 5, keys[ahead])
    for _ in range(3):
        service.batch(at_end=True)
    append(ahead, 12, keys[ahead])
    for one in (*relays, service):
        one.run_until_caught_up()
    assert not log.records("late")
    hours = sorted(
        window.span.start_ms // HOUR_MS
        for window in service.windows("windows")
        for _ in range(window.state.value)
    )
    assert hours == [0, 0, 5, 10, 12]


def test_each_partition_learns_all_ways_by_which_a_writer_came_to_the_topic() -> None:
    """Two partitions have met the writer, each by one way; a third one has not. After a batch all of them know both ways."""
    times = dict[tuple[str, int], EventTimes]()
    for partition, way in enumerate((("relay", "a"), ("relay", "b"))):
        times["hop", partition] = EventTimes(0)
        times["hop", partition].introduce("relay/hop", (way,))
        times["hop", partition].observe("relay/hop", [HOUR_MS], HOUR_MS)
    known = KnownTimes(times, 0)
    for partition in range(3):
        tp = "hop", partition
        assert set(known.at(tp, {tp: {}}, 1).writers["relay/hop"].hops) == {("relay", "a"), ("relay", "b")}
