"""Aggregates with timers: a state for each key, timers that fire when event time reaches them, and states that expire.

    >>> from google.protobuf.wrappers_pb2 import Int64Value
    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.stages.table import MemoryTable
    >>> def count(state: Int64Value, word: str, timers: KeyTimers) -> None:
    ...     state.value += 1
    ...     timers.set_timer(60_000)
    >>> def tell(state: Int64Value, timer: Timer, timers: KeyTimers) -> list[str]:
    ...     timers.delete_state()
    ...     return [f"{state.value} words until {timer.at_ms}"]
    >>> words = TimedAggregate(MemoryTable(), state=Int64Value, fold=count, on_timer=tell)
    >>> for at_ms in (10, 59_999, 60_001):
    ...     verdict = words.accept(Record(key=b"k", value="word", timestamp_ms=at_ms))
    >>> words.take_results()
    [(b'k', '2 words until 60000'), (b'k', '1 words until 60000')]

Each key has one row, with its state and its timers. It depends on itself, on the key's own records, and on event time. A row is listed in the timetable (`sqe_chain.stages.clock`) at the moment of its first timer, or before that:

* A timer that is far away is listed at a moment that many rows share, and again when that is reached. So there are few
  buckets however far away timers are.
* A timer that was set later keeps its listing, and is listed again when that is reached. So a timer that moves with each
  record is listed about once in its length.

Source: timers of Flink and of Apache Beam. Here a timer fires under the record that has reached it, so that its outputs are the
same wherever batches end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow.context import Clock, Origin
from sqe_chain.flow.declaration import check_duration, state_codec
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_callable, check_values
from sqe_chain.flow.stage_kind import STANDARD, StageTask, StageTraits
from sqe_chain.flow.stored import StoredState
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.timers import NOTHING_REACHED, KeyTimers, Timer, TimersContext
from sqe_chain.flow.units import Push, Unit
from sqe_chain.stages.clock import BATCH_CLOCK, BUCKETS, JumpGuard, Timetable, bucket_length
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.own_values import OwnValues, state_left
from sqe_chain.stages.record import FORWARD, Record, Verdict
from sqe_chain.stages.record_work import RecordFunctions, RecordWork, UnitRecord
from sqe_chain.stages.timed_keys import KEYS, TimedKey, key_in, row_of
from sqe_chain.stages.timed_stage import MONTH_GUARD, KeyedStage, TimedKind
from sqe_chain.stages.user_code import guarded

MAX_BACK: Final = 10_000
"""How often in a row a key's timers may set one that is not after themselves."""

_BUCKET_MS: Final = 10_000
"""Length of the timetable's buckets, where no expiry decides it."""
_TICK_MS: Final = 100
"""The same for the batch's clock."""
_SHARES: Final = 16
"""Timers that are far away share listings that are closer to them than this part of the way."""

State = TypeVar("State")
Fold = Callable[[Any, Any, KeyTimers], Iterable[object] | None]
OnTimer = Callable[[Any, Timer, KeyTimers], Iterable[object] | None]


class ChangedState(NamedTuple):
    """The newest state of a key that a batch has changed, None if it was removed; and the `TimedAggregate.cause` of the last change."""

    key: bytes
    state: Any
    cause: Any


class TimerFailed(Exception):
    """`on_timer` raised on a timer of a key: the record that moved event time is not to blame."""

    def __init__(self, key: bytes, timer: Timer, raised: Exception) -> None:
        super().__init__(f"timer {timer.name!r} of key {key!r}, set for {timer.at_ms} ms: {raised}")
        self.key = key
        self.timer = timer
        self.raised = raised


def named_timer(timer: Timer) -> str:
    """A timer as error texts name it, before its key."""
    return f"the timer {timer.name!r} at {timer.at_ms} ms" if timer.name else f"the timer at {timer.at_ms} ms"


