"""What the stores of a simulated world must hold after each plan: states are folded input by input, each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.struct_pb2 import Value

from sqe_chain.envelope.carrier import CHAIN_HEADER
from sqe_chain.envelope.message import read
from sqe_chain.envelope.partitioner import cell_of, partition_of
from sqe_chain.errors import EnvelopeError
from tests.lab.reference import facts
from tests.lab.reference.expected import ExpectedStates, Input, Record, Span, StageIds, TableRow
from tests.lab.reference.facts import Unit, unit_of, units_of
from tests.lab.reference.lanes import LanePosition, is_new, lane_position_of
from tests.lab.reference.plans import Coordinates, StoredPlan
from tests.lab.reference.time_order import Waiting, split
from tests.lab.reference.world import WINDOW_MS, World


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


def _with_windows(
    before: Mapping[Span, tuple[str, ...]], fresh: Iterable[tuple[Record, Input]]
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


def in_files(written: Iterable[TableRow]) -> list[TableRow]:
    """Of rows that one plan writes the last of each key: a memtable keeps no other."""
    return [*{(row.key, row.slot): row for row in written}.values()]


class Model:
    """Computes the states that `totals` must have.

    Args:
        world: the world.
        records: (topic id, hexadecimal, partition) -> offset -> record; also of deleted topics.
        malformed: values that every reader must refuse.

    Attributes:
        changed: the fold of the first stage is another one from now on.
    """

    def __init__(
        self,
        world: World,
        records: Mapping[tuple[str, int], Mapping[int, Record]],
        malformed: set[bytes],
    ) -> None:
        self._world = world
        self._records = records
        self._malformed = malformed
        self._inputs: dict[tuple[bytes, bytes | None], Input] = {}
        self._waits = world.kind in {"deduplicate", "distinct", "roots", "windows", "join"}
        self.changed = False

    def expected_after(self, plan: StoredPlan, before: ExpectedStates | None) -> ExpectedStates:
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
        for planned in plan.ranges:
            expected.ends[planned.tp] = planned.stop
            if planned.start < planned.stop:
                kept = self._records.get((planned.topic_id, planned.partition), {})
                inputs = [kept[at] for at in range(planned.start, planned.stop) if at in kept]
                wanted += [(planned.topic_id, message) for message in inputs]
        if wanted or expected.waiting:
            changed = self._fold(expected, wanted, plan.skipped, before.plan if before is not None else None)
            self._store(expected, changed)
        return expected

    def input_of(self, message: Record) -> Input:
        """Decode a record."""
        value = message.value() or b""
        chain = next((content for name, content in message.headers() or () if name == CHAIN_HEADER), None)
        found = self._inputs.get((value, chain))
        if found is None:
            found = self._inputs[value, chain] = self._decoded(value, message.headers())
        return found

    def _decoded(self, value: bytes, headers: Any) -> Input:
        nowhere = LanePosition((), (), (), 0)
        if value in self._malformed:
            return Input(nowhere, None, 0)
        if self._world.totals_read_raw:
            units = tuple(unit_of(text) for text in units_of(value.decode()))
            return Input(nowhere, units, -1)
        try:
            envelope = read(value, headers=headers)
        except EnvelopeError:
            return Input(nowhere, None, 0)
        form = self._world.form
        texts = [facts.text_of(payload, form) for payload in envelope.payloads if payload is not None]
        if not self._world.hops:
            texts = [text for fact in texts for text in units_of(fact)]
        odd = not -(2**62) < envelope.timestamp_ms < 2**62
        return Input(
            lane_position_of(envelope.chain.links), tuple(map(unit_of, texts)), envelope.timestamp_ms, odd
        )

    def _fold(
        self,
        expected: ExpectedStates,
        messages: Iterable[tuple[str, Record]],
        left_out: frozenset[Coordinates],
        before: StoredPlan | None,
    ) -> set[tuple[str, str]]:
        """Fold new inputs; fold again without failed ones if a filter would then let other inputs through."""
        if self._waits and before is not None and expected.plan is not None:
            every = [Waiting(*one) for one in (*expected.waiting, *messages)]
            taken, waiting = split(every, self.input_of, before, expected.plan)
            expected.waiting = tuple(waiting)
            places = {one.message.coordinates: place for place, one in taken}
            own = sorted((one for _, one in taken), key=lambda one: one.message.coordinates)
            fresh = self._new_inputs(expected, own, left_out)
            fresh.sort(key=lambda one: places[one[0].coordinates])
            for one in waiting:
                topic, partition, offset = one.message.coordinates
                mark, position = self._position(one.topic_id, one.message, self.input_of(one.message))
                if position > expected.marks.get(mark, ()):
                    expected.needed.setdefault((topic, partition), offset)
        else:
            fresh = self._new_inputs(expected, messages, left_out)
        while True:
            attempt = self._attempt(expected, fresh)
            if not attempt.failed:
                break
            expected.excluded |= attempt.failed
            fresh = [one for one in fresh if one[0].coordinates not in attempt.failed]
            if not self._world.picks:
                break
        expected.ids = {owner: ids for owner, ids in attempt.ids.items() if ids}
        expected.emitted = tuple(attempt.emitted)
        self._add_rows(expected, attempt.rows)
        if self._world.picks:
            expected.seen |= {unit.same for message, found in fresh for unit in found.units or ()}
        if self._world.kind == "windows":
            expected.windows = _with_windows(expected.windows, fresh)
        return attempt.changed

    def _attempt(self, expected: ExpectedStates, fresh: Sequence[tuple[Record, Input]]) -> _Attempt:
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
        messages: Iterable[tuple[str, Record]],
        left_out: frozenset[Coordinates],
    ) -> list[tuple[Record, Input]]:
        """The inputs that can be decoded and are not replays; advances the marks."""
        fresh = []
        for topic_id, message in messages:
            coordinates = message.coordinates
            found = self.input_of(message)
            if found.units is None:
                expected.excluded.add(coordinates)
                continue
            mark, position = self._position(topic_id, message, found)
            if not is_new(expected.marks, mark, position):
                continue
            unshown = self._world.view and any(unit.kind == facts.UNSHOWN for unit in found.units)
            if found.may_fail or unshown:
                expected.may_exclude.add(coordinates)
                if coordinates in left_out or self._world.kind in {"distinct", "windows"}:
                    continue
            fresh.append((message, found))
        return fresh

    def _position(
        self, topic_id: str, message: Record, found: Input
    ) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """The name of the mark of a record's lane, and its position there."""
        topic, partition, offset = message.coordinates
        lane = found.lane_position
        mark = topic, topic_id, partition, lane.path if self._world.recreated == "skip" else lane.lane
        return mark, lane.position or (message.epoch + 1, offset)

    def _accepted_by_filter(
        self, expected: ExpectedStates, fresh: Iterable[tuple[Record, Input]]
    ) -> set[Coordinates] | None:
        """The inputs that a filter by id lets through, of inputs in their order."""
        if not self._world.picks:
            return None
        seen, chosen = set(expected.seen), set()
        for message, found in fresh:
            for unit in found.units or ():
                if unit.same not in seen:
                    seen.add(unit.same)
                    chosen.add(message.coordinates)
        return chosen

    def _fold_input(
        self, attempt: _Attempt, message: Record, found: Input, chosen: set[Coordinates] | None
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
