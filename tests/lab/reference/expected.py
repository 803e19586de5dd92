"""The states that must be there after a plan, and the inputs that they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tests.lab.reference.facts import Unit
from tests.lab.reference.lanes import LanePosition
from tests.lab.reference.plans import Coordinates, StoredPlan, TopicPartition

Cells = dict[str, dict[int, dict[bytes, Any]]]
StageIds = dict[tuple[str, str], list[str]]
Span = tuple[str, int]


class Record(Protocol):
    """A record of a log, as the broker keeps it."""

    @property
    def coordinates(self) -> Coordinates: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...


class TableRow(NamedTuple):
    """One version of a row.

    Attributes:
        number: of the plan that has written it.
        key: its partition key.
        slot: its row key.
        id: of the unit.
    """

    number: int
    key: str
    slot: str
    id: str


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
        excluded: inputs that the plan must skip.
        may_exclude: inputs that the plan may skip.
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
    waiting: tuple[tuple[str, Record], ...] = ()
    needed: dict[TopicPartition, int] = field(default_factory=dict)
    plan: StoredPlan | None = None
