"""The reference model: what the stores must hold after each plan, from the plans and the records alone.

It shares no code with what it checks: lanes and positions come from the links of the chains, and states are folded one
input after another, each as a whole or not at all. With one exception: where an input belongs in the order of times is asked
of `EventTimes`, and how far a plan goes in that order is read from the plan; what follows from both is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf.struct_pb2 import Value

from sqe_chain.chain import Link
from sqe_chain.envelope.carrier import CHAIN_HEADER, find_head
from sqe_chain.envelope.message import parse_chain, read
from sqe_chain.errors import EnvelopeError
from sqe_chain.flow import Flow
from sqe_chain.logs.memory import MemoryMessage
from sqe_chain.partitioner import cell_of, partition_of
from sqe_chain.ports import Headers, TopicPartition
from sqe_chain.protocol.event_times import KnownTimes
from sqe_chain.protocol.plan import Plan, at_name
from sqe_chain.segment.event_times import ORIGIN, WHOLE, EventTimes, guard_of
from sqe_chain.testing.simulator import facts
from sqe_chain.testing.simulator.facts import Unit, unit_of, units_of
from sqe_chain.testing.simulator.flows import text_type
from sqe_chain.testing.simulator.table_rows import TableRow, in_files
from sqe_chain.testing.simulator.world import WINDOW_MS, World

Cells = dict[str, dict[int, dict[bytes, Any]]]
StageIds = dict[tuple[str, str], list[str]]
Span = tuple[str, int]
Coordinates = tuple[str, int, int]
Place = tuple[int, str, int, int]
"""In the order of times: time, topic, partition, offset."""


class LanePosition(NamedTuple):
    """Lane and position of a message, by its chain alone.

    Attributes:
        lane: the links without the fields that differ between messages.
        path: the same without topic ids.
        position: root's leader epoch and offset, then each link's ordinal; () for an origin's message.
        of: number of siblings, by the last link.
    """

    lane: tuple[object, ...]
    path: tuple[object, ...]
    position: tuple[int, ...]
    of: int


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
        waiting: inputs that were read and wait for event time, each with its place in the order of times.
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
    waiting: tuple[tuple[Place, MemoryMessage, Input], ...] = ()
    plan: Plan | None = None


class UserCodeFails(Exception):
    """User code fails on an input."""


@dataclass(slots=True)
class _Attempt:
    """One attempt at a plan."""

    ids: StageIds
    changed: set[tuple[str, str]] = field(default_factory=set)
    emitted: list[str] = field(default_factory=list)
    rows: list[Unit] = field(default_factory=list)
    failed: set[Coordinates] = field(default_factory=set)


_NO_ROWS = frozenset({facts.ROWLESS, facts.HOMELESS, facts.LARGE})
_FAIL_BEFORE = frozenset({facts.BEFORE, facts.SURROGATE, facts.MUTE})


def _observe(times: EventTimes, message: MemoryMessage, *, raw: bool) -> int:
    """Where an input belongs in the order of times."""
    times.begin()
    if raw:
        return times.observe(ORIGIN, 0, message.timestamp_ms)
    head = find_head(message.value(), message.headers())
    links = parse_chain(head.chain).links
    writer = "/".join(links[-1].output.split("/")[:2]) if links else ORIGIN
    return times.observe(writer, head.lane, head.timestamp_ms, head.watermark_ms or None)


def _with_windows(
    before: Mapping[Span, tuple[str, ...]], fresh: Iterable[tuple[MemoryMessage, Input]]
) -> dict[Span, tuple[str, ...]]:
    """The ids of each window, with those of more inputs."""
    windows = dict(before)
    for message, found in fresh:
        at_ms = found.timestamp_ms if found.timestamp_ms != -1 else message.timestamp_ms
        for unit in found.units or ():
            if unit.kind != facts.BEATS:
                span = unit.key, at_ms - at_ms % WINDOW_MS
                windows[span] = (*windows.get(span, ()), unit.id)
    return windows


def _holds(name: str) -> bool:
    """Whether a stage and state partition are those of the stage that goes by event time."""
    return at_name(name)[0] in {"once", "windows"}


class Model:
    """Computes the states that `totals` must have.

    Args:
        world: the world.
        records: (topic id, hexadecimal, partition) -> offset -> record; also of deleted topics.
        malformed: values that every reader must refuse.
        flow: `totals`.

    Attributes:
        changed: the fold of the first stage is another one from now on.
    """

    def __init__(
        self,
        world: World,
        records: Mapping[tuple[str, int], Mapping[int, MemoryMessage]],
        malformed: set[bytes],
        flow: Flow,
    ) -> None:
        self._world = world
        self._records = records
        self._malformed = malformed
        self._inputs: dict[tuple[bytes, bytes | None], Input] = {}
        self._raw = world.raw and not world.hops
        self._picks = world.kind in {"deduplicate", "distinct"}
        self._waits = world.kind in {"deduplicate", "distinct", "roots", "windows"}
        self._guard = guard_of(flow)
        self._text = text_type(world)
        self.changed = False

    def expected_after(self, plan: Plan, before: ExpectedStates | None) -> ExpectedStates:
        """The expected states after a plan.

        Args:
            plan: the plan.
            before: the expected states after the previous plan; None for a plan without a predecessor.
        """
        expected = ExpectedStates(plan=plan)
        if before is not None:
            expected.waiting = before.waiting
            expected.marks, expected.ids = dict(before.marks), before.ids
            expected.cells = {stage: dict(cells) for stage, cells in before.cells.items()}
            expected.seen, expected.windows = before.seen, before.windows
            expected.rows = before.rows
        wanted = []
        for planned in sorted(plan.ranges, key=lambda one: one.tp):
            expected.ends[planned.tp] = planned.stop
            if planned.start < planned.stop:
                kept = self._records.get((planned.topic_id, planned.partition), {})
                inputs = [kept[at] for at in range(planned.start, planned.stop) if at in kept]
                wanted += [(planned.topic_id, message) for message in inputs]
        if wanted or expected.waiting:
            left_out = {(one.topic, one.partition, one.offset) for one in plan.exclusions}
            changed = self._fold(expected, wanted, left_out, before.plan if before is not None else None)
            self._store(expected, changed)
        return expected

    def input_of(self, message: MemoryMessage) -> Input:
        """Decode a record."""
        value = message.value() or b""
        chain = next((content for name, content in message.headers() or () if name == CHAIN_HEADER), None)
        found = self._inputs.get((value, chain))
        if found is None:
            found = self._inputs[value, chain] = self._decoded(value, message.headers())
        return found

    def _decoded(self, value: bytes, headers: Headers | None) -> Input:
        nowhere = LanePosition((), (), (), 0)
        if value in self._malformed:
            return Input(nowhere, None, 0)
        if self._raw:
            units = tuple(unit_of(text) for text in units_of(value.decode()))
            return Input(nowhere, units, -1)
        try:
            envelope = read(value, headers=headers)
        except EnvelopeError:
            return Input(nowhere, None, 0)
        texts = [payload.value for payload in envelope.payloads_as(self._text) if payload is not None]
        if not self._world.hops:
            texts = [text for fact in texts for text in units_of(fact)]
        odd = not -(2**62) < envelope.timestamp_ms < 2**62
        return Input(
            lane_position_of(envelope.chain.links), tuple(map(unit_of, texts)), envelope.timestamp_ms, odd
        )

    def _fold(
        self,
        expected: ExpectedStates,
        messages: Iterable[tuple[str, MemoryMessage]],
        left_out: set[Coordinates],
        before: Plan | None,
    ) -> set[tuple[str, str]]:
        """Fold new inputs; fold again without failed ones if a filter would then let other inputs through."""
        fresh = self._new_inputs(expected, messages, left_out)
        if self._waits and before is not None:
            fresh = self._due(expected, fresh, left_out, before)
        while True:
            attempt = self._attempt(expected, fresh)
            if not attempt.failed:
                break
            expected.excluded |= attempt.failed
            fresh = [one for one in fresh if one[0].coordinates not in attempt.failed]
            if not self._picks:
                break
        expected.ids = {owner: ids for owner, ids in attempt.ids.items() if ids}
        expected.emitted = tuple(attempt.emitted)
        self._add_rows(expected, attempt.rows)
        if self._picks:
            expected.seen |= {unit.same for message, found in fresh for unit in found.units or ()}
        if self._world.kind == "windows":
            expected.windows = _with_windows(expected.windows, fresh)
        return attempt.changed

    def _attempt(self, expected: ExpectedStates, fresh: Sequence[tuple[MemoryMessage, Input]]) -> _Attempt:
        """Fold inputs in the order in which a filter sees them."""
        attempt = _Attempt(dict(expected.ids))
        chosen = self._accepted_by_filter(expected, fresh)
        # The stages after it take what it lets through input partition after input partition.
        for message, found in sorted(fresh, key=lambda one: one[0].coordinates):
            self._fold_input(attempt, message, found, chosen)
        return attempt

    def _new_inputs(
        self,
        expected: ExpectedStates,
        messages: Iterable[tuple[str, MemoryMessage]],
        left_out: set[Coordinates],
    ) -> list[tuple[MemoryMessage, Input]]:
        """The inputs that can be decoded and are not replays; advances the marks."""
        fresh = []
        skips = self._world.recreated == "skip"
        for topic_id, message in messages:
            coordinates = message.coordinates
            found = self.input_of(message)
            if found.units is None:
                expected.excluded.add(coordinates)
                continue
            mark = (
                coordinates[0],
                topic_id,
                coordinates[1],
                found.lane_position.path if skips else found.lane_position.lane,
            )
            position = found.lane_position.position or (message.epoch + 1, coordinates[2])
            if position <= expected.marks.get(mark, ()):
                continue
            expected.marks[mark] = position
            unshown = self._world.view and any(unit.kind == facts.UNSHOWN for unit in found.units)
            if found.may_fail or unshown:
                expected.may_exclude.add(coordinates)
                if coordinates in left_out or self._world.kind in {"distinct", "windows"}:
                    continue
            fresh.append((message, found))
        return fresh

    def _due(
        self,
        expected: ExpectedStates,
        fresh: Iterable[tuple[MemoryMessage, Input]],
        left_out: set[Coordinates],
        before: Plan,
    ) -> list[tuple[MemoryMessage, Input]]:
        """The inputs that the plan takes, in the order of times; the others wait."""
        plan, sound = expected.plan, list[tuple[MemoryMessage, Input]]()
        if plan is None:
            raise AssertionError("asked for with a plan")
        for message, one in fresh:
            if any(unit.kind in _FAIL_BEFORE for unit in one.units or ()):
                expected.excluded.add(message.coordinates)
            else:
                sound.append((message, one))
        if self._picks:
            expected.may_exclude |= self._failed_in_turn(expected, sound, left_out, before, plan)
        placed = self._placed(expected, sound, left_out, before, plan)
        due, waiting = self._parted(placed, left_out, plan)
        expected.waiting = tuple(waiting)
        return due

    def _failed_in_turn(
        self,
        expected: ExpectedStates,
        sound: Iterable[tuple[MemoryMessage, Input]],
        left_out: set[Coordinates],
        before: Plan,
        plan: Plan,
    ) -> set[Coordinates]:
        """Those left out that failed while their time counted; without it, others may belong before them and are taken."""
        sound, failed = list(sound), set[Coordinates]()
        while left_out.intersection(message.coordinates for message, _ in sound):
            due, _ = self._parted(self._placed(expected, sound, failed, before, plan), left_out, plan)
            tried = [one for one in due if one[0].coordinates not in failed]
            more = self._attempt(expected, tried).failed & left_out
            if not more:
                break
            failed |= more
        return failed

    def _placed(
        self,
        expected: ExpectedStates,
        sound: Iterable[tuple[MemoryMessage, Input]],
        undone: set[Coordinates],
        before: Plan,
        plan: Plan,
    ) -> list[tuple[Place, MemoryMessage, Input]]:
        """Inputs with their places in the order of times, which the times of those that are undone do not move."""
        found, times = list(expected.waiting), dict[TopicPartition, EventTimes]()
        for message, one in sound:
            topic, partition, offset = message.coordinates
            tp = topic, partition
            if tp not in times:
                known = KnownTimes.after(before).at(tp, plan.caught_up, plan.clock_ms)
                times[tp] = known.copy(clock_ms=plan.clock_ms, guard=self._guard)
            at_ms = _observe(times[tp], message, raw=self._raw)
            if message.coordinates in undone:
                times[tp].undo()
            found.append(((at_ms, topic, partition, offset), message, one))
        return sorted(found, key=lambda each: each[0])

    def _parted(
        self, placed: Iterable[tuple[Place, MemoryMessage, Input]], left_out: set[Coordinates], plan: Plan
    ) -> tuple[list[tuple[MemoryMessage, Input]], list[tuple[Place, MemoryMessage, Input]]]:
        """Those that the plan takes, and those that wait."""
        limits = {at_name(name)[1]: one.frontier for name, one in plan.waiting.items() if _holds(name)}
        due, waiting = list[tuple[MemoryMessage, Input]](), list[tuple[Place, MemoryMessage, Input]]()
        for place, message, one in placed:
            parts = {WHOLE, *map(self._part_of, one.units or ())} if plan.shuffled else {place[2]}
            ends = [limits[part] for part in parts if part in limits]
            # One that is left out failed when it was taken: in this plan.
            taken = not ends or message.coordinates in left_out
            taken |= any(end is not None and place[:3] <= end for end in ends)
            if taken:
                due.append((message, one))
            else:
                waiting.append((place, message, one))
        return due, waiting

    def _part_of(self, unit: Unit) -> int:
        """The state partition of a unit in the stage that goes by event time."""
        key = unit.same if self._picks else unit.key
        return partition_of(key.encode(), self._world.state_partitions)

    def _accepted_by_filter(
        self, expected: ExpectedStates, fresh: Iterable[tuple[MemoryMessage, Input]]
    ) -> set[Coordinates] | None:
        """The inputs that a filter by id lets through, of inputs in their order."""
        if not self._picks:
            return None
        seen, chosen = set(expected.seen), set()
        for message, found in fresh:
            for unit in found.units or ():
                if unit.same not in seen:
                    seen.add(unit.same)
                    chosen.add(message.coordinates)
        return chosen

    def _fold_input(
        self, attempt: _Attempt, message: MemoryMessage, found: Input, chosen: set[Coordinates] | None
    ) -> None:
        """Fold one input through all stages, as a whole or not at all."""
        undo: StageIds = {}
        folded: list[str] = []
        rows: list[Unit] = []
        passes = chosen is None or message.coordinates in chosen
        try:
            for unit in found.units or ():
                self._fold_unit(unit, attempt.ids, undo, folded, rows, passes=passes)
        except UserCodeFails:
            attempt.failed.add(message.coordinates)
            attempt.ids.update(undo)
            return
        attempt.changed.update(undo)
        attempt.emitted += folded
        attempt.rows += rows

    def _fold_unit(
        self,
        unit: Unit,
        notes: StageIds,
        undo: StageIds,
        folded: list[str],
        rows: list[Unit],
        *,
        passes: bool,
    ) -> None:
        """Fold one unit through all stages; records previous states in `undo`."""
        world = self._world
        if unit.kind in _FAIL_BEFORE or (world.kind == "windows" and unit.kind == facts.FIRST):
            raise UserCodeFails
        if world.kind == "windows" or not passes:
            return
        if (world.table and unit.kind in _NO_ROWS) or (world.declared and unit.kind == facts.UNCOUNTED):
            raise UserCodeFails
        rows.append(unit)
        if world.declared:
            had = notes.get(("sums", unit.key), [])
            undo.setdefault(("sums", unit.key), had)
            notes["sums", unit.key] = [*had, unit.id]
        had = notes.get(("first", unit.key), [])
        undo.setdefault(("first", unit.key), had)
        if unit.kind == facts.CLOSE and world.doors == "fold" and facts.open_doors(" ".join(had)) < 1:
            raise UserCodeFails
        if unit.kind in {facts.FIRST, facts.KEYLESS}:
            raise UserCodeFails
        notes["first", unit.key] = [*had, facts.state_entry(unit, changed=self.changed)]
        folded.append(unit.id)
        if world.stages > 1:
            had = notes.get(("second", unit.group), [])
            undo.setdefault(("second", unit.group), had)
            if unit.kind in {facts.SECOND, facts.LAST}:
                raise UserCodeFails
            notes["second", unit.group] = [*had, facts.state_entry(unit)]

    def _add_rows(self, expected: ExpectedStates, units: Iterable[Unit]) -> None:
        """Add the rows that units become: of each key in this plan the last."""
        world, plan = self._world, expected.plan
        if not world.table or plan is None:
            return
        written = [
            TableRow(plan.number, unit.key, facts.slot_of(unit) if world.replaced else unit.id, unit.id)
            for unit in units
        ]
        expected.rows = dict(expected.rows)
        for row in in_files(written):
            part = partition_of(row.key.encode(), world.state_partitions)
            expected.rows[part] = (*expected.rows.get(part, ()), row)

    def _store(self, expected: ExpectedStates, changed: Iterable[tuple[str, str]]) -> None:
        """Serialize the states of the keys that changed."""
        world, fresh = self._world, set[tuple[str, int]]()
        for stage, name in changed:
            ids = expected.ids.get((stage, name))
            if ids is None:
                continue
            key = name.encode()
            buckets = 1 if stage == "sums" else world.buckets
            cell = cell_of(key, world.state_partitions, buckets)
            cells = expected.cells.setdefault(stage, {})
            if (stage, cell) not in fresh:
                fresh.add((stage, cell))
                cells[cell] = dict(cells.get(cell, {}))
            if stage == "sums":
                cells[cell][key] = facts.aggregated(ids)
            elif stage == "first" and world.view:
                state = Value()
                for note in ids:
                    if note.endswith(facts.NOT_A_NUMBER):
                        state.list_value.values.add(number_value=float("nan"))
                    state.list_value.values.add(string_value=note.removesuffix(facts.NOT_A_NUMBER))
                cells[cell][key] = state.SerializeToString()
            else:
                cells[cell][key] = facts.serialized(ids, world.form)


def lane_position_of(links: Iterable[Link]) -> LanePosition:
    """Lane and position, from the links of a chain."""
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
    return LanePosition(tuple(found), tuple(path), tuple(position), of)
