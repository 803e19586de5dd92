"""The plan: the sealed record of one batch, from which anyone can finish it.

Plans are JSON (UTF-8), so that they can be read with any tool; large ones are packed. Binary fields are hexadecimal. A plan's
id is a digest over its content and the id of the plan before. It is computed once, by the run that seals. A sealed plan is
never made again: redos read it. So it may hold what differs from run to run, such as the claim and the clock.

A version does with what only newer ones write:

- a format, or a section: it refuses the plan by name.
- another member of a plan, or of its layout: it ignores it. It stores the plan as it has read it; plans after it lack the member.
- another member of a range or an exclusion: it refuses the plan as unreadable.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, ClassVar, Final, NamedTuple, Self

from sqe_chain.errors import START_OVER, StoreInconsistent
from sqe_chain.plans.layout import Layout, Marks, by_name, marks_in
from sqe_chain.plans.published import PublishedLanes
from sqe_chain.ports import Range, TopicPartition
from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.states import Claim

FORMAT: Final = 2
"""Format of plans. Plans of others are refused."""

PACKED_BYTES: Final = 256 * 1024
"""From this size on plans are packed. Lanes make them large, and pack to a quarter; smaller plans stay readable with any tool."""
_PACKED: Final = b"x"  # with which zlib begins, and JSON does not


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
        tp: topic and partition.
        begin: first offset that the batch reads.
        reads: whether it reads anything.
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
    tp: TopicPartition = field(init=False, repr=False, compare=False)
    begin: int = field(init=False, repr=False, compare=False)
    reads: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out what is asked for many times in a batch."""
        begin, known = self.start if self.again < 0 else self.again, object.__setattr__
        known(self, "tp", (self.topic, self.partition))
        known(self, "begin", begin)
        known(self, "reads", begin < self.stop)

    def ended(self) -> PlannedRange:
        """The empty range at its end, of a plan that reads nothing there. Its last record stays known."""
        return replace(self, start=self.stop, again=-1)


