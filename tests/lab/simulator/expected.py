"""What all states must be after a plan, and the inputs of which that is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqe_chain.adapters.memory import MemoryMessage
from sqe_chain.ports import TopicPartition
from sqe_chain.protocol.plan import Plan
from tests.lab.simulator.facts import Unit
from tests.lab.simulator.lanes import LanePosition
from tests.lab.simulator.table_rows import TableRow

Cells = dict[str, dict[int, dict[bytes, Any]]]
StageIds = dict[tuple[str, str], list[str]]
Span = tuple[str, int]
Coordinates = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Input:
    """A decoded record; `units` is None when it cannot be decoded."""

    lane_position: LanePosition
    units: tuple[Unit, ...] | None
    timestamp_ms: int
    may_fail: bool = False


@dataclass(slots=True)
class ExpectedStates:
    """What all states must be after one plan.

    Attributes:
        ends: input partition -> offset after the last record read.
        marks: (input partition, lane) -> position of the last message accepted.
        ids: (stage, key) -> ids, in order.
        cells: stage -> cell -> key -> state, serialized.
        seen: ids that a filter has let through.
        windows: (key, start) -> ids that belong to that window.
        emitted: ids folded by this plan.
        rows: state partition -> all versions of all rows of the table, in the order in which they are written.
        excluded: inputs that the plan must exclude.
        may_exclude: inputs that the plan may exclude.
        waiting: records that were read and wait for event time, each with the id of its topic.
        needed: input partition -> offset of the first of them that was not accepted before.
        plan: the plan.
    """

    ends: dict[TopicPartition, int] = field(default_factory=dict)
    marks: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict)
    ids: StageIds = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    windows: dict[Span, tuple[str, ...]] = field(default_factory=dict)
    emitted: tuple[str, ...] = ()
    rows: dict[int, tuple[TableRow, ...]] = field(default_factory=dict)
    excluded: set[Coordinates] = field(default_factory=set)
    may_exclude: set[Coordinates] = field(default_factory=set)
    waiting: tuple[tuple[str, MemoryMessage], ...] = ()
    needed: dict[TopicPartition, int] = field(default_factory=dict)
    plan: Plan | None = None
