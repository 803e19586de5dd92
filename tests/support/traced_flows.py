"""The flows of the tests of tracing, as processes: raw -relay-> sales -totals-> totals of each shop, with their traces."""

from __future__ import annotations

import os
from typing import Any

from sqe_chain import Flow
from tests.support.signal_at_event import install_signal

PREFIX = os.environ.get("CHAOS_PREFIX", "traced")


def add(total: dict[str, int], sale: dict[str, Any]) -> None:
    total["sum"] = total.get("sum", 0) + sale["amount"]


relay = Flow(f"{PREFIX}-relay", traces=True)
relay.source(f"{PREFIX}.raw", dict, raw=True).to(
    f"{PREFIX}.sales", key=lambda sale: sale["shop"], partitions=2
)

totals = Flow(f"{PREFIX}-totals", state_partitions=2, traces=True)
totals.source(f"{PREFIX}.sales", dict).aggregate(
    "total", state=dict, fold=add, key=lambda sale: sale["shop"]
).changes().to(f"{PREFIX}.totals", partitions=1)

if signal := os.environ.get("CHAOS_SIGNAL"):
    install_signal(signal)