class TimedAggregate(KeyedStage[tuple[bytes, object]], Generic[State]):
    """Fold records into the state of their key; fire the key's timers, and remove its state, by event time.

    Guarantees, for one state partition:

    * Before a record of time t is folded, all timers with ``at_ms <= t`` fire, in the order of (time, key, name). A timer
      that is set for a time that has been reached fires next, before the next record.
    * A state is removed, with all timers of its key, when event time reaches the time of the key's last record plus
      `expire_after_ms`. The timers of that moment fire before. The next record of the key begins a new state. A record
      without a time counts here as one of the present event time.
    * How the records are divided into batches changes nothing.

    * Timers of the batch's clock fire in `tick`, at the end of a batch, in the order (time, key, name).

    Event time moves by records, and by `advance`. A record that is earlier than others before it is folded all the same.
    One that the guard does not believe is folded and moves nothing, if its policy is `hold`.

    Bound: one row for each key with a state, with its timers and about 30 bytes. The time index has the key and about 6 bytes.

    Args:
        state: type of the state, or its codec; a new key begins with ``state()``.
        fold: ``(state, value, timers) -> None | iterable of values``. When it raises, the record has moved event time, and
            changed nothing else.
        on_timer: ``(state, timer, timers) -> None | iterable of values``; None: no timer can be set, and those that were
            stored are dropped when they are due.
        expire_after_ms: how long a state stays without a record; 1 to 10**15; None: permanently. If it is changed, keys that
            are stored follow with their next record, or when they would have expired.
        stage: name of the stage, for error texts.
        others: as for `TimedStage`.

    Attributes:
        cause: what moves event time now, for `ChangedState.cause`; the caller sets it.
        cause_of: moment -> what stands for it there; None: nothing does. The caller sets it.
    """

    row_prefix = KEYS
    keeps = "timers are kept by key"

    def __init__(
        self,
        table: RowTable,
        *,
        state: type[State] | Codec[State],
        fold: Fold,
        on_timer: OnTimer | None = None,
        expire_after_ms: int | None = None,
        guard: JumpGuard | None = MONTH_GUARD,
        clock_ms: int | None = None,
        stage: str = "",
    ) -> None:
        where = type(self).__name__
        check_callable("fold", fold, where, "many")
        if on_timer is not None:
            check_callable("on_timer", on_timer, where, "many")
        if expire_after_ms is not None:
            check_duration("expire_after_ms", expire_after_ms, where, 1)
        self._bucket_ms = _BUCKET_MS if expire_after_ms is None else bucket_length(expire_after_ms)
        super().__init__(table, guard, bucket_ms=self._bucket_ms, exact=True, clock_ms=clock_ms)
        self.cause: Any = None
        self.cause_of: Callable[[int], Any] | None = None
        codec = self._codec = state if isinstance(state, Codec) else state_codec(where, state, None, where)
        self._fold = fold
        self._on_timer = on_timer
        self._expire_after_ms = expire_after_ms
        self._clock_ms = clock_ms
        self._stage = stage
        self._ticks = Timetable(table, bucket_ms=_TICK_MS, exact=True, names=BATCH_CLOCK)
        self._timer_ms: int | None = None
        self._rows: LiveRows[TimedKey] = LiveRows(
            table, partial(key_in, codec, expire_after_ms), partial(row_of, codec)
        )
        self._woken: set[bytes] = set()
        self._causes: dict[bytes, Any] = {}
        self._changes: list[ChangedState] = []

    @property
    def timer_ms(self) -> int | None:
        """When `tick` has something to do again, by the batch's clock; after `finish`. None: never."""
        return self._timer_ms

    def accept(self, record: Record) -> Verdict:
        """Fire what the record's event time has reached, then fold it, then fire what it has set for a time of the past.

        Raises:
            PoisonError: it has no key; or it is too far ahead, and the guard's policy is `stop`.
            TimerFailed: whatever `on_timer` raises.
            Exception: whatever `fold` raises.
        """
        row = self._row(record)
        if self._on_timer is not None:
            self._ticks.count()
        believed, refused = self._moved(record)
        if refused is not None:
            return refused
        if self._table.settled(row):  # an earlier attempt wrote it: to fold again would count twice
            return FORWARD
        key = self._rows[row]
        timers = self._timers_of(row, key)
        self._call(row, key, timers, lambda state: self._fold(state, record.value, timers))
        if key.state is not None and self._expire_after_ms is not None:
            # Without a usable time it is as old as event time: by a time of 1970 its state would expire at once.
            usable = believed and record.timestamp_ms > 0
            key.used(record.timestamp_ms if usable else self._known_ms(), self._expire_after_ms)
        key.reached_ms, key.back = None, 0
        self._remind(row, key)
        self._do_set()
        return FORWARD

    def tick(self, clock_ms: int) -> None:
        """The end of a batch's records: fire the timers that its clock has reached, and what they set for a time of the past.

        Args:
            clock_ms: the batch's clock; later than that of each tick before.

        Raises:
            TimerFailed: whatever `on_timer` raises.
        """
        self._ticks.time.advance(clock_ms)
        for at_ms, row in self._ticks.take_due():
            self._wake(row, at_ms, "batch")
            self._do_set()

    def take_changes(self) -> list[ChangedState]:
        """The states that the batch has changed, in the order of their keys; once, after `finish`."""
        changes, self._changes = self._changes, []
        return changes

    def finish(self, now_ms: int) -> None:
        self._changes = [
            ChangedState(row[len(KEYS) :], self._rows[row].state, cause)
            for row, cause in sorted(self._causes.items(), key=itemgetter(0))
        ]
        for row in sorted(self._woken | self._causes.keys()):
            self._list(row, self._rows[row])
        self._rows.write()
        self._timer_ms = self._ticks.next_due_ms
        super().finish(now_ms)
        self._ticks.finish()
        self._woken.clear()
        self._causes.clear()

    def _known_ms(self) -> int:
        """Event time; before there is one, the clock that the first record was compared with."""
        now_ms = self._timetable.time.now_ms
        return (self._clock_ms or 0) if now_ms is None else now_ms

    def _do_due(self) -> None:
        cause = self.cause
        for due_ms, row in self._take_due():
            self._wake(row, due_ms, "event")
        self.cause = cause

    def _do_set(self) -> None:
        """Fire what was set for a time that is reached. It goes out with what has set it: its moment is over."""
        for due_ms, row in self._timetable.take_due():
            self._wake(row, due_ms, "event")

    def _reach(self, moment_ms: int) -> None:
        if self.cause_of is not None:
            self.cause = self.cause_of(moment_ms)

    def _wake(self, row: bytes, due_ms: int, clock: Clock) -> None:
        """Fire the first timer of a key, if it is due; see to it that the key is woken for the next one."""
        if self._table.settled(row):
            return
        key = self._rows[row]
        self._woken.add(row)
        listing = key.listings[clock]
        if listing.next_ms is not None and listing.next_ms <= due_ms:
            listing.next_ms = None
        timer, expires_ms = key.first(clock), key.expires_ms if clock == "event" else None
        if timer is not None and timer.at_ms <= due_ms and (expires_ms is None or timer.at_ms <= expires_ms):
            self._fire(row, key, timer)
        elif expires_ms is not None and expires_ms <= due_ms:
            key.forget()
            self._changed(row, key)
        self._remind(row, key)

    def _fire(self, row: bytes, key: TimedKey, timer: Timer) -> None:
        timers, call = self._timers_of(row, key, timer), self._on_timer
        if call is None:  # the stage is declared without timers now
            key.timers = timers.timers
            return
        begin = len(self._results)
        try:
            self._call(row, key, timers, lambda state: call(state, timer, timers))
            self._check_end(key, timer, went_back=timers.went_back)
        except Exception as error:
            raise TimerFailed(timers.key, timer, error) from error
        for index in range(begin, len(self._results)):
            self._due_results[index] = named_timer(timer)

    def _check_end(self, key: TimedKey, timer: Timer, *, went_back: bool) -> None:
        """Refuse timers that set each other for the same time, or for earlier ones, without end."""
        if key.reached_ms is None or timer.at_ms > key.reached_ms:
            key.reached_ms, key.back = timer.at_ms, 0
        key.back += went_back
        if key.back > MAX_BACK:
            raise PoisonError(
                f"more than {MAX_BACK} times in a row a timer has set one that is not after itself. It would never end. Set it "
                "for timer.at_ms + 1 or later"
            )

    def _timers_of(self, row: bytes, key: TimedKey, fired: Timer | None = None) -> KeyTimers:
        timers = {clock: dict(known) for clock, known in key.timers.items()}
        reached = NOTHING_REACHED
        if fired is not None:
            del timers[fired.clock][fired.name]
            reached = {"event": self._known_ms(), fired.clock: fired.at_ms}
        allowed = self._on_timer is not None
        return KeyTimers(row[len(KEYS) :], timers, self._stage, allowed=allowed, reached=reached)

    def _call(
        self, row: bytes, key: TimedKey, timers: KeyTimers, call: Callable[[Any], Iterable[object] | None]
    ) -> None:
        """Call a function of the user on a copy of the state, so that one that fails changes nothing."""
        codec = self._codec
        state = codec.new() if key.state is None else codec.copy(key.state)
        given = list(call(state) or ())
        state = state_left(codec, state, f"stage {self._stage!r}: a fold or timer", row[len(KEYS) :])
        if timers.state_deleted:
            key.forget()
        else:
            key.state, key.timers = state, timers.timers
        self._changed(row, key)
        self._results += [(row[len(KEYS) :], value) for value in given]

    def _changed(self, row: bytes, key: TimedKey) -> None:
        self._rows[row] = key
        self._causes[row] = self.cause

    def _remind(self, row: bytes, key: TimedKey) -> None:
        for clock, timetable in self._timetables():
            next_ms, listing = key.next_ms(clock), key.listings[clock]
            if next_ms is not None and (listing.next_ms is None or next_ms < listing.next_ms):
                listing.next_ms = next_ms
                timetable.remind(row, next_ms)

    def _timetables(self) -> tuple[tuple[Clock, Timetable], ...]:
        return ("event", self._timetable), ("batch", self._ticks)

    def _list(self, row: bytes, key: TimedKey) -> None:
        """List a row for the batches to come, unless it is listed well."""
        for clock, timetable in self._timetables():
            now_ms, next_ms, listing = timetable.time.now_ms, key.next_ms(clock), key.listings[clock]
            listed_ms = listing.stored_ms
            if next_ms is None:
                listing.stored_ms = None
            elif listed_ms is None or listed_ms > next_ms or (now_ms is not None and listed_ms <= now_ms):
                # A timer may have been set for a time that the last tick has reached.
                listing.stored_ms = self._shared_ms(max(next_ms, (now_ms or 0) + 1), now_ms, clock)
                timetable.file(row, listing.stored_ms)
        self._rows[row] = key

    def _shared_ms(self, at_ms: int, now_ms: int | None, clock: Clock) -> int:
        """The moment at which to list a timer: its own, or one before it that others far away share."""
        step_ms = self._bucket_ms
        if clock == "batch":
            step_ms, now_ms = _TICK_MS, max(now_ms or 0, self._clock_ms or 0)
        distance_ms = 0 if now_ms is None else at_ms - now_ms
        if distance_ms <= BUCKETS * step_ms:
            return at_ms
        while 2 * _SHARES * step_ms <= distance_ms:
            step_ms *= 2
        return at_ms - at_ms % step_ms


