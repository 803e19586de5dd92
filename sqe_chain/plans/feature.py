"""Features: what hangs on the seven steps. A flow that does not need one has no section, and no call, of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan, PlannedRange, Section
from sqe_chain.plans.results import BatchResult
from sqe_chain.ports import Bounds, Header, Rows, TopicInfo, TopicPartition
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import WAKING, Report, Sections

Infos = Mapping[str, TopicInfo]
Headers = Mapping[tuple[int, int], Header]
Offsets = Mapping[TopicPartition, int]
HeaderRows = Mapping[tuple[int, int], Rows]
"""(stage index, cell) -> rows that are written with its header."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a batch is cut from.

    Attributes:
        bounds: of the input partitions, as far as they may be read.
        limit: records of a batch, over all partitions.
        at_end: no more input is expected.
        final: the input is finite, and all of it is read: features close what is open.
    """

    bounds: Mapping[TopicPartition, Bounds]
    limit: int
    at_end: bool = False
    final: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch reads and does.

    Attributes:
        ranges: of every known partition; where nothing is new, all are empty.
        clock_ms: the batch's clock.
        silent: its outputs are not published.
        sealed: skipped inputs when it was sealed before, with these ranges; None: it is new.
        due: it is done although it reads nothing.
        at_end: partitions that it reads to their end; a redo need not know.
        times: what tasks begin with in each partition, where the flow goes by event time.
        notes: what features have decided of it, by class.
    """

    ranges: tuple[PlannedRange, ...]
    clock_ms: int = 0
    silent: bool = False
    sealed: tuple[Exclusion, ...] | None = None
    due: bool = False
    at_end: frozenset[TopicPartition] = frozenset()
    times: Mapping[TopicPartition, EventTimes] = field(default_factory=dict)
    notes: Sections = field(default_factory=Sections)

    @property
    def stops(self) -> dict[TopicPartition, int]:
        """Where the ranges end."""
        return {planned.tp: planned.stop for planned in self.ranges}

    @property
    def reads(self) -> bool:
        """Whether it reads anything."""
        return any(planned.reads for planned in self.ranges)

    @property
    def wakes(self) -> bool:
        """Whether stages may have something to do in all state partitions, though they get nothing."""
        return not WAKING.isdisjoint(self.notes)

    def with_stops(self, stops: Offsets) -> Part:
        """The same, with ranges that end elsewhere."""
        ranges = tuple(replace(planned, stop=stops.get(planned.tp, planned.stop)) for planned in self.ranges)
        return replace(self, ranges=ranges)

    def noting(self, *notes: object) -> Part:
        """The same, with notes instead of those of their classes; None is none."""
        return replace(self, notes=Sections({**self.notes, **Sections.of(*notes)}))

    def without(self, note: type[object]) -> Part:
        """The same, without the note of this class."""
        return replace(
            self, notes=Sections({kind: own for kind, own in self.notes.items() if kind is not note})
        )


@dataclass(frozen=True, slots=True)
class StartAction:
    """What a feature does when a run starts, after recovery.

    Attributes:
        plan: the plan to seal; None: none.
        text: the notice to emit; empty: none.
        ends: the run has nothing else to do.
    """

    plan: Plan | None = None
    text: str = ""
    ends: bool = False


class Feature:
    """What one feature does in the steps of a run. A subclass has the hooks that it needs; all others do nothing.

    Attributes:
        name: of what it keeps in plans, if it keeps anything.
        silences: its section keeps that a plan is not published.
    """

    # ruff: noqa: ARG002 - hooks name what they are given

    name: ClassVar[str]
    silences: ClassVar[bool] = False

    def __init__(self, env: Environment) -> None:
        self.env = env

    @property
    def declared(self) -> bool:
        """Whether the flow needs it, or the run was asked for it, whatever plans keep."""
        return False

    # ------------------------------------------------------------------ start

    # ------------------------------------------------------------------ inputs

    def looked(self, last: Plan | None, infos: Infos) -> None:
        """Before step 3: the topics were looked at."""

    # ------------------------------------------------------------------ steps of a batch

    def limits(self, last: Plan) -> Offsets | None:
        """Step 3: how far the next batch may read; None: as far as there is anything. Pure."""
        return None

    def cut(self, last: Plan, part: Part, look: Look) -> Part | None:
        """Step 3: what the next batch reads and does, as far as the feature changes it; None: there is none. It may ask the broker."""
        return part

    def cut_again(self, plan: Plan, before: Plan, part: Part) -> Part:
        """Step 2: the same of a sealed plan, for its redo. Pure."""
        return part

    def begin(self, before: Plan, part: Part) -> object | None:
        """Step 3: what tasks get (`Job.sections`) in the batch after a plan, the same in a redo. Pure."""
        return None

    def after(self, last: Plan, part: Part, report: Report) -> Section | None:
        """Step 3: what the plan of a batch keeps; None: what `Section.carried` gives. Pure."""
        return None

    def result(self, result: BatchResult, plan: Plan, infos: Infos) -> BatchResult:
        """After step 7: the result of a batch, with what the feature knows of it."""
        return result

    def committed(self, plan: Plan, part: Part, report: Report, result: BatchResult) -> None:
        """After step 7: the commit is acknowledged."""

    def idle(self, last: Plan) -> None:
        """There was nothing to do."""


@dataclass(slots=True)
class Features:
    """The features of a run.

    Args:
        known: all that there are, in the order in which they are asked.
    """

    known: Sequence[Feature] = ()
    declared: tuple[Feature, ...] = field(init=False)
    _by_hook: dict[str, tuple[Feature, ...]] = field(init=False)
    _declared_by_hook: dict[str, tuple[Feature, ...]] = field(init=False)
    _undeclared: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Look once which hooks each of them has."""
        self.declared = tuple(feature for feature in self.known if feature.declared)
        self._undeclared = frozenset(feature.name for feature in self.known if feature not in self.declared)
        self._by_hook, self._declared_by_hook = (
            {hook: tuple(feature for feature in some if _has(feature, hook)) for hook in _HOOKS}
            for some in (self.known, self.declared)
        )

    def of(self, plan: Plan, hook: str, *, silent: bool = False) -> Sequence[Feature]:
        """Those that have a hook, as far as the flow needs them, or this plan.

        Args:
            plan: the plan.
            hook: name of a method of `Feature`.
            silent: also those that keep of the plan after it that it is not published.
        """
        if not silent and self._undeclared.isdisjoint(plan.sections):
            return self._declared_by_hook[hook]
        return [
            feature
            for feature in self._by_hook[hook]
            if feature in self.declared or feature.name in plan.sections or (silent and feature.silences)
        ]


_HOOKS: Final = tuple(name for name, member in vars(Feature).items() if name[0] != "_" and callable(member))


def _has(feature: Feature, hook: str) -> bool:
    return getattr(type(feature), hook) is not getattr(Feature, hook)
