"""The reference: what must stand in the stores after each plan, from the plans and the records alone.

It shares nothing with what it judges: lanes and positions are taken from the links of the chains, marks are sets of
these, and states are folded one input after the other, each as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from google.protobuf.struct_pb2 import Value
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.chain import Link
from sqe_chain.envelope.message import read
from sqe_chain.errors import EnvelopeError
from sqe_chain.logs.memory import MemoryMessage
from sqe_chain.partitioner import cell_of, partition_of
from sqe_chain.protocol.plan import Plan
from sqe_chain.testing.simulator import facts
from sqe_chain.testing.simulator.facts import Unit, unit_of, units_of
from sqe_chain.testing.simulator.world import WINDOW_MS, World

Place = tuple[str, int]
Cells = dict[str, dict[int, dict[bytes, bytes]]]
Notes = dict[tuple[str, str], list[str]]
Span = tuple[str, int]
Coordinates = tuple[str, int, int]


class Way(NamedTuple):
    """Where a message stands, by its chain alone.

    Attributes:
        lane: the links without what changes from message to message.
        path: the same without ids of topics.
        position: root's leader epoch and offset, then each link's ordinal; () for an origin's message.
        of: what the last link says of how many there are.
    """

    lane: tuple[object, ...]
    path: tuple[object, ...]
    position: tuple[int, ...]
    of: int


@dataclass(frozen=True, slots=True)
class Input:
    """A record, decoded; `units` is None where it cannot be."""

    way: Way
    units: tuple[Unit, ...] | None
    timestamp_ms: int
    may_fail: bool = False


@dataclass(slots=True)
class Books:
    """What all states say after one plan.

    Attributes:
        ends: up to where each partition was read.
        marks: (place of reading, lane) -> position of the last message accepted.
        notes: (stage, key) -> ids, in order.
        cells: stage -> cell -> key -> state, serialized.
        seen: what a filter has let pass.
        windows: (key, start) -> ids that belong into that window.
        emitted: ids that were folded by this plan.
        excluded: coordinates that it must leave out.
        may: coordinates that it may leave out.
    """

    ends: dict[Place, int] = field(default_factory=dict)
    marks: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict)
    notes: Notes = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    windows: dict[Span, tuple[str, ...]] = field(default_factory=dict)
    emitted: tuple[str, ...] = ()
    excluded: set[Coordinates] = field(default_factory=set)
    may: set[Coordinates] = field(default_factory=set)


class Fails(Exception):
    """User code fails on this input."""


@dataclass(slots=True)
class _Turn:
    """One attempt at a plan."""

    notes: Notes
    changed: set[tuple[str, str]] = field(default_factory=set)
    emitted: list[str] = field(default_factory=list)
    failed: set[Coordinates] = field(default_factory=set)


_FAIL_BEFORE = frozenset({facts.BEFORE, facts.SURROGATE, facts.MUTE})


def _time_of(one: tuple[MemoryMessage, Input]) -> int:
    message, found = one
    return found.timestamp_ms if found.timestamp_ms != -1 else message.timestamp_ms


class Model:
    """What `totals` must be.

    Args:
        world: the world.
        records: (topic id, hexadecimal, partition) -> offset -> record; also of topics that are no more.
        malformed: values that no reader may accept.
    """

    def __init__(
        self,
        world: World,
        records: Mapping[tuple[str, int], Mapping[int, MemoryMessage]],
        malformed: set[bytes],
    ) -> None:
        self._world = world
        self._records = records
        self._malformed = malformed
        self._inputs: dict[bytes, Input] = {}
        self._raw = world.raw and not world.hops
        self._picks = world.sieve in {"deduplicate", "distinct"}

    def after(self, plan: Plan, before: Books | None) -> Books:
        """The books after a plan.

        Args:
            plan: the plan.
            before: the books after the one before; None for a birth plan.
        """
        books = Books()
        if before is not None:
            books.marks, books.notes = dict(before.marks), before.notes
            books.cells = {stage: dict(cells) for stage, cells in before.cells.items()}
            books.seen, books.windows = before.seen, before.windows
        wanted = []
        for planned in sorted(plan.ranges, key=lambda one: one.place):
            books.ends[planned.place] = planned.stop
            if planned.start < planned.stop:
                kept = self._records.get((planned.topic_id, planned.partition), {})
                inputs = [kept[at] for at in range(planned.start, planned.stop) if at in kept]
                wanted += [(planned.topic_id, message) for message in inputs]
        if wanted:
            left_out = {(one.topic, one.partition, one.offset) for one in plan.exclusions}
            changed = self._fold(books, wanted, left_out)
            self._store(books, changed)
        return books

    def input_of(self, message: MemoryMessage) -> Input:
        """A record, decoded."""
        value = message.value() or b""
        found = self._inputs.get(value)
        if found is None:
            found = self._inputs[value] = self._decoded(value)
        return found

    def _decoded(self, value: bytes) -> Input:
        nowhere = Way((), (), (), 0)
        if value in self._malformed:
            return Input(nowhere, None, 0)
        if self._raw:
            units = tuple(unit_of(text) for text in units_of(value.decode()))
            return Input(nowhere, units, -1)
        try:
            envelope = read(value)
        except EnvelopeError:
            return Input(nowhere, None, 0)
        texts = [payload.value for payload in envelope.payloads_as(StringValue) if payload is not None]
        if not self._world.hops:
            texts = [text for fact in texts for text in units_of(fact)]
        odd = not -(2**62) < envelope.timestamp_ms < 2**62
        return Input(way_of(envelope.chain.links), tuple(map(unit_of, texts)), envelope.timestamp_ms, odd)

    def _fold(
        self, books: Books, messages: Iterable[tuple[str, MemoryMessage]], left_out: set[Coordinates]
    ) -> set[tuple[str, str]]:
        """Fold what is new; again without those that failed where a filter would then have let others pass."""
        fresh = self._fresh(books, messages, left_out)
        while True:
            turn = _Turn(dict(books.notes))
            chosen = self._chosen(books, fresh)
            for message, found in fresh:
                self._fold_input(turn, message, found, chosen)
            if not turn.failed:
                break
            books.excluded |= turn.failed
            fresh = [one for one in fresh if one[0].place not in turn.failed]
            if not self._picks:
                break
        books.notes = {place: ids for place, ids in turn.notes.items() if ids}
        books.emitted = tuple(turn.emitted)
        if self._picks:
            books.seen |= {unit.same for message, found in fresh for unit in found.units or ()}
        if self._world.sieve == "windows":
            windows = dict(books.windows)
            for message, found in fresh:
                at_ms = found.timestamp_ms if found.timestamp_ms != -1 else message.timestamp_ms
                for unit in found.units or ():
                    if unit.kind != facts.BEATS:
                        span = unit.key, at_ms - at_ms % WINDOW_MS
                        windows[span] = (*windows.get(span, ()), unit.id)
            books.windows = windows
        return turn.changed

    def _fresh(
        self, books: Books, messages: Iterable[tuple[str, MemoryMessage]], left_out: set[Coordinates]
    ) -> list[tuple[MemoryMessage, Input]]:
        """The inputs that are no replays and can be decoded; marks move."""
        fresh = []
        skips = self._world.recreated == "skip"
        for topic_id, message in messages:
            place = message.place
            found = self.input_of(message)
            if found.units is None:
                books.excluded.add(place)
                continue
            mark = (place[0], topic_id, place[1], found.way.path if skips else found.way.lane)
            position = found.way.position or (message.epoch + 1, place[2])
            if position <= books.marks.get(mark, ()):
                continue
            books.marks[mark] = position
            unshown = self._world.view and any(unit.kind == facts.UNSHOWN for unit in found.units)
            if found.may_fail or unshown:
                books.may.add(place)
                if place in left_out or self._world.sieve in {"distinct", "windows"}:
                    continue
            fresh.append((message, found))
        return fresh

    def _chosen(self, books: Books, fresh: Iterable[tuple[MemoryMessage, Input]]) -> set[Coordinates] | None:
        """The inputs that a filter by id lets pass: of the input partitions it takes the earliest record next."""
        if not self._picks:
            return None
        waiting: dict[int, dict[Place, list[tuple[MemoryMessage, Input]]]] = {}
        for message, found in fresh:
            if found.units and not any(unit.kind in _FAIL_BEFORE for unit in found.units):
                part = partition_of(found.units[0].same.encode(), self._world.state_partitions)
                waiting.setdefault(part, {}).setdefault(message.place[:2], []).append((message, found))
        seen, chosen = set(books.seen), set()
        for places in waiting.values():  # state partitions know nothing of each other
            for message, found in merge(*(places[place] for place in sorted(places)), key=_time_of):
                for unit in found.units or ():
                    if unit.same not in seen:
                        seen.add(unit.same)
                        chosen.add(message.place)
        return chosen

    def _fold_input(
        self, turn: _Turn, message: MemoryMessage, found: Input, chosen: set[Coordinates] | None
    ) -> None:
        """One input through all steps, as a whole or not at all."""
        undo: Notes = {}
        folded: list[str] = []
        passes = chosen is None or message.place in chosen
        try:
            for unit in found.units or ():
                self._fold_unit(unit, turn.notes, undo, folded, passes=passes)
        except Fails:
            turn.failed.add(message.place)
            turn.notes.update(undo)
            return
        turn.changed.update(undo)
        turn.emitted += folded

    def _fold_unit(self, unit: Unit, notes: Notes, undo: Notes, folded: list[str], *, passes: bool) -> None:
        """One unit through all steps; what its keys had is kept for undoing."""
        world = self._world
        if unit.kind in _FAIL_BEFORE or (world.sieve == "windows" and unit.kind == facts.FIRST):
            raise Fails
        if world.sieve == "windows" or not passes:
            return
        had = notes.get(("first", unit.key), [])
        undo.setdefault(("first", unit.key), had)
        if unit.kind == facts.CLOSE and world.doors == "fold" and facts.open_doors(" ".join(had)) < 1:
            raise Fails
        if unit.kind in {facts.FIRST, facts.KEYLESS}:
            raise Fails
        notes["first", unit.key] = [*had, facts.noted(unit)]
        folded.append(unit.id)
        if world.stages > 1:
            had = notes.get(("second", unit.group), [])
            undo.setdefault(("second", unit.group), had)
            if unit.kind in {facts.SECOND, facts.LAST}:
                raise Fails
            notes["second", unit.group] = [*had, facts.noted(unit)]

    def _store(self, books: Books, changed: Iterable[tuple[str, str]]) -> None:
        """What is stored of the keys that changed, serialized."""
        world, fresh = self._world, set[tuple[str, int]]()
        for stage, name in changed:
            ids = books.notes.get((stage, name))
            if ids is None:
                continue
            key = name.encode()
            cell = cell_of(key, world.state_partitions, world.buckets)
            cells = books.cells.setdefault(stage, {})
            if (stage, cell) not in fresh:
                fresh.add((stage, cell))
                cells[cell] = dict(cells.get(cell, {}))
            if stage == "first" and world.view:
                state = Value()
                for note in ids:
                    if note.endswith(facts.NOT_A_NUMBER):
                        state.list_value.values.add(number_value=float("nan"))
                    state.list_value.values.add(string_value=note.removesuffix(facts.NOT_A_NUMBER))
                cells[cell][key] = state.SerializeToString()
            else:
                cells[cell][key] = facts.bytes_of(ids)


def way_of(links: Iterable[Link]) -> Way:
    """Lane and position from the links of a chain."""
    found: list[tuple[object, ...]] = []
    path: list[tuple[object, ...]] = []
    position: list[int] = []
    of = 0
    for link in links:
        topic, topic_id, partition = link.topic, link.topic_id, link.partition
        wrote = (partition, link.output, link.shard)
        found.append((topic, topic_id, *wrote))
        path.append((topic, b"" if position else topic_id, *wrote))
        if not position:
            position += [link.leader_epoch, link.offset]
        position.append(link.ordinal)
        of = link.of
    return Way(tuple(found), tuple(path), tuple(position), of)
