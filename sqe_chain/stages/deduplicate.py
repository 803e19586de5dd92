"""Deduplicate: forward the first of the records that have the same id within an interval of event time.

    >>> from sqe_chain.stages.record import Record, Spot
    >>> from sqe_chain.stages.table import MemoryTable
    >>> table = MemoryTable()
    >>> screws = Deduplicate(table, interval_ms=10_000)
    >>> records = [Record(key=b"screw 7", timestamp_ms=at_ms) for at_ms in (5_000, 15_000, 16_000)]
    >>> [screws.accept(record).forward for record in records]
    [True, False, True]
    >>> screws.finish(now_ms=0)

Source: KIP-655, without its gaps. Stream time is durable, and one wrong timestamp does not purge everything
(`JumpGuard`). The same record is recognised by lane and position. An offset alone would confuse records of
merged topics, and siblings that a flat-map made of one input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, Final, Literal, NamedTuple

from sqe_chain._proto.windows_pb2 import SightingsRow
from sqe_chain.flow.declaration import check_choice, check_duration
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import STANDARD, StageTask, StageTraits, StageWork
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import Unit, UnitRun, unpack_key_and_id
from sqe_chain.stages.clock import Held, JumpGuard, bucket_length
from sqe_chain.stages.identity import Identity, by_key, by_key_and, row_named, rows_by_key_and
from sqe_chain.stages.record import FORWARD, NOWHERE, Reason, Record, Spot, Verdict, dropped
from sqe_chain.stages.record_work import FORWARDING, RecordFunctions, RunWork, id_of, moves_in
from sqe_chain.stages.timed_stage import RememberingStage, RuleKind
from sqe_chain.stages.user_code import RunError

_DEFAULT_GUARD: Final = JumpGuard()

WORTHWHILE: Final = 50
"""Records of one block that are decided about together, if there are as many; with fewer, all are, in whatever blocks they came."""
MAX_SIGHTINGS: Final = 4
"""Of one id, where some are too far ahead (`JumpGuard`). Of others, inputs that have rows of several times may bring any number."""


@dataclass(slots=True)
class _Forwarded:
    """A record that was forwarded.

    Attributes:
        timestamp_ms: its event time.
        spot: its lane and position.
        offset: its offset; kept for `compat="kip655"` only, else -1.
        noted_ms: stream time when it came, if it was too far ahead to be believed; else None.
        listed_ms: the moment at which the timetable lists it; None: not yet listed.
    """

    timestamp_ms: int
    spot: Spot
    offset: int = -1
    noted_ms: int | None = None
    listed_ms: int | None = None


class Sightings(NamedTuple):
    """Records side by side.

    Attributes:
        rows: what remembers the id of each; None: it has none.
        times_ms: their event times.
        moves_ms: what they move stream time to; see `moves_in`.
        placed: they have places in the order of times.
        spots: their lanes and positions.
        opened: row -> what is remembered there. It has all of these rows.
    """

    rows: Sequence[bytes | None]
    times_ms: Sequence[int]
    moves_ms: Sequence[int]
    placed: bool
    spots: Sequence[Spot]
    opened: dict[bytes, list[_Forwarded]]


class Deduplicate(RememberingStage[_Forwarded]):
    """Drop records whose id was forwarded within an interval of event time, before or after theirs.

    Guarantees, for one state partition (the engine brings equal ids together):

    * The first to arrive is forwarded, whatever its event time. A dropped record is not remembered, so it does
      not extend the interval.
    * The interval includes both ends: with 0, records of the same millisecond are duplicates.
    * A record without id is forwarded; it moves stream time as every record does, dropped or not.
    * A record with the lane and position of the forwarded one is the same record, and is forwarded again. An
      element that has no position of its own (`NOWHERE`) never is.
    * A forwarded record is remembered until stream time has passed its own by twice the interval. Records within
      the interval of it are late from then on, so no record that is not late finds it forgotten.
    * A record older than stream time less the interval is late. It is not remembered, so its duplicates are
      forwarded too.

    It cannot see a duplicate farther away than the interval, nor one of a late record. Once its memory of a record
    has expired, it cannot recognise a replay of it. A flow never passes one on; without a flow, put a `ReplayFilter`
    before it.

    Bound: one row for each id forwarded within twice the interval of stream time (and a 64th of that). Its name has at most 129 bytes,
    its content about 50 bytes and the position's length. Records of one id from too far ahead take up to 4 times that. The time
    index has the name again and about 6 bytes.

    Args:
        interval_ms: milliseconds, 0 to 10**15.
        identity: gives a record's id: `by_key`, `by_key_and`, or a function of one's own.
        late: `forward`: a late record is forwarded unless its duplicate is still remembered; `drop`: it is dropped.
        compat: `kip655`: the KIP's exact behaviour: the same record is recognised by its offset, and there is no
            guard, whatever `guard` is. It is remembered for the interval alone. (Stream time stays durable.)
        others: as for `TimedStage`.
    """

    def __init__(
        self,
        table: RowTable,
        *,
        interval_ms: int,
        identity: Identity = by_key,
        late: Literal["forward", "drop"] = "forward",
        guard: JumpGuard | None = _DEFAULT_GUARD,
        clock_ms: int | None = None,
        compat: Literal["kip655"] | None = None,
    ) -> None:
        check_duration("interval_ms", interval_ms, type(self).__name__)
        check_choice("compat", compat, ("kip655", None), type(self).__name__)
        self._interval_ms = interval_ms
        self._by_offset = compat is not None
        # Twice: a record that is not late may lie an interval before stream time, and its duplicate an interval
        # before that.
        self._kept_ms = interval_ms if self._by_offset else 2 * interval_ms
        super().__init__(
            table,
            None if self._by_offset else guard,
            identity=identity,
            late=late,
            decode=_decode,
            encode=_encode,
            end_of=self._end_of,
            bucket_ms=bucket_length(self._kept_ms),
            clock_ms=clock_ms,
            hold_ms=self._kept_ms,
        )

    def accept(self, record: Record) -> Verdict:
        """Decide on one record.

        Raises:
            PoisonError: it is too far ahead, and the guard's policy is `stop`.
            Exception: whatever `identity` raises; the record has then changed nothing.
        """
        row = self._row(record)
        time = self._timetable.time
        believed = self._timetable.follow(record, row)
        if time.reached:
            self._believe(time.reached)
        now_ms = time.now_ms
        if row is None:
            return FORWARD
        if (refused := self._refuse(record, believed=believed)) is not None:
            return refused
        if now_ms is None:
            return FORWARD
        late = self._lateness(record, self._interval_ms)
        if late is not None and self._late == "drop":
            return late
        alive, near = self._alive_and_near(self._expiring.all_at(row), record.timestamp_ms, now_ms)
        if near:
            return FORWARD if self._is_same(record, near[0]) else self._duplicate(record, near[0])
        if late is None:
            sighting = _Forwarded(record.timestamp_ms, record.spot, noted_ms=None if believed else now_ms)
            if self._by_offset:
                sighting.offset = record.offset
            self._expiring.replace(row, [*_with_room(alive), sighting])
        return FORWARD

    def accept_run(self, run: Sightings, begin: int, *, count_repeats: bool) -> tuple[int, list[int], int]:
        """Decide on records as `accept` does, from an index on, for as long as nothing but their ids has to be looked at.

        It costs a small part of `accept`. Not with `compat`, nor where a record has a time of its own.

        Args:
            run: the records.
            begin: the index of the first.
            count_repeats: duplicates are only counted; else it ends before one, whose verdict `accept` gives.

        Returns:
            The index of the first record that needs `accept`, or the number of records. Then the indexes of those that are
            forwarded, and how many are duplicates.
        """
        forwarded: list[int] = []
        changed: list[bytes] = []
        repeats, index = 0, begin
        time, interval_ms = self._timetable.time, self._interval_ms
        now_ms, limit_ms, opened = time.now_ms, time.quiet_until_ms, run.opened
        if now_ms is None:
            return begin, forwarded, 0
        for index in range(begin, len(run.rows)):
            row, at_ms, to_ms = run.rows[index], run.times_ms[index], run.moves_ms[index]
            if to_ms >= limit_ms:
                break
            now_ms = max(now_ms, to_ms)
            if row is None:
                forwarded.append(index)
                continue
            if at_ms < now_ms - interval_ms:
                break
            alive = near = opened[row]
            if alive:
                alive, near = self._alive_and_near(alive, at_ms, now_ms)
            if not near:
                opened[row] = [*_with_room(alive), _Forwarded(at_ms, run.spots[index])]
                changed.append(row)
            elif not self._is_at(near[0], run.spots[index]):
                if not count_repeats:
                    break
                repeats += 1
                continue
            forwarded.append(index)
        else:
            index += 1
        self._expiring.changed(changed)
        self._timetable.observe_run(index - begin, now_ms, placed=run.placed)
        return index, forwarded, repeats

    def opened(self, rows: Iterable[bytes]) -> dict[bytes, list[_Forwarded]]:
        """What is remembered of rows, for `accept_run`."""
        return self._expiring.opened(rows)

    def advance(self, to_ms: int) -> None:
        super().advance(to_ms)
        self._believe(self._timetable.time.reached)

    def _believe(self, reached: list[Held]) -> None:
        """Remember records that were too far ahead by their own time, now that stream time has reached them."""
        for held in reached:
            sightings = self._expiring.all_at(held.row)
            for sighting in sightings:
                if (sighting.timestamp_ms, sighting.noted_ms) == held[1:]:
                    sighting.noted_ms = None
            self._expiring.replace(held.row, sightings)
        reached.clear()

    def _is_same(self, record: Record, sighting: _Forwarded) -> bool:
        if self._by_offset:
            return record.offset >= 0 and record.offset == sighting.offset
        return self._is_at(sighting, record.spot)

    @staticmethod
    def _is_at(sighting: _Forwarded, spot: Spot) -> bool:
        return spot == sighting.spot and spot != NOWHERE

    def _alive_and_near(
        self, sightings: list[_Forwarded], at_ms: int, now_ms: int
    ) -> tuple[list[_Forwarded], list[_Forwarded]]:
        """Those that have not expired; and of these the ones within the interval of a moment."""
        alive = [each for each in sightings if self._end_of(each) > now_ms]
        return alive, [each for each in alive if abs(each.timestamp_ms - at_ms) <= self._interval_ms]

    def _duplicate(self, record: Record, sighting: _Forwarded) -> Verdict:
        near = f"is within {self._interval_ms} ms of {sighting.timestamp_ms} ms"
        return dropped(Reason.DUPLICATE, f"event time {record.timestamp_ms} ms {near}", sighting.spot)

    def _end_of(self, sighting: _Forwarded) -> int:
        begin_ms = sighting.timestamp_ms if sighting.noted_ms is None else sighting.noted_ms
        return begin_ms + self._kept_ms + 1


def _with_room(sightings: list[_Forwarded]) -> list[_Forwarded]:
    """Room for one more: drops the oldest that is not believed, if there is one. The others are needed."""
    if len(sightings) < MAX_SIGHTINGS:
        return sightings
    oldest = next((each for each in sightings if each.noted_ms is not None), None)
    return [each for each in sightings if each is not oldest]


def _decode(content: bytes) -> list[_Forwarded]:
    return [
        _Forwarded(
            stored.timestamp_ms,
            Spot(stored.lane, stored.position),
            stored.offset if stored.HasField("offset") else -1,
            stored.noted_ms if stored.HasField("noted_ms") else None,
            stored.timestamp_ms + stored.listed_after_ms,
        )
        for stored in SightingsRow.FromString(content).sightings
    ]


def _encode(sightings: list[_Forwarded]) -> bytes:
    row = SightingsRow()
    for sighting in sightings:
        row.sightings.add(
            timestamp_ms=sighting.timestamp_ms,
            lane=sighting.spot.lane,
            position=sighting.spot.position,
            offset=sighting.offset if sighting.offset >= 0 else None,
            noted_ms=sighting.noted_ms,
            listed_after_ms=(sighting.listed_ms or 0) - sighting.timestamp_ms,
        )
    return row.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class DeduplicateKind(RuleKind[Deduplicate]):
    """The kind of `deduplicate`, `deduplicate_by_key` and `deduplicate_by_key_value`."""

    name = "deduplicate"
    rule = Deduplicate
    standard = _DEFAULT_GUARD
    late_choices = ("forward", "drop", "stop")
    own_setting = ""

    by_id: bool
    id: DeclaredFunction | None
    interval_ms: int
    late: Any = "forward"
    guard: Any = STANDARD
    compat: Any = None
    time: DeclaredFunction | None = None

    @property
    def traits(self) -> StageTraits:
        by_value = "deduplicate_by_key_value" if self.id else "deduplicate_by_key"
        return replace(
            FORWARDING,
            method="deduplicate" if self.by_id else by_value,
            order="times",
            spread="id" if self.by_id else "key",
            identity=self.id if self.by_id else None,
            guard=self.time_guard,
            own_times=self.own_times,
        )

    @property
    def by_columns(self) -> bool:
        """Whether nothing but the ids of values has to be looked at, as a rule."""
        plain = not any(function.takes_context for function in self.functions)
        return plain and self.compat is None and self.time is None

    def start(self, task: StageTask) -> StageWork:
        return DeduplicateWork(self, task)

    def settings(self, functions: RecordFunctions, clock_ms: int | None) -> dict[str, Any]:
        settings = super().settings(functions, clock_ms)
        by_id, id_in = settings.pop("by_id"), settings.pop("id")
        return {**settings, "identity": id_of if by_id else by_key_and(id_in) if id_in else by_key}


class DeduplicateWork(RunWork):
    """The work of `deduplicate`: record by record, or in runs where nothing is taken back."""

    def __init__(self, kind: DeduplicateKind, task: StageTask) -> None:
        super().__init__(kind, task)
        self._declared = kind
        self._in_runs = kind.by_columns and not task.reversible

    def apply(self, units: Sequence[Unit]) -> None:
        run = UnitRun.of(units)
        for part in run.by_source(WORTHWHILE) if self._in_runs else (run,):
            known = self._known(part)
            if known is None:
                super().apply(part)
            else:
                self._apply_run(part, *known)

    def _known(self, run: UnitRun) -> tuple[list[bytes | None], list[bytes | None]] | None:
        """Their keys, and their rows; None where one has to be looked at by itself."""
        kind, keys = self._declared, run.keys
        if not self._in_runs or type(None) in set(map(type, run.values)):  # a heartbeat
            return None
        try:
            if kind.by_id:
                keys, ids = map(list, zip(*map(unpack_key_and_id, keys), strict=True))
                return keys, [None if each is None else row_named(each) for each in ids]
            if kind.id is None:
                return keys, [None if key is None else row_named(key) for key in keys]
            identity = kind.id.function
            return keys, rows_by_key_and(
                keys,
                [
                    None if key is None else identity(value)
                    for key, value in zip(keys, run.values, strict=True)
                ],
            )
        except Exception:  # noqa: BLE001 - user code may raise anything; record by record the first one to fail is found
            return None

    def _apply_run(self, run: UnitRun, keys: list[bytes | None], rows: list[bytes | None]) -> None:
        task, stage, index = self._task, self._stage, 0
        wanted = list(dict.fromkeys(row for row in rows if row is not None))
        task.table.load(wanted)
        moves_ms, placed = moves_in(run)
        sightings = Sightings(
            rows, run.times_ms, moves_ms, placed, list(starmap(Spot, run.spots())), stage.opened(wanted)
        )
        if task.applies is not None:
            task.applies(run)
        while index < len(run):  # each turn takes one unit at least
            index, forwarded, repeats = stage.accept_run(sightings, index, count_repeats=task.drop is None)
            if repeats:
                task.counts[task.name, str(Reason.DUPLICATE)] += repeats
            self._forward(run, keys, forwarded)
            if index < len(run):
                super().apply((run[index],))
                index += 1

    def _forward(self, run: UnitRun, keys: list[bytes | None], forwarded: list[int]) -> None:
        emit: Any = self._task.emit
        if emit is None:
            return
        values, paths, numbered, index = run.values, run.paths, self._task.applies is not None, 0
        try:
            for index in forwarded:
                emit(values[index], keys[index], paths[index], index if numbered else run.origin(index))
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            self._stop(run, index, RunError(error, index))
