"""The workloads on Quix Streams, in an environment of its own: this file imports nothing of the project.

    python app.py WORKLOAD BOOTSTRAP GROUP SOURCE TARGET STATE_DIRECTORY

It runs until it is killed, and prints "first" with its first record. Values are dicts, as Quix makes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from quixstreams import Application, State
from quixstreams.dataframe import StreamingDataFrame
from quixstreams.models import Topic

COMMIT_INTERVAL_S = 1.0

Value = dict[str, Any]

begun = False


def print_first() -> None:
    """Print once that records arrive."""
    global begun  # noqa: PLW0603 - one line of one process
    if not begun:
        begun = True
        print("first", flush=True)


def both(value: Value) -> Iterator[Value]:
    """Two values with two keys: what was fastened, and what failed."""
    print_first()
    robot, joint, report = value["robot"], value["joint"], value["report"]
    yield {"robot": robot, "joint": joint, "report": report, "screws": value["fastened"]}
    yield {"robot": robot + "!", "joint": joint, "report": report, "screws": value["failed"]}


def added(state: State, value: Value) -> Value:
    """The new total of a key, which is stored."""
    total = state.get("total") or {"events": 0, "fastened": 0, "failed": 0}
    total["events"] += 1
    total["fastened"] += value["fastened"]
    total["failed"] += value["failed"]
    state.set("total", total)
    return total


def add(value: Value, state: State) -> Value:
    """Add a record to its robot."""
    print_first()
    return added(state, value)


def add_and_emit(value: Value, state: State) -> Value:
    """Add a record to its robot, and emit what it adds to the line."""
    print_first()
    added(state, value)
    return {"line": value["line"], "fastened": value["fastened"], "failed": value["failed"]}


def add_delta(value: Value, state: State) -> Value:
    """Add the values of one record to a line."""
    return added(state, value)


def flat_map(records: StreamingDataFrame, target: Topic) -> None:
    """W1."""
    records.apply(both, expand=True).to_topic(target, key=lambda value: value["robot"])


def fold(records: StreamingDataFrame, target: Topic) -> None:
    """W2. Quix has no cache in front of a state: it publishes each change."""
    records.apply(add, stateful=True).to_topic(target)


def two_stages(records: StreamingDataFrame, target: Topic) -> None:
    """W3."""
    deltas = records.apply(add_and_emit, stateful=True)
    lines = deltas.group_by("line", key_serializer="str", key_deserializer="str")
    lines.apply(add_delta, stateful=True).to_topic(target)


WORKLOADS: dict[str, Callable[[StreamingDataFrame, Topic], None]] = {
    "w1-flat-map": flat_map,
    "w2-fold": fold,
    "w3-two-stages": two_stages,
}


def main(arguments: list[str]) -> None:
    """Run one workload."""
    workload, bootstrap, group, source, target, state_directory = arguments
    app = Application(
        bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        commit_interval=COMMIT_INTERVAL_S,
        processing_guarantee="exactly-once",
        producer_extra_config={"compression.type": "lz4", "linger.ms": 5},
        state_dir=state_directory,
        auto_create_topics=True,
    )
    records = app.dataframe(app.topic(source, value_deserializer="json", key_deserializer="str"))
    WORKLOADS[workload](records, app.topic(target, value_serializer="json", key_serializer="str"))
    app.run()


if __name__ == "__main__":
    main(sys.argv[1:])
