"""The plan: the sealed record of one batch, from which anyone can finish it.

Plans are JSON (UTF-8), so that they can be read with any tool; binary fields are hexadecimal. A plan's
id is a digest over its content and the id of the plan before. It is computed once, by the run that seals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, ClassVar, Final, Protocol, Self

from sqe_chain.errors import START_OVER, ConfigurationError, StoreInconsistent
from sqe_chain.ports import Home, Range, TopicPartition
from sqe_chain.protocol.layout import Layout, Marks, by_name, marks_in
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.states import Claim

FORMAT: Final = 2
"""Format of plans. Plans of others are refused."""

FILES: Final = "files"
"""In place of a topic's id: it is a source of files."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One partition's part of a batch, with a consistency check: the last record at or before its end.

    Attributes:
        topic: topic name.
        topic_id: its UUID, hexadecimal.
        partition: partition number.
        start: first offset.
        stop: one past the last offset.
        last_offset: offset of the last record read so far in this partition; -1 none.
        last_epoch: that record's leader epoch plus one; 0 none.
        last_timestamp_ms: that record's timestamp; -1 none.
        last_crc: checksum of that record's key and value; -1 none.
        again: first offset that the batch reads again, because inputs from there on have waited for event time; -1: it reads none.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    last_offset: int = -1
    last_epoch: int = 0
    last_timestamp_ms: int = -1
    last_crc: int = -1
    again: int = -1

    @property
    def begin(self) -> int:
        """First offset that the batch reads."""
        return self.start if self.again < 0 else self.again

    @property
    def reads(self) -> bool:
        """Whether it reads anything."""
        return self.begin < self.stop

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition


class Section:
    """What one feature keeps in plans. A plan has it only if there is something to keep.

    A subclass is a frozen dataclass, and without arguments it is what holds where a plan has no such section.

    Attributes:
        name: its name in plans.
        kinds: name -> what has it.
    """

    __slots__ = ()
    name: ClassVar[str]
    kinds: ClassVar[dict[str, type[Section]]] = {}

    def __init_subclass__(cls) -> None:
        """Make it known by its name."""
        Section.kinds[cls.name] = cls

    def carried(self, last: Plan, plan: Plan) -> Section | None:  # noqa: ARG002 - others need them
        """What the plan after another one keeps, whatever that one does; None: nothing.

        Args:
            last: the plan that has this section.
            plan: the one after it, still without sections.
        """
        return None

    def remedy(self, size: int) -> tuple[str, str] | None:  # noqa: ARG002 - others need it
        """What of this section fills a plan that is too large, and what to do about it; None: it is not to blame.

        Args:
            size: bytes of the section.
        """
        return None

    def to_json(self) -> Any:  # noqa: ANN401 - each feature's own
        """For json.dumps; empty or None: there is nothing to keep."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, raw: Any) -> Self:  # noqa: ANN401 - each feature's own
        """What `to_json` gave.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: something else has written it.
        """
        raise NotImplementedError

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The section of a plan.

        Raises:
            StoreInconsistent: something else has written the section.
        """
        known = plan._memo.sections if hasattr(plan, "_memo") else _memo_of(plan).sections  # noqa: SLF001
        section = known.get(cls.name)
        if not isinstance(section, cls):
            section = known[cls.name] = cls._read(plan)
        return section

    @classmethod
    def _read(cls, plan: Plan) -> Self:
        text = plan.sections.get(cls.name)
        if text is None:
            return cls()
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _unreadable(f"section {cls.name!r} of stored plan {plan.number}", error) from error


@dataclass(slots=True)
class _Memo:
    """What was decoded or encoded of a plan: each once.

    Attributes:
        sections: decoded, by name.
        encoded: the plan as it is stored; empty: not yet.
        marks: each partition's, encoded.
    """

    sections: dict[str, Section] = field(default_factory=dict)
    encoded: bytes = b""
    marks: dict[TopicPartition, str] = field(default_factory=dict)


class _Memory:
    """Has room for a memo, which is no part of the plan: copies begin without."""

    __slots__ = ("_memo",)
    _memo: _Memo


def _memo_of(plan: _Memory) -> _Memo:
    if not hasattr(plan, "_memo"):
        object.__setattr__(plan, "_memo", _Memo())
    return plan._memo  # noqa: SLF001 - of this module


