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

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqe_chain._proto.windows_pb2 import SightingsRow
from sqe_chain.flow.declaration import check_choice, check_duration
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import STANDARD, StageTraits
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.clock import Held, JumpGuard, bucket_length
from sqe_chain.stages.identity import Identity, by_key, by_key_and
from sqe_chain.stages.record import FORWARD, NOWHERE, Reason, Record, Spot, Verdict, dropped
from sqe_chain.stages.record_work import FORWARDING, RecordFunctions, id_of
from sqe_chain.stages.timed_stage import RememberingStage, RuleKind

_DEFAULT_GUARD: Final = JumpGuard()

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
        alive = self._expiring.at(row)
        for sighting in alive:
            if abs(sighting.timestamp_ms - record.timestamp_ms) <= self._interval_ms:
                return FORWARD if self._is_same(record, sighting) else self._duplicate(record, sighting)
        if late is None:
            sighting = _Forwarded(record.timestamp_ms, record.spot, noted_ms=None if believed else now_ms)
            if self._by_offset:
                sighting.offset = record.offset
            self._expiring.replace(row, [*_with_room(alive), sighting])
        return FORWARD

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
        return record.spot != NOWHERE and record.spot == sighting.spot

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

    def settings(self, functions: RecordFunctions, clock_ms: int | None) -> dict[str, Any]:
        settings = super().settings(functions, clock_ms)
        by_id, id_in = settings.pop("by_id"), settings.pop("id")
        return {**settings, "identity": id_of if by_id else by_key_and(id_in) if id_in else by_key}
