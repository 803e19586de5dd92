"""The flow that tests run by several readers as processes: it kills itself at the point of CHAOS_SIGNAL."""

from __future__ import annotations

import os

import msgspec

from sqe_chain import Flow
from tests.support.signal_at_event import install_signal

PREFIX = os.environ.get("CHAOS_PREFIX", "readers")


class Measured(msgspec.Struct):
    """What a robot has measured."""

    robot: str
    number: int


def flow_into(prefix: str, at: str | None) -> Flow:
    """The flow of one test.

    Args:
        prefix: of all names.
        at: where the table lives; None: at SQE_CHAIN_TABLES.
    """
    flow = Flow(f"{prefix}-table", state_partitions=2)
    source = flow.source(f"{prefix}.measured", Measured, codec="json", raw=True)
    source.ingest("measured", partition_key="robot", row_key="number", at=at)
    return flow


readings = flow_into(PREFIX, None)

if signal := os.environ.get("CHAOS_SIGNAL"):
    install_signal(signal)
