"""Joins: values of two streams with the same key, brought together by event time: what both have in common, and `StreamJoin`.

`StreamJoin` joins values of both streams that lie close to each other. Its brother is `sqe_chain.stages.table_join`.

A flow gives both streams in one order of event time. So it does not matter which is read first: the stream that is ahead waits
for the other (docs/event-time.md).

Source: the joins of Kafka Streams, where a record joins what has arrived by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqe_chain._proto.joins_pb2 import PartnersRow
from sqe_chain.flow.declaration import check_choice, check_duration
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_callable
from sqe_chain.flow.stage_kind import STANDARD, StageTraits
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import NUMBERS
from sqe_chain.stages.clock import JumpGuard, bucket_length
from sqe_chain.stages.own_values import OwnValues, Stored
from sqe_chain.stages.record import FORWARD, Record, Verdict
from sqe_chain.stages.record_work import RecordFunctions
from sqe_chain.stages.timed_stage import MONTH_GUARD, ExpiringRows, KeyedStage, RuleKind
from sqe_chain.stages.user_code import guarded

How = Literal["inner", "left"]
"""Whether a value of the first stream that finds no partner is skipped, or joined with None."""
Joined = tuple[bytes, object]
"""Key and value of an output."""
JOINED: Final = b"j"
"""Prefix of the rows of keys."""


class Join(KeyedStage[Joined]):
    """What both joins have in common."""

    row_prefix = JOINED
    keeps = "joins go by keys"

    def __init__(
        self,
        table: RowTable,
        combine: Callable[[Any, Any], object],
        is_second: Callable[[Record], bool],
        how: How,
        guard: JumpGuard | None,
        **timetable: Any,  # noqa: ANN401 - see `Timetable`
    ) -> None:
        where = type(self).__name__
        check_callable("combine", combine, where)
        check_callable("is_second", is_second, where)
        check_choice("how", how, ("inner", "left"), where)
        super().__init__(table, guard, **timetable)
        self._combine = combine
        self._is_second = is_second
        self._how = how
        self._values = OwnValues("combine")

    def _give(self, key: bytes, first: object, second: object) -> None:
        joined = self._combine(first, second)
        if joined is not None:
            self._results.append((key, joined))


@dataclass(slots=True)
class Partner:
    """A value that may still find a partner.

    Attributes:
        at_ms: its event time.
        second: whether it is of the second stream.
        value: the value; each call of `combine` reads its own.
        alone: of the first stream while it has found none: what is emitted if it finds none; otherwise None.
        listed_ms: the moment at which the stored timetable lists it; None: not yet listed.
    """

    at_ms: int
    second: bool
    value: Stored
    alone: Stored | None = None
    listed_ms: int | None = None


class StreamJoin(Join):
    """Join values of two streams with the same key whose event times are close to each other.

    Guarantees, for one state partition:

    * Each pair (first, second) with `first - before_ms <= second <= first + after_ms` is joined once, whichever comes first.
    * With "left", a value of the first stream without a partner is combined with None, once. That happens when stream time has
      passed the last moment at which one might come.
    * A value more than `lateness_ms` before stream time is late, and dropped.

    Bound: each value, for as long as a partner may come, with its key and about 30 bytes.

    Args:
        combine: (value of the first stream, of the second; None if there is none) -> output; None for no output.
        is_second: whether a record is of the second stream.
        before_ms: how much earlier than a value of the first stream its partner may be; 0 to 10**15.
        after_ms: how much later; 0 to 10**15.
        how: "inner" or "left".
        lateness_ms: how late a value may be; 0 to 10**15.
        others: as for `TimedStage`.
    """

    def __init__(  # noqa: PLR0913 - settings, each with its name
        self,
        table: RowTable,
        *,
        combine: Callable[[Any, Any], object],
        is_second: Callable[[Record], bool],
        before_ms: int,
        after_ms: int,
        how: How = "inner",
        lateness_ms: int = 0,
        guard: JumpGuard | None = MONTH_GUARD,
        clock_ms: int | None = None,
    ) -> None:
        where = type(self).__name__
        check_duration("before_ms", before_ms, where)
        check_duration("after_ms", after_ms, where)
        check_duration("lateness_ms", lateness_ms, where)
        bucket_ms = bucket_length(before_ms + after_ms + lateness_ms)
        super().__init__(
            table, combine, is_second, how, guard, bucket_ms=bucket_ms, exact=True, clock_ms=clock_ms
        )
        self._before_ms, self._after_ms, self._lateness_ms = before_ms, after_ms, lateness_ms
        self._expiring = ExpiringRows(
            table, self._timetable, decode=_partners_in, encode=_partners_row, end_of=self._end_of, gives=True
        )
        self._due: set[bytes] = set()

    def accept(self, record: Record) -> Verdict:
        """Give what finds no partner any more, then join the value with all partners that have come; see `take_results`.

        Raises:
            PoisonError: it has no key; or it is too far ahead, and the guard's policy is `stop`.
            Exception: whatever `combine` raises; the record has then moved stream time, and joined nobody.
        """
        row = self._row(record)
        settled = self._table.settled(row)
        if not settled:
            self._expiring.all_at(row)  # what is due of it
        _, refused = self._moved(record)
        verdict = refused or self._lateness(record, self._lateness_ms)
        if verdict is not None:
            return verdict
        if settled:  # an earlier attempt has written it
            return FORWARD
        own = Partner(record.timestamp_ms, self._is_second(record), self._values.store(record.value))
        partners = self._expiring.at(row)
        fitting = [partner for partner in partners if self._fits(own, partner)]
        joined = [self._joined(own, partner, alone=len(fitting) == 1) for partner in fitting]
        if not own.second and not fitting and self._how == "left":
            made = self._combine(record.value, None)
            own.alone = None if made is None else self._values.store(made)
        # Only after all have succeeded: a value that fails has joined nobody.
        for partner in fitting:
            partner.alone = None
        key = row[len(JOINED) :]
        self._results += [(key, made) for made in joined if made is not None]
        self._expiring.replace(row, [*partners, own])
        self._timetable.remind(row, self._end_of(own))
        return FORWARD

    def finish(self, now_ms: int) -> None:
        self._expiring.finish(self._due)
        super().finish(now_ms)
        self._due.clear()

    def _joined(self, own: Partner, other: Partner, *, alone: bool) -> object:
        """What `combine` gives for two partners; if it is not alone, `combine` may fill one object again and again."""
        first, second = (other, own) if own.second else (own, other)
        made = self._combine(self._values.read(first.value), self._values.read(second.value))
        return made if alone else self._values.read_back(made)

    def _fits(self, value: Partner, other: Partner) -> bool:
        if value.second == other.second:
            return False
        first, second = (other, value) if value.second else (value, other)
        return -self._before_ms <= second.at_ms - first.at_ms <= self._after_ms

    def _end_of(self, partner: Partner) -> int:
        reach_ms = self._before_ms if partner.second else self._after_ms
        return partner.at_ms + reach_ms + self._lateness_ms + 1

    def _do_due(self) -> None:
        for due_ms, row in self._take_due():
            self._due.add(row)
            partners = self._expiring.all_at(row)
            over = [partner for partner in partners if self._end_of(partner) <= due_ms]
            if over:
                for partner in over:
                    if partner.alone is not None:
                        self._due_results[len(self._results)] = (
                            f"the end of the wait for a partner of the value at {partner.at_ms} ms"
                        )
                        self._results.append((row[len(JOINED) :], self._values.read(partner.alone)))
                self._expiring.replace(row, [partner for partner in partners if partner not in over])


def _partners_in(content: bytes) -> list[Partner]:
    return [
        Partner(
            stored.at_ms,
            stored.second,
            Stored(stored.type, stored.value),
            Stored(stored.alone_type, stored.alone) if stored.HasField("alone") else None,
            stored.at_ms + stored.listed_after_ms,
        )
        for stored in PartnersRow.FromString(content).partners
    ]


def _partners_row(partners: list[Partner]) -> bytes:
    row = PartnersRow()
    for partner in partners:
        stored = row.partners.add(
            at_ms=partner.at_ms,
            second=partner.second,
            type=partner.value.type,
            value=partner.value.data,
            listed_after_ms=(partner.listed_ms or partner.at_ms) - partner.at_ms,
        )
        if partner.alone is not None:
            stored.alone_type, stored.alone = partner.alone
    return row.SerializeToString(deterministic=True)


def is_second(record: Record) -> bool:
    """Whether a record came by the second input of its stage: the compiler ends its path with the number of the input."""
    unit: Any = getattr(record, "unit", ())
    return bool(unit[3].endswith(NUMBERS[1]))


@dataclass(frozen=True)
class JoinKind(RuleKind[Any]):
    """What both kinds have in common."""

    method = ""

    combine: DeclaredFunction
    how: str = "inner"
    guard: Any = STANDARD
    late: Any = "drop"

    @property
    def traits(self) -> StageTraits:
        return StageTraits(
            method=self.method,
            called="join",
            order="times",
            inputs=2,
            needs_key=True,
            maker=self.combine.function,
            guard=self.time_guard,
            gives_outputs=True,
            sides=("dropped",),
            own_times=self.own_times,
        )

    def wrapped(self, function: DeclaredFunction, functions: RecordFunctions) -> Callable[..., Any]:
        del functions
        return guarded(function.function)

    def settings(self, functions: RecordFunctions, clock_ms: int | None) -> dict[str, Any]:
        settings = super().settings(functions, clock_ms)
        del settings["late"]
        return {**settings, "is_second": is_second}


@dataclass(frozen=True)
class StreamJoinKind(JoinKind):
    """The kind of `join_stream`."""

    name = "stream-join"
    method = "join_stream"
    rule = StreamJoin

    before_ms: int = 0
    after_ms: int = 0
    lateness_ms: int = 0
    time: DeclaredFunction | None = None
    other_time: DeclaredFunction | None = None

    @property
    def times(self) -> tuple[DeclaredFunction | None, ...]:
        return self.time, self.other_time

    @property
    def traits(self) -> StageTraits:
        # Without partners, values of an inner join give nothing, so nobody misses when they are forgotten.
        return replace(super().traits, falls_due=self.how == "left")
