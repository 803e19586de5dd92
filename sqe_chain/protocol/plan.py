"""The plan: the sealed record of one batch, from which anyone can finish it.

Plans are JSON (UTF-8), so that they can be read with any tool; binary fields are hexadecimal. A plan's
id is a digest over its content and the id of the plan before. It is computed once, by whoever seals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Final

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import START_OVER, StoreInconsistent
from sqe_chain.ports import Range, TopicPartition
from sqe_chain.protocol.closes import Closes
from sqe_chain.protocol.layout import Layout
from sqe_chain.protocol.overwrite import Overwrite
from sqe_chain.task.event_times import EventTimes, Frontier, TimesRecord, waiting_inputs
from sqe_chain.task.exclusion import Exclusion

FILES: Final = "files"
"""In place of a topic's id: it is a source of files."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One partition's part of a batch, with a witness: the last record at or before its end.

    Attributes:
        topic: topic name.
        topic_id: its UUID, hexadecimal.
        partition: partition number.
        start: first offset.
        stop: one past the last offset.
        last_offset: offset of the last record read so far in this partition; -1 none.
        last_epoch: that record's leader epoch plus one; 0 none.
        last_timestamp_ms: that record's timestamp; -1 none.
        last_crc: checksum of that record's key and value; -1 none, or in plans of older versions.
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


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A batch that was sealed, and perhaps published in part, when the flow was folded again from its inputs.

    It is the first batch to be published afterwards, exactly as it was sealed, so that receivers of a part of it get the
    same envelopes again, which they ignore.

    Attributes:
        clock_ms: the batch's clock.
        ranges: of the input partitions.
        exclusions: inputs left out.
        closing: see `Plan.closing`.
        frontier: see `Plan.frontier`.
    """

    clock_ms: int
    ranges: tuple[PlannedRange, ...]
    exclusions: tuple[Exclusion, ...] = ()
    closing: bool = False
    frontier: Frontier | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """How far event time has come.

    Attributes:
        times: see `Plan.times`.
        frontier: see `Plan.frontier`.
        ticked_ms: see `Plan.ticked_ms`.
    """

    times: dict[str, EventTimes]
    frontier: Frontier | None = None
    ticked_ms: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch: what it reads, where its marks end, what it leaves out.

    Attributes:
        number: 0 for the birth plan, then 1, 2, ...
        plan_id: digest over everything else here.
        previous_id: id of the plan before; empty for the birth plan.
        epoch: epoch of the run that sealed it.
        run_id: name of that run.
        clock_ms: the batch's clock, milliseconds since 1970.
        layout: what the flow is bound to.
        ranges: every known partition, idle ones empty.
        marks: "topic/partition" -> marks at the end of the batch; nobody changes them.
        exclusions: inputs left out.
        silent: this plan's outputs are not published, because they were, before the flow was folded again or rewound.
        silent_until: "topic/partition" -> offset up to which the plans *after* this one have to be silent; empty as soon
            as one is published. In JSON: `quiet`.
        unfinished: the batch that has to be published first, exactly as it was sealed before the flow was folded again.
        attempt: number of the first plan of the attempt at folding again that sealed this plan: as long as it is the
            last plan in the attempt's home record, the attempt can be resumed; -1: the flow itself sealed it.
        published_until: "topic/partition" -> offset up to which receivers have outputs, where the flow was rewound to publish them
            again and has not passed it yet: its states are older than what they have.
        announced: stage -> for each state partition a digest of what is published of its states, empty for nothing: the
            plan reads nothing, and publishes the newest state of each key once more.
        times: "topic/partition" -> event time at the end of the batch, where the flow goes by it; nobody changes it.
        frontier: the place in the order of times up to which inputs were taken; it never goes back. None: none were.
        seen: clocks of batches, and the latest event time that was known by then, as far back as idle writers make it matter.
        reached: how far event time had come where the plans *after* this one may cease to be silent: what had been released
            there was published, and what had not must be.
        ticked_ms: up to where timers of the batch's clock have fired; it never goes back, whatever the clock does. 0: none.
        ticks: it reads nothing, but timers of the batch's clock fire.
        timers: "stage/state partition" -> when the batch's clock reaches the next of its timers.
        closing: it reads nothing and closes all windows, the last of `closes` that are done.
        closes: each time that all windows were closed.
        files: topic -> path and number of rows, of the files among the ranges.
        finished: source of files -> the contents that were read to their ends and are not among the ranges any more: their
            hashes of 32 digits, one after the other.
        overwrite: the load that replaces what tables hold, which is under way, decided, or the last that was done; None: there is none.
    """

    number: int
    plan_id: str
    previous_id: str
    epoch: int
    run_id: str
    clock_ms: int
    layout: Layout
    ranges: tuple[PlannedRange, ...]
    marks: dict[str, PartitionMarks]
    exclusions: tuple[Exclusion, ...] = ()
    silent: bool = False
    silent_until: dict[str, int] = field(default_factory=dict)
    unfinished: Unfinished | None = None
    attempt: int = -1
    published_until: dict[str, int] = field(default_factory=dict)
    announced: dict[str, tuple[str, ...]] = field(default_factory=dict)
    times: dict[str, EventTimes] = field(default_factory=dict)
    frontier: Frontier | None = None
    seen: tuple[tuple[int, int], ...] = ()
    reached: Reached | None = None
    ticked_ms: int = 0
    ticks: bool = False
    timers: dict[str, int] = field(default_factory=dict)
    closing: bool = False
    closes: Closes = field(default_factory=Closes)
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    overwrite: Overwrite | None = None
    _encoded: bytes = field(init=False, default=b"", repr=False, compare=False)
    _marks_encoded: dict[str, str] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def empty(self) -> bool:
        """Whether it does nothing to states and marks: it reads and closes nothing, and no timer fires."""
        return not (self.ticks or self.closing or any(planned.reads for planned in self.ranges))

    @property
    def waiting(self) -> int:
        """How many inputs wait for event time after it."""
        return waiting_inputs(self.times)

    def needed_offsets(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that is still to be read, for the first time or again."""
        known = {name: one.waiting for name, one in self.times.items() if one.waiting is not None}
        return {
            planned.tp: known[name].offset if (name := mark_name(*planned.tp)) in known else planned.stop
            for planned in self.ranges
        }

    def with_id(self, before: Plan | None = None) -> Plan:
        """The same plan, with its id computed.

        Args:
            before: the plan before. Marks that it has, too, are not encoded again: of many partitions few move in a batch.
        """
        marks = self._encode_marks(before)
        members = self._members(marks) | {"plan_id": '""'}
        plan_id = blake2b(_object_of(members), digest_size=16).hexdigest()
        found = replace(self, plan_id=plan_id)
        # What is sealed differs from what the digest was made of in the id alone: marks of many lanes take long to encode.
        object.__setattr__(found, "_encoded", _object_of(members | {"plan_id": f'"{plan_id}"'}))
        object.__setattr__(found, "_marks_encoded", marks)
        return found

    def to_bytes(self) -> bytes:
        """Canonical JSON. Fields that came later are left out when empty, so that older plans keep their ids."""
        return self._encoded or _object_of(self._members(self._encode_marks(None)))

    def _encode_marks(self, before: Plan | None) -> dict[str, str]:
        """The marks of each partition as JSON; of those that are the very object of the plan before, its text."""
        known = before._marks_encoded if before is not None else {}  # noqa: SLF001 - of this class
        return {
            name: known[name]
            if before is not None and name in known and before.marks[name] is marks
            else _dump(marks.to_json())
            for name, marks in self.marks.items()
        }

    def _members(self, marks: Mapping[str, str]) -> dict[str, str]:
        """Each member of the JSON object, encoded.

        Args:
            marks: from `_encode_marks`.
        """
        plain = _plain(self)
        del plain["marks"]
        plain["layout"] = self.layout.to_json()
        plain["quiet"] = plain.pop("silent_until")  # its name in what is stored
        plain["times"] = _plain_times(self.times)
        if self.reached is not None:
            plain["reached"] = [_plain_times(self.reached.times), self.reached.frontier]
            plain["reached"] += [self.reached.ticked_ms] if self.reached.ticked_ms else []
        plain["ranges"] = [_plain_range(one) for one in self.ranges]
        plain["exclusions"] = [_plain(one) for one in self.exclusions]
        if self.unfinished is None:
            del plain["unfinished"]
        else:
            plain["unfinished"] = rest = _plain(self.unfinished)
            rest["ranges"] = [_plain_range(one) for one in self.unfinished.ranges]
            rest["exclusions"] = [_plain(one) for one in self.unfinished.exclusions]
            for name in [name for name in ("frontier", "closing") if not rest[name]]:
                del rest[name]
        if self.attempt < 0:
            del plain["attempt"]
        plain["closes"] = self.closes.to_json() if self.closes else None
        plain["overwrite"] = self.overwrite.to_json() if self.overwrite is not None else None
        for name in _LEFT_OUT:
            if not plain[name]:
                del plain[name]
        encoded = {name: _dump(one) for name, one in plain.items()}
        encoded["marks"] = (
            "{" + ",".join(f"{_dump(name)}:{text}" for name, text in sorted(marks.items())) + "}"
        )
        return encoded

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """A plan from what `to_bytes` gave.

        Raises:
            StoreInconsistent: something else, or a newer version, has written this.
        """
        try:
            raw = json.loads(data)
            if older := {"waiting", "caught_up", "shuffled"} & raw.keys():
                raise StoreInconsistent(
                    f"a stored plan has {', '.join(sorted(older))}: an older version of sqe-chain has written it, which kept what waits "
                    "for event time among the states. This one cannot go on from there: run the older one with --once "
                    f"--close-windows, export its states, and import them into a new flow; or {START_OVER}"
                )
            return cls._from_json(raw)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StoreInconsistent(
                f"a stored plan cannot be read ({type(error).__name__}: {error}): something else, or a newer version of "
                "sqe-chain, has written it"
            ) from error

    @classmethod
    def _from_json(cls, raw: dict[str, Any]) -> Plan:
        raw["layout"] = Layout.from_json(raw["layout"])
        raw["silent_until"] = raw.pop("quiet", {})
        raw["ranges"] = tuple(PlannedRange(**one) for one in raw["ranges"])
        raw["files"] = {topic: (path, rows) for topic, (path, rows) in raw.get("files", {}).items()}
        raw["marks"] = {name: PartitionMarks.from_json(marks) for name, marks in raw["marks"].items()}
        raw["exclusions"] = tuple(Exclusion(**one) for one in raw["exclusions"])
        raw["announced"] = {name: tuple(digests) for name, digests in raw.get("announced", {}).items()}
        raw["times"] = _times_from(raw.get("times", {}))
        raw["frontier"] = _frontier_from(raw.get("frontier"))
        raw["seen"] = tuple((clock_ms, latest_ms) for clock_ms, latest_ms in raw.get("seen", ()))
        if reached := raw.get("reached"):
            raw["reached"] = Reached(_times_from(reached[0]), _frontier_from(reached[1]), *reached[2:])
        if closes := raw.get("closes"):
            raw["closes"] = Closes.from_json(closes)
        if overwrite := raw.get("overwrite"):
            raw["overwrite"] = Overwrite.from_json(overwrite)
        if rest := raw.get("unfinished"):
            raw["unfinished"] = Unfinished(
                rest["clock_ms"],
                tuple(PlannedRange(**one) for one in rest["ranges"]),
                tuple(Exclusion(**one) for one in rest["exclusions"]),
                rest.get("closing", False),
                _frontier_from(rest.get("frontier")),
            )
        return cls(**raw)

    def read_files(self) -> frozenset[str]:
        """Topics of the files among the ranges that are read to their ends."""
        return frozenset(
            planned.topic
            for planned in self.ranges
            if planned.topic in self.files and planned.stop >= self.files[planned.topic][1]
        )

    def ends(self) -> dict[TopicPartition, PlannedRange]:
        """The range of each partition; its `stop` is where the next batch begins."""
        return {planned.tp: planned for planned in self.ranges}

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Where the next batch begins in each partition."""
        return {planned.tp: planned.stop for planned in self.ranges}


_LEFT_OUT = (
    "published_until",
    "announced",
    "times",
    "frontier",
    "seen",
    "reached",
    "ticked_ms",
    "ticks",
    "timers",
    "closing",
    "closes",
    "files",
    "finished",
    "overwrite",
)
"""Members that came later, which are left out when they are empty."""
_NAMES = {
    cls: tuple(one.name for one in fields(cls) if one.init)
    for cls in (Plan, PlannedRange, Exclusion, Unfinished)
}


def _plain(one: Plan | PlannedRange | Exclusion | Unfinished) -> dict[str, Any]:
    """Its fields as they are: `dataclasses.asdict` copies all they hold, which took most of a small batch's time."""
    return {name: getattr(one, name) for name in _NAMES[type(one)]}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def _dump(one: object) -> str:
    """Canonical JSON."""
    return _ENCODER.encode(one)


def _object_of(members: dict[str, str]) -> bytes:
    """The JSON object of members that are encoded already, in the order of their names."""
    return ("{" + ",".join(f'"{name}":{members[name]}' for name in sorted(members)) + "}").encode()


def _plain_times(times: Mapping[str, EventTimes]) -> dict[str, TimesRecord]:
    return {name: one.to_json() for name, one in times.items()}


def _times_from(raw: Mapping[str, TimesRecord]) -> dict[str, EventTimes]:
    return {name: EventTimes.from_json(one) for name, one in raw.items()}


def _frontier_from(raw: Sequence[Any] | None) -> Frontier | None:
    return Frontier(*raw) if raw else None


def _plain_range(one: PlannedRange) -> dict[str, Any]:
    plain = _plain(one)
    for name in [name for name in ("last_crc", "again") if plain[name] < 0]:
        del plain[name]
    return plain


def mark_name(topic: str, partition: int) -> str:
    """The name under which a plan keeps a partition's marks."""
    return f"{topic}/{partition}"


def at_name(name: str) -> tuple[str, int]:
    """What `mark_name` made a name of."""
    first, _, number = name.rpartition("/")
    return first, int(number)


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