@dataclass(frozen=True)
class TimersKind(TimedKind[TimedAggregate[Any]]):
    """The kind of `aggregate` with `on_timer` or `expire_after_ms`."""

    name = "timers"

    fold: DeclaredFunction
    states: Codec[Any]
    on_timer: DeclaredFunction | None = None
    expire_after_ms: int | None = None
    beats: DeclaredFunction | None = None
    guard: Any = STANDARD

    @property
    def codec(self) -> Codec[Any]:
        return self.states

    @property
    def traits(self) -> StageTraits:
        return StageTraits(
            method="aggregate",
            called="aggregate",
            order="times",
            needs_key=True,
            heartbeat=self.beats,
            maker=self.fold.function,
            guard=self.time_guard,
            gives_fresh=True,
            gives_outputs=True,
            ticks=self.on_timer is not None,
            gives_later=self.on_timer is not None,
            falls_due=True,
            sides=("changes",),
        )

    def check(self, where: str, *, dead_letters: bool) -> None:
        if self.on_timer is None and self.expire_after_ms is None:
            raise FlowError(f"{where}: an aggregate of this kind needs on_timer= or expire_after_ms=")
        if self.on_timer is not None and not self.fold.takes_context:
            raise FlowError(
                f"{where}: on_timer= without a fold that sets a timer: let the fold take the context as its third argument, "
                "and call context.set_timer(at_ms)"
            )
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> TimedAggregate[Any]:
        def in_context(declared: DeclaredFunction) -> Callable[..., Any]:
            call, takes_context = declared.function, declared.takes_context
            what = "fold" if declared is self.fold else "on_timer"
            values = OwnValues(what)

            def called(state: object, given: object, timers: KeyTimers) -> list[object]:
                context = [TimersContext(stage.cause, functions.now_ms, timers)] if takes_context else []
                given_values = call(state, given, *context)
                if given_values is None:
                    return []
                check_values(what, call, given_values, state)
                # What is given is passed on later: the next value may be the same object, filled again, or the state.
                return list(map(values.read_back, given_values))

            return called

        stage: TimedAggregate[Any] = TimedAggregate(
            table,
            state=self.states,
            fold=guarded(in_context(self.fold)),
            on_timer=None if self.on_timer is None else in_context(self.on_timer),
            expire_after_ms=self.expire_after_ms,
            stage=functions.name,
            **self.timing(clock_ms),
        )
        return stage

    def start(self, task: StageTask) -> TimersWork:
        return TimersWork(self, task)

    def states_in(self, row: bytes, content: bytes) -> Iterable[StoredState]:
        if not row.startswith(KEYS):  # of the timetable
            return ()
        return (StoredState(row[len(KEYS) :], key_in(self.states, None, content).state),)