class NotedMarker(NamedTuple):
    """The newest marker of a transactional flow; see `protocol/transactions.py`.

    Attributes:
        number: of the plan that it names; -1: there was no marker.
        plan_id: id of that plan.
        topic_id: of the topic, hexadecimal.
    """

    number: int
    plan_id: str
    topic_id: str


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
        Section.kinds[cls.name] = cls

    def carried(self, last: Plan, plan: Plan) -> Section | None:  # noqa: ARG002 - others need them
        """What the plan after another one keeps, whatever that one does; None: nothing.

        Args:
            last: the plan that has this section.
            plan: the one after it, still without sections.
        """
        return None

    def remedy(self, size: int) -> tuple[str, str] | None:  # noqa: ARG002 - others need it
        """What of this section fills a plan that is too large, and what to do about it; None: it is not to blame."""
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
        section = plan.memo.sections.get(cls.name)
        if isinstance(section, cls):
            return section
        text = plan.sections.get(cls.name)
        try:
            section = cls() if text is None else cls.from_json(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _unreadable(f"section {cls.name!r} of stored plan {plan.number}", error) from error
        plan.memo.sections[cls.name] = section
        return section


@dataclass(slots=True)
class Memo:
    """What was worked out of a plan: each once. Copies begin without.

    Attributes:
        sections: decoded, by name.
        offsets: see `Plan.next_offsets`.
        layout: encoded; empty: not yet.
        marks: each partition's, encoded.
        encoded: the plan as it is stored, with what this version does not know; empty: not yet.
    """

    sections: dict[str, Section] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] | None = None
    layout: str = ""
    marks: dict[TopicPartition, str] = field(default_factory=dict)
    encoded: bytes = b""


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch: what it reads, where its marks end, what it skips.

    `plans/planning.py` makes all plans of runs and rebuilds, as `birth_plan` and `plan_after`. Others are
    made after an export of format 1 (`operations/moving.py`), at the end of a rebuild (`operations/attempts.py`), and for a
    replay (`ext/explain/since.py`).

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
        gives: digests of what the batch gives; see `sqe_chain.task.digest`. None: an older version has sealed it.
        placed: whether all keys that the first stages have got since the flow began lie in the state partition with the number of their
            input partition. False: some do not, or nobody has looked, as in plans of older versions.
        marker: what a transactional flow had published when it was sealed; None: nobody has noted it.
        published: where the lanes of outputs end; None: nobody has noted it, as in flows that stay in their cluster.
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
    gives: Mapping[str, int] | None = None
    placed: bool = False
    marker: NotedMarker | None = None
    published: PublishedLanes | None = None
    # No part of the plan: `replace` makes a new one for each copy, since what was worked out holds for these fields alone.
    memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    @property
    def empty(self) -> bool:
        """Whether it does nothing to states and marks: it reads and closes nothing, and no timer fires."""
        return not (self.wakes or any(planned.reads for planned in self.ranges))

    def with_sections(self, *sections: Section) -> Plan:
        """The same plan without an id, with these sections instead of those that it had by their names."""
        own = {section.name: section for section in sections}
        kept = {name: text for name, text in self.sections.items() if name not in own}
        plan = replace(self, sections=kept | encoded_sections(*sections))
        plan.memo.sections.update(own)
        return plan

    def carried_from(self, last: Plan, own: Iterable[Section] = ()) -> Plan:
        """The same plan without an id, with what its sections keep of those of the plan before.

        Args:
            last: the plan before.
            own: sections of this plan, instead of what would be carried over.
        """
        sections = {section.name: section for section in own}
        for name in last.sections.keys() - sections.keys():
            section = Section.kinds[name].of(last).carried(last, self)
            if section is not None:
                sections[name] = section
        return self.with_sections(*sections.values())

    def with_id(self, before: Plan | None = None) -> Plan:
        """The same plan, with its id computed.

        Args:
            before: the plan before. What both have is not encoded again: of many partitions few move in a batch.
        """
        text = self._encode("", before)
        plan_id = blake2b(text, digest_size=16).hexdigest()
        plan = replace(self, plan_id=plan_id)
        # Only the id, at the end, differs from the text of the digest. It is not encoded again: marks of many lanes take long.
        encoded = text[:-2] + f'{plan_id}"}}'.encode()
        object.__setattr__(plan, "memo", replace(self.memo, encoded=encoded))
        return plan

    def stored(self) -> bytes:
        """What stores keep: JSON, and of a large plan that text packed by zlib."""
        text = self.to_bytes()
        return text if len(text) < PACKED_BYTES else zlib.compress(text, 1)

    def to_bytes(self) -> bytes:
        """JSON, always the same; of a plan that was read, what was read."""
        return self.memo.encoded or self._encode(self.plan_id, None)

    def _encode(self, plan_id: str, before: Plan | None) -> bytes:
        """The plan as JSON, its id last.

        Args:
            plan_id: the id.
            before: the plan before. Marks and a layout that are the very objects of it are taken from there.
        """
        known, memo = before or self, self.memo
        # By identity, which costs nothing: steps hand on the very objects that they have not changed.
        same = known.layout is self.layout and known.memo.layout
        memo.layout = same or _dump(self.layout.to_json())
        memo.marks = {
            tp: known.memo.marks[tp]
            if tp in known.memo.marks and known.marks[tp] is marks
            else marks.to_text()
            for tp, marks in self.marks.items()
        }
        claim, exclusions = self.claim, plain_exclusions(self.exclusions)
        first = {"format": FORMAT, "clock_ms": self.clock_ms, "epoch": claim.epoch, "exclusions": exclusions}
        if self.gives is not None:
            first["gives"] = self.gives
        second = {
            "number": self.number,
            "previous_id": self.previous_id,
            "ranges": plain_ranges(self.ranges),
            "run_id": claim.run_id,
            "wakes": self.wakes,
        }
        if self.placed:
            second["placed"] = True
        if self.marker is not None:
            second["marker"] = self.marker
        if self.published is not None:
            second["published"] = self.published.to_json()
        members = (
            _dump(first)[1:-1],
            f'"layout":{memo.layout}',
            _dump(second)[1:-1],
            f'"marks":{_object_of(by_name(memo.marks))}',
            f'"sections":{_object_of(self.sections)}',
            f'"plan_id":{_dump(plan_id)}',
        )
        return f"{{{','.join(members)}}}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """A plan from what `to_bytes` or `stored` gave.

        Raises:
            StoreInconsistent: something else, or another version, has written this.
        """
        try:
            if data.startswith(_PACKED):
                data = zlib.decompress(data)
            raw = json.loads(data)
            if raw.get("format", 1) != FORMAT:
                raise StoreInconsistent(_other_format(raw["number"], raw.get("format", 1)))
            _check_id(data, raw["number"], raw["plan_id"])
            plan = cls(
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
                raw.get("gives"),
                raw.get("placed", False),
                NotedMarker(*raw["marker"]) if raw.get("marker") else None,
                PublishedLanes.from_json(raw["published"]) if raw.get("published") else None,
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, zlib.error) as error:
            raise _unreadable("a stored plan", error) from error
        plan.memo.encoded = data
        return plan

    def ends(self) -> dict[TopicPartition, PlannedRange]:
        """The range of each partition; its `stop` is where the next batch begins."""
        return {planned.tp: planned for planned in self.ranges}

    def ended_ranges(self) -> tuple[PlannedRange, ...]:
        """Of a plan after this one that reads nothing."""
        return tuple(planned.ended() for planned in self.ranges)

    def next_offsets(self) -> Mapping[TopicPartition, int]:
        """Where the next batch begins in each partition."""
        memo = self.memo
        if memo.offsets is None:
            memo.offsets = {planned.tp: planned.stop for planned in self.ranges}
        return memo.offsets


def _check_id(data: bytes, number: int, plan_id: str) -> None:
    """Check that a stored plan is the one that was sealed: its id, which comes last, is the digest of all before it.

    Raises:
        StoreInconsistent: it was changed in the store.
    """
    # By the stored bytes, and not by encoding the plan again: another version may have written members that this one does not know.
    end = f'"plan_id":{_dump(plan_id)}}}'.encode()
    sealed = data.removesuffix(end) + b'"plan_id":""}'
    if not data.endswith(end) or blake2b(sealed, digest_size=16).hexdigest() != plan_id:
        raise StoreInconsistent(
            f"stored plan {number} is not what was sealed: its content does not have the digest {plan_id}. Something else has changed it in "
            "the store. Restore the store from a backup and accept the rollback, or fold the inputs again: sqe-chain rebuild"
        )


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


# A plan's id is the digest of its text, so equal plans need equal texts: names in order, and no spaces.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_RANGE, _EXCLUSION = (
    tuple(field.name for field in fields(cls) if field.init) for cls in (PlannedRange, Exclusion)
)


def _dump(value: object) -> str:
    """Canonical JSON."""
    return _ENCODER.encode(value)


def _object_of(members: Mapping[str, str]) -> str:
    """The JSON object of members that are encoded already, in the order of their names."""
    return "{" + ",".join([f"{_quoted(name)}:{members[name]}" for name in sorted(members)]) + "}"


def plain_ranges(ranges: Iterable[PlannedRange]) -> list[dict[str, Any]]:
    """For json.dumps. `dataclasses.asdict` copies all that they hold, which took most of a small batch's time."""
    # Without `again` where nothing is read again, as in plans from before there was such a member: bytes and ids stay.
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
        # Of the record before what is read again no epoch is kept.
        leader_epoch if planned.begin == planned.start else 0,
    )
