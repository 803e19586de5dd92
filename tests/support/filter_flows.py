"""One flow with every filter in a branch of its own, as chaos tests run it.

    {plant}.direct -relay-> {plant}.relayed; filters reads both, so that all is said twice, by two paths.

The environment says the rest; see `chaos_flows`.
"""

from __future__ import annotations

import os

from google.protobuf.wrappers_pb2 import Int64Value

from services._proto.fastening_pb2 import Fastening
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling, WindowResult

HOUR_MS = 3_600_000
WINDOW_MS = 10_000
END = "end"
"""Begin of the names of robots that only move event time on."""
BRANCHES = ("replays", "roots", "stale", "by-id", "by-key", "distinct", "windows")

_PLANT = os.environ.get("CHAOS_PLANT", "chaos")


def robot_of(fastening: Fastening) -> str:
    return fastening.robot


def id_of(fastening: Fastening) -> str:
    return f"{fastening.robot} {fastening.report}"


def report_of(fastening: Fastening) -> int:
    return fastening.report


def is_heartbeat(fastening: Fastening) -> bool:
    return fastening.robot.startswith(END)


def count(total: Int64Value, _: object) -> None:
    total.value += 1


def add_window(total: Int64Value, result: WindowResult) -> None:
    total.value += Int64Value.FromString(result.state).value


relay = Flow(f"{_PLANT}-relay")
relay.source(f"{_PLANT}.direct", Fastening).to(f"{_PLANT}.relayed", key=robot_of, partitions=2)

filters = Flow(f"{_PLANT}-filters", state_partitions=2)
_said = filters.source([f"{_PLANT}.direct", f"{_PLANT}.relayed"], Fastening)
_by_robot, _by_id = _said.key_by(robot_of), _said.key_by(id_of)
_kept = {
    "replays": _said.drop_replays("replays"),
    "roots": _by_robot.drop_replays("roots", by="key"),
    "stale": _by_robot.drop_stale("stale", sequence=report_of, scope="key"),
    "by-id": _said.deduplicate("by-id", id_of, HOUR_MS),
    "by-key": _by_id.deduplicate_by_key("by-key", HOUR_MS),
    "distinct": _by_id.distinct("distinct", Tumbling(WINDOW_MS), grace_ms=HOUR_MS),
}
for _name, _filter in _kept.items():
    _filter.aggregate(f"n-{_name}", key=robot_of, state=Int64Value, fold=count)
_windows = _kept["by-id"].windowed(
    "windows",
    Tumbling(WINDOW_MS),
    key=robot_of,
    state=Int64Value,
    fold=count,
    lateness_ms=WINDOW_MS,
    heartbeat=is_heartbeat,
)
_windows.aggregate("n-windows", key=lambda result: result.key, state=Int64Value, fold=add_window)
_kept["by-id"].dropped().to(f"{_PLANT}.dropped", partitions=1)

if "CHAOS_TRAP" in os.environ:
    from tests.support.signal_at_event import set_trap

    set_trap(os.environ["CHAOS_TRAP"])
