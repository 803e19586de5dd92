"""The consumer on Quix Streams, exactly once, in an environment of its own: this file imports nothing of the project.

python app.py BOOTSTRAP GROUP SOURCE TARGET STATE_DIRECTORY
"""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application, State


def add(item: dict[str, Any], state: State) -> dict[str, int]:
    """Count a fact of a robot."""
    total = state.get("total") or {"events": 0, "sum": 0}
    total["events"] += 1
    total["sum"] += item["amount"]
    state.set("total", total)
    return total


def main(arguments: list[str]) -> None:
    """Run it."""
    bootstrap, group, source, target, directory = arguments
    app = Application(
        bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        commit_interval=1.0,
        processing_guarantee="exactly-once",
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
        producer_extra_config={"transaction.timeout.ms": 10_000},
        state_dir=directory,
    )
    items = app.dataframe(app.topic(source, value_deserializer="json", key_deserializer="str"))
    items.apply(add, stateful=True).to_topic(app.topic(target, value_serializer="json", key_serializer="str"))
    app.run()


if __name__ == "__main__":
    main(sys.argv[1:])