class TimersWork(RecordWork):
    """The work of one such stage, in one state partition and batch."""

    def __init__(self, kind: TimersKind, task: StageTask) -> None:
        super().__init__(kind, task)
        self._broken = False
        if task.event_time is not None:
            self._stage.cause_of = task.event_time.origin

    def apply(self, units: Sequence[Unit]) -> None:
        # After a timer has failed nothing more is done, for this attempt counts for nothing
        if self._broken:
            return
        try:
            super().apply(units)
        except TimerFailed as error:
            self._break(error)

    def reach(self) -> None:
        if self._broken:
            return
        try:
            super().reach()
        except TimerFailed as error:
            self._break(error)

    def tick(self, origin: Origin, clock_ms: int) -> None:
        if self._broken:
            return
        self._stage.cause = origin
        try:
            self._stage.tick(clock_ms)
            self._give((b"", None, "", b"", origin))
            self._report_due()
        except TimerFailed as error:
            self._break(error)

    @property
    def timer_ms(self) -> int | None:
        timer_ms: int | None = self._stage.timer_ms
        return timer_ms

    def _break(self, error: TimerFailed) -> None:
        self._broken = True
        name = f"{error.timer.name!r} " if error.timer.name else ""
        what = f"on_timer, for the timer {name}of key {error.key!r} at {error.timer.at_ms} ms,"
        self._task.broken(what, error.raised)

    def finish(self) -> None:
        if not self._broken:
            super().finish()

    def push_changes(self, push: Push) -> None:
        """Pass changed states to the operators after `changes()`, in the order (last input that changed it, key)."""
        changes: Sequence[ChangedState] = self._stage.take_changes()
        by_input = sorted(
            changes, key=lambda change: (change.cause.order, change.cause.tp.topic_id, change.key)
        )
        for key, state, origin in by_input:
            push(state, key, b"", origin)

    def _process(self, record: UnitRecord, unit: Unit) -> None:
        self._stage.cause = unit[4]
        super()._process(record, unit)

    def _beat(self, unit: Unit) -> None:
        self._stage.cause = unit[4]
        super()._beat(unit)