@dataclass(frozen=True, slots=True)
class Plan(_Memory):
    """One batch: what it reads, where its marks end, what it skips.

    Attributes:
        number: 0 for the birth plan, then 1, 2, ...
        plan_id: digest over everything else here.
        previous_id: id of the plan before; empty for the birth plan.
        claim: the run that sealed it.
        clock_ms: the batch's clock, milliseconds since 1970.
        layout: what the flow is bound to.
        ranges: every known partition, idle ones empty.
        marks: marks of each partition at the end of the batch; nobody changes them.
        exclusions: skipped inputs.
        wakes: stages have something to do, even where it reads nothing: timers fire, or windows are closed.
        sections: name -> what a feature keeps, as canonical JSON; see `Section`.
    """

    number: int
    plan_id: str
    previous_id: str
    claim: Claim
    clock_ms: int
    layout: Layout
    ranges: tuple[PlannedRange, ...]
    marks: Marks
    exclusions: tuple[Exclusion, ...] = ()
    wakes: bool = False
    sections: Mapping[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether it does nothing to states and marks: it reads and closes nothing, and no timer fires."""
        return not (self.wakes or any(planned.reads for planned in self.ranges))

    def with_sections(self, *sections: Section) -> Plan:
        """The same plan without an id, with these sections instead of those that it had by their names."""
        names = {section.name for section in sections}
        kept = {name: text for name, text in self.sections.items() if name not in names}
        plan = replace(self, sections=kept | encoded_sections(*sections))
        _memo_of(plan).sections.update({section.name: section for section in sections})
        return plan

    def carried_from(self, last: Plan) -> Plan:
        """The same plan without an id, with what its sections keep of those of the plan before."""
        sections = [Section.kinds[name].of(last).carried(last, self) for name in last.sections]
        return self.with_sections(*(section for section in sections if section is not None))

    def with_id(self, before: Plan | None = None) -> Plan:
        """The same plan, with its id computed.

        Args:
            before: the plan before. Marks that it has, too, are not encoded again: of many partitions few move in a batch.
        """
        marks = self._encode_marks(before)
        text = self._encode(marks, "")
        plan_id = blake2b(text, digest_size=16).hexdigest()
        plan, memo = replace(self, plan_id=plan_id), _memo_of(self)
        # Only the id, at the end, differs from the text of the digest. It is not encoded again: marks of many lanes take long.
        encoded = text[:-2] + f'{plan_id}"}}'.encode()
        object.__setattr__(plan, "_memo", _Memo(dict(memo.sections), encoded, marks))
        return plan

    def to_bytes(self) -> bytes:
        """JSON, always the same."""
        return _memo_of(self).encoded or self._encode(self._encode_marks(None), self.plan_id)

    def _encode_marks(self, before: Plan | None) -> dict[TopicPartition, str]:
        """The marks of each partition as JSON; of those that are the very object of the plan before, its text."""
        known = _memo_of(before).marks if before is not None else {}
        return {
            tp: known[tp]
            if before is not None and tp in known and before.marks[tp] is marks
            else _dump(marks.to_json())
            for tp, marks in self.marks.items()
        }

    def _encode(self, marks: Mapping[TopicPartition, str], plan_id: str) -> bytes:
        """The plan as JSON, its id last.

        Args:
            marks: from `_encode_marks`.
            plan_id: the id.
        """
        plain = {
            "format": FORMAT,
            "number": self.number,
            "previous_id": self.previous_id,
            "epoch": self.claim.epoch,
            "run_id": self.claim.run_id,
            "clock_ms": self.clock_ms,
            "layout": self.layout.to_json(),
            "ranges": plain_ranges(self.ranges),
            "exclusions": plain_exclusions(self.exclusions),
            "wakes": self.wakes,
        }
        rest = {"marks": _object_of(by_name(marks)), "sections": _object_of(self.sections)}
        members = "".join(f',"{name}":{text}' for name, text in rest.items())
        return f'{_dump(plain)[:-1]}{members},"plan_id":{_dump(plan_id)}}}'.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """A plan from what `to_bytes` gave.

        Raises:
            StoreInconsistent: something else, or another version, has written this.
        """
        try:
            raw = json.loads(data)
            if raw.get("format", 1) != FORMAT:
                raise StoreInconsistent(_other_format(raw["number"], raw.get("format", 1)))
            return cls(
                raw["number"],
                raw["plan_id"],
                raw["previous_id"],
                Claim(raw["epoch"], raw["run_id"]),
                raw["clock_ms"],
                Layout.from_json(raw["layout"]),
                tuple(PlannedRange(**planned) for planned in raw["ranges"]),
                marks_in(raw["marks"]),
                tuple(Exclusion(**exclusion) for exclusion in raw["exclusions"]),
                raw["wakes"],
                {name: _dump(section) for name, section in raw["sections"].items()},
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise _unreadable("a stored plan", error) from error

    def ends(self) -> dict[TopicPartition, PlannedRange]:
        """The range of each partition; its `stop` is where the next batch begins."""
        return {planned.tp: planned for planned in self.ranges}

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Where the next batch begins in each partition."""
        return {planned.tp: planned.stop for planned in self.ranges}


class StoredPlans(Protocol):
    """What holds plans: a `StateStore`, or one that retries."""

    def home(self, flow: str) -> tuple[Home | None, int]:
        """See `StateStore.home`."""

    def plan(self, flow: str, number: int) -> bytes | None:
        """See `StateStore.plan`."""


def read_plan(store: StoredPlans, flow: str, number: int) -> Plan | None:
    """A plan of a flow by its number; None when the store does not keep it."""
    data = store.plan(flow, number) if number >= 0 else None
    return None if data is None else Plan.from_bytes(data)


def read_last_plan(store: StoredPlans, flow: str) -> Plan | None:
    """The last plan of a flow; None when the store knows none."""
    home, _ = store.home(flow)
    return None if home is None else read_plan(store, flow, home.number)


def never_run(flow: str) -> ConfigurationError:
    """The error that a store knows nothing of a flow."""
    return ConfigurationError(
        f"the store has no flow {flow!r}: it has not run with this store. Run it, or give the right store"
    )


def plan_of_a_run(store: StoredPlans, flow: str) -> Plan:
    """The last plan of a flow that has run. Reading it disturbs nobody.

    Raises:
        ConfigurationError: the flow has not run with this store.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store does not answer.
    """
    stored, _ = store.home(flow)
    if stored is None or stored.number < 0:
        raise never_run(flow)
    plan = read_plan(store, flow, stored.number)
    if plan is None:
        raise StoreInconsistent(f"the metadata store has no plan {stored.number} of flow {flow!r}")
    return plan


def check_sections(plan: Plan) -> None:
    """Check that this version knows every section of a stored plan.

    Raises:
        StoreInconsistent: a newer version, or an extension that is not installed, has written a section.
    """
    unknown = sorted(plan.sections.keys() - Section.kinds.keys())
    if unknown:
        raise StoreInconsistent(
            f"stored plan {plan.number} has the section {unknown[0]!r}. Expected sections of this version of sqe-chain: "
            f"{', '.join(sorted(Section.kinds))}. A newer version has written the plan: run that one"
        )


def kept_plans(store: StoredPlans, flow: str) -> Iterator[Plan]:
    """The plans of a flow that the store keeps, newest first; none when it knows none."""
    plan = read_last_plan(store, flow)
    while plan is not None:
        yield plan
        plan = read_plan(store, flow, plan.number - 1)


def encoded_sections(*sections: Section) -> dict[str, str]:
    """See `Plan.sections`; without those that have nothing to keep."""
    return {section.name: _dump(raw) for section in sections if (raw := section.to_json())}


def left_by(plan: Plan, last: Plan) -> set[TopicPartition]:
    """Partitions of the plan before that a plan has not: they are gone, or their topic was created again."""
    kept = {(planned.tp, planned.topic_id) for planned in plan.ranges}
    return {planned.tp for planned in last.ranges if (planned.tp, planned.topic_id) not in kept}


def _other_format(number: int, written: object) -> str:
    """What to do about a plan of another format."""
    if isinstance(written, int) and written > FORMAT:
        return f"stored plan {number} has format {written}, this version of sqe-chain reads {FORMAT}: a newer one has written it; run that one"
    return (
        f"stored plan {number} has format {written}, this version of sqe-chain reads {FORMAT}: an older one has written it. Run the older "
        "one until it has nothing left to do, export the flow's states with it (sqe-chain export), and import them with this one into "
        f"an empty store (sqe-chain import); or {START_OVER}"
    )


def _unreadable(what: str, error: Exception) -> StoreInconsistent:
    return StoreInconsistent(
        f"{what} cannot be read ({type(error).__name__}: {error}): something else, or a newer version of sqe-chain, has written it"
    )


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_RANGE, _EXCLUSION = (tuple(field.name for field in fields(cls)) for cls in (PlannedRange, Exclusion))


def _dump(value: object) -> str:
    """Canonical JSON."""
    return _ENCODER.encode(value)


def _object_of(members: Mapping[str, str]) -> str:
    """The JSON object of members that are encoded already, in the order of their names."""
    return "{" + ",".join([f"{_quoted(name)}:{members[name]}" for name in sorted(members)]) + "}"


def plain_ranges(ranges: Iterable[PlannedRange]) -> list[dict[str, Any]]:
    """For json.dumps. `dataclasses.asdict` copies all that they hold, which took most of a small batch's time."""
    return [
        {name: value for name in _RANGE if (value := getattr(planned, name)) != -1 or name != "again"}
        for planned in ranges
    ]


def plain_exclusions(exclusions: Iterable[Exclusion]) -> list[dict[str, Any]]:
    """For json.dumps."""
    return [{name: getattr(exclusion, name) for name in _EXCLUSION} for exclusion in exclusions]


def as_range(planned: PlannedRange, leader_epoch: int) -> Range:
    """A plan's range, as a log reads it.

    Args:
        planned: the plan's range.
        leader_epoch: leader epoch plus one of the last record before its start; 0 unknown.
    """
    return Range(
        planned.topic,
        bytes.fromhex(planned.topic_id),
        planned.partition,
        planned.begin,
        planned.stop,
        leader_epoch if planned.begin == planned.start else 0,
    )
