"""One flow with each filter in its own branch, as chaos tests run it.

    {prefix}.direct -relay-> {prefix}.relayed

The flow `filters` reads both topics, so it gets everything twice, by two paths. Environment variables: see
`chaos_flows`.
"""

from __future__ import annotations

import os

from google.protobuf.wrappers_pb2 import Int64Value

from services._proto.fastening_pb2 import Fastening
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling, WindowResult

HOUR_MS = 3_600_000
WINDOW_MS = 10_000
HEARTBEAT_PREFIX = "end"
"""Prefix of the names of robots whose reports only advance event time."""
BRANCHES = ("replays", "roots", "stale", "by-id", "by-key", "distinct", "windows")

_PREFIX = os.environ.get("CHAOS_PREFIX", "chaos")


def robot_of(fastening: Fastening) -> str:
    return fastening.robot


def id_of(fastening: Fastening) -> str:
    return f"{fastening.robot} {fastening.report}"


def report_of(fastening: Fastening) -> int:
    return fastening.report


def is_heartbeat(fastening: Fastening) -> bool:
    return fastening.robot.startswith(HEARTBEAT_PREFIX)


def count(total: Int64Value, _: object) -> None:
    total.value += 1


def add_window(total: Int64Value, result: WindowResult) -> None:
    total.value += Int64Value.FromString(result.state).value


relay = Flow(f"{_PREFIX}-relay")
relay.source(f"{_PREFIX}.direct", Fastening).to(f"{_PREFIX}.relayed", key=robot_of, partitions=2)

filters = Flow(f"{_PREFIX}-filters", state_partitions=2)
_reports = filters.source([f"{_PREFIX}.direct", f"{_PREFIX}.relayed"], Fastening)
_by_robot, _by_id = _reports.key_by(robot_of), _reports.key_by(id_of)
_filtered = {
    "replays": _reports.drop_replays("replays"),
    "roots": _by_robot.drop_replays("roots", by="key"),
    "stale": _by_robot.drop_stale("stale", sequence=report_of, scope="key"),
    "by-id": _reports.deduplicate("by-id", id_of, HOUR_MS),
    "by-key": _by_id.deduplicate_by_key("by-key", HOUR_MS),
    "distinct": _by_id.distinct("distinct", Tumbling(WINDOW_MS), grace_ms=HOUR_MS),
}
for _name, _filter in _filtered.items():
    _filter.aggregate(f"n-{_name}", key=robot_of, state=Int64Value, fold=count)
_windows = _filtered["by-id"].windowed(
    "windows",
    Tumbling(WINDOW_MS),
    key=robot_of,
    state=Int64Value,
    fold=count,
    lateness_ms=WINDOW_MS,
    heartbeat=is_heartbeat,
)
_windows.aggregate("n-windows", key=lambda result: result.key, state=Int64Value, fold=add_window)
_filtered["by-id"].dropped().to(f"{_PREFIX}.dropped", partitions=1)

if "CHAOS_SIGNAL" in os.environ:
    from tests.support.signal_at_event import install_signal

    install_signal(os.environ["CHAOS_SIGNAL"])
