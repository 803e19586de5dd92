"""The flows of a world, declared with the package."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.stages import Hopping, Sessions, Tumbling

SECOND_MS: Final = 1_000
SIZE_MS, DAY_MS, GAP_MS = 5 * SECOND_MS, 20 * SECOND_MS, 3 * SECOND_MS
OLDEST_MS: Final = 9 * SECOND_MS
"""How much older than its record a row may be, where records have places of their own."""
WINDOWS: Final = {
    "tumbling": Tumbling(SIZE_MS),
    "hopping": Hopping(SIZE_MS, SECOND_MS),
    "sessions": Sessions(GAP_MS),
}
Value = dict[str, Any]


class Shape(Struct, frozen=True):
    """What the flows of a world are.

    Attributes:
        kind: of the windows of rows; see `WINDOWS`.
        earliest: the place of an upload is its earliest row. Else it is its record's, and rows are older.
        exploding: a republisher is before the first flow with windows.
        passing: a republisher is between the two flows with windows.
        separate: the first one publishes an envelope for each row.
        by_start: days go by the beginning of a window; else by its place.
        poison: of the first flow. With another policy than `stop` some rows fail.
        raw: partitions of the topic of this name, as `middle`, `first` and `passed`.
        first_states: state partitions of the first flow; `second_states`: of the second one.
    """

    kind: str
    earliest: bool
    exploding: bool
    passing: bool
    separate: bool
    by_start: bool
    poison: PoisonPolicy
    raw: int
    middle: int
    first: int
    passed: int
    first_states: int
    second_states: int

    @property
    def slack_ms(self) -> int:
        """The lateness of the first windows."""
        return 0 if self.earliest else OLDEST_MS

    @property
    def after_end_ms(self) -> int:
        """How long after the end of a window its result has its place."""
        return self.slack_ms + (GAP_MS if self.kind == "sessions" else -1)


def rows_of(upload: Value) -> list[Value]:
    rows: list[Value] = upload["rows"]
    return rows


def earliest_of(upload: Value) -> int:
    return min(int(row["at"]) for row in rows_of(upload))


def number_of(row: Value) -> str:
    return str(row["n"])


def fails(row: Value) -> bool:
    return bool(row["n"] % 13 == 5)


def group_of(window: Value) -> str:
    return f"g{ord(window['k'][0]) % 2}"


def add(state: Value, row: Value) -> None:
    state.setdefault("ns", []).append(row["n"])


def add_or_fail(state: Value, row: Value) -> None:
    add(state, row)
    if fails(row):
        raise ValueError(f"row {row['n']} fails")


def add_later(state: Value, later: Value) -> None:
    state["ns"] += later["ns"]


def row_of(window: Any) -> Value:
    return {"k": window.key, "start": window.start_ms, "end": window.end_ms, "ns": sorted(window.state["ns"])}


def add_window(state: Value, window: Value) -> None:
    state.setdefault("windows", []).append([window["k"], window["start"], window["end"], window["ns"]])


def declared(shape: Shape) -> list[Flow]:
    """The flows, in the order in which records pass them; each is named after what it does."""
    flows, times = list[Flow](), {"timestamp": earliest_of} if shape.earliest else {}
    if shape.exploding:
        flow = Flow("explode")
        rows: Any = flow.source("raw", dict, raw=True, **times).flat_map(rows_of)  # type: ignore[call-overload]
        rows.to("middle", key="k", partitions=shape.middle, separate=shape.separate)
        flows.append(flow)
    flow = Flow("first", state_partitions=shape.first_states, poison=shape.poison)
    rows = (
        flow.source("middle", dict)
        if shape.exploding
        else flow.source("raw", dict, raw=True, **times).flat_map(rows_of)  # type: ignore[call-overload]
    )
    made = rows.windowed(
        "first",
        WINDOWS[shape.kind],
        key="k",
        state=dict,
        fold=add if shape.poison == "stop" else add_or_fail,
        merge=add_later if shape.kind == "sessions" else None,
        time="at",
        lateness_ms=shape.slack_ms,
    )
    made.dropped().to("first.dropped", partitions=1)
    made.map(row_of).to("first", partitions=shape.first, key="k", separate=shape.separate)
    flows.append(flow)
    if shape.passing:
        flow = Flow("pass")
        flow.source("first", dict).to("passed", partitions=shape.passed, key="k")
        flows.append(flow)
    flow = Flow("second", state_partitions=shape.second_states)
    own: Value = {}
    if shape.by_start:
        longest_ms = {"tumbling": 0, "hopping": SIZE_MS - SECOND_MS, "sessions": 100 * SECOND_MS}
        own = {"time": "start", "lateness_ms": longest_ms[shape.kind] + shape.slack_ms}
    windows: Any = flow.source("passed" if shape.passing else "first", dict)
    days = windows.windowed("second", Tumbling(DAY_MS), key=group_of, state=dict, fold=add_window, **own)
    days.dropped().to("second.dropped", partitions=1)
    days.to("second", partitions=2)
    return [*flows, flow]
