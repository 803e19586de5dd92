"""The consumer on Bytewax, with recovery, in an environment of its own: this file imports nothing of the project.

Run it with `python -m bytewax.run`. Its settings are in the environment: STORM_KAFKA, STORM_SOURCE, STORM_TARGET.
"""

from __future__ import annotations

import json
import os

from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow

Total = tuple[int, int]


def add(total: Total | None, amount: int) -> tuple[Total, Total]:
    """Count a fact of a robot."""
    events, found = total or (0, 0)
    added = (events + 1, found + amount)
    return added, added


def message(pair: tuple[str, Total]) -> KafkaSinkMessage[bytes, bytes]:
    """The total of a robot."""
    robot, (events, total) = pair
    return KafkaSinkMessage(robot.encode(), json.dumps({"events": events, "sum": total}).encode())


brokers = [os.environ["STORM_KAFKA"]]
flow = Dataflow("totals")
read = kop.input("items", flow, brokers=brokers, topics=[os.environ["STORM_SOURCE"]])
amounts = op.map("amount", read.oks, lambda one: (one.key.decode(), json.loads(one.value)["amount"]))
totals = op.stateful_map("add", amounts, add)
kop.output(
    "totals",
    op.map("message", totals, message),
    brokers=brokers,
    topic=os.environ["STORM_TARGET"],
)
