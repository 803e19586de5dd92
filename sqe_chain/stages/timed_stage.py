"""What stages that go by event time have in common: stream time, its guard, rows whose items expire by it, and their kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from sqe_chain.errors import PoisonError
from sqe_chain.flow.declaration import check_choice, check_guard
from sqe_chain.flow.filtering import DAY_MS
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_callable
from sqe_chain.flow.stage_kind import STANDARD, EventTimeSpan, OwnTimes
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.clock import JumpGuard, Timetable
from sqe_chain.stages.identity import Identity, row_of, rows_of
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.record import Reason, Record, Verdict, dropped
from sqe_chain.stages.record_work import Given, RecordFunctions, RecordKind, Stage

MONTH_GUARD: Final = JumpGuard(max_jump_ms=31 * DAY_MS)
"""The guard of event time by default, where a wrong time closes something."""

Output = TypeVar("Output")
_NEVER_MS: Final = 1 << 62


class TimedStage:
    """A stage over a table of rows that goes by event time.

    Args:
        table: its rows.
        guard: of stream time; None: every timestamp is believed.
        clock_ms: what the guard compares the very first record with; None: that one is believed.
        timetable: settings of its `Timetable`.

    Raises:
        FlowError: a setting of the stage is out of its bounds.
    """

    def __init__(self, table: RowTable, guard: JumpGuard | None, **timetable: Any) -> None:  # noqa: ANN401 - see `Timetable`
        check_guard(guard, type(self).__name__)
        self._table = table
        self._guard = guard
        self._timetable = Timetable(table, guard=guard, **timetable)

    @property
    def stream_time_ms(self) -> int | None:
        """Stream time; None before the first record."""
        return self._timetable.time.now_ms

    def advance(self, to_ms: int) -> None:
        """Move stream time without a record, for inputs that are silent: the same in every attempt of a batch."""
        self._timetable.time.advance(to_ms)

    def finish(self, now_ms: int) -> None:
        """End the batch: purge by stream time, and write. The next batch may begin with this object or a new one."""
        del now_ms
        self._timetable.finish()

    def _lateness(self, record: Record, allowed_ms: int) -> Verdict | None:
        """The verdict on a record that is more than this before stream time; None: it is not."""
        now_ms = self.stream_time_ms
        if now_ms is None or record.timestamp_ms >= now_ms - allowed_ms:
            return None
        before = f"is more than {allowed_ms} ms before stream time {now_ms} ms"
        return dropped(Reason.LATE, f"event time {record.timestamp_ms} ms {before}")

    def _refuse(self, record: Record, *, believed: bool) -> Verdict | None:
        """The verdict on a record that is too far ahead; None: the stage takes it.

        Raises:
            PoisonError: the guard's policy is `stop`.
        """
        if believed or self._guard is None or self._guard.policy == "hold":
            return None
        return self._guard.refuse(record, self.stream_time_ms)


class KeyedStage(TimedStage, Generic[Output]):
    """One that keeps its rows by key, and gives outputs of its own."""

    row_prefix: ClassVar[bytes]
    """Begins the rows of keys."""
    keeps: ClassVar[str]
    """What needs the key, in the text for a record without one."""

    def __init__(self, table: RowTable, guard: JumpGuard | None, **timetable: Any) -> None:  # noqa: ANN401 - see `Timetable`
        super().__init__(table, guard, **timetable)
        self._results: list[Output] = []
        self._due_results: dict[int, str] = {}
        # Index of a result -> the moment that has caused it. Invariant: empty without `begin`.
        self._moments: dict[int, int] = {}
        # With `begin`: nothing is due up to here; what is found to be, because settings have changed, is due after it.
        self._begun_ms: int | None = None
        self._by_moments = False

    def begin(self, at_ms: int | None) -> None:
        """From now on moments cause what is due, and not the records that come after them.

        Args:
            at_ms: where event time had come before the batch: all that was due by then is done. None: nowhere.
        """
        self._by_moments, self._begun_ms = True, at_ms
        if at_ms is not None:
            self._timetable.time.advance(at_ms)

    @property
    def next_due_ms(self) -> int | None:
        """After `finish`: when something is due next; None: nothing is."""
        return self._timetable.listed_ms

    def advance(self, to_ms: int) -> None:
        super().advance(to_ms)
        self._do_due()

    def _moved(self, record: Record) -> tuple[bool, Verdict | None]:
        """Move stream time by a record, and do what is due, whatever becomes of the record.

        Returns:
            Whether its time is believed, and the verdict on it if it is refused.

        Raises:
            PoisonError: it is too far ahead, and the guard's policy is `stop`.
        """
        believed = self._timetable.follow(record)
        self._do_due()
        return believed, self._refuse(record, believed=believed)

    def _do_due(self) -> None:
        """Do what stream time has reached, in the order of `_take_due`; it is done at each move of stream time."""

    def _take_due(self) -> Iterator[tuple[int, bytes]]:
        """What is due, as `Timetable.take_due` gives it, with the moment of each result noted."""
        if not self._by_moments:
            yield from self._timetable.take_due()
            return
        now_ms, begun_ms = self._timetable.time.now_ms, self._begun_ms
        if now_ms is None or (begun_ms is not None and now_ms <= begun_ms):
            return
        moment_ms = -_NEVER_MS if begun_ms is None else begun_ms + 1
        for due_ms, row in self._timetable.take_due():
            # What a timer sets for a time that is reached goes with it, so moments rise.
            moment_ms, begin = max(moment_ms, due_ms), len(self._results)
            self._reach(moment_ms)
            yield due_ms, row
            self._moments |= dict.fromkeys(range(begin, len(self._results)), moment_ms)

    def _reach(self, moment_ms: int) -> None:
        """Something is due at a moment, which causes what is done next."""

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will read for these records; it loads by itself what becomes due."""
        return dict.fromkeys(self.row_prefix + record.key for record in records if record.key is not None)

    def take_results(self) -> list[Output]:
        """The outputs since the last call, in order."""
        results, self._results = self._results, []
        self._due_results, self._moments = {}, {}
        return results

    @property
    def moments(self) -> dict[int, int]:
        """Index of an output to take -> the moment that has caused it; with `begin`, for all that was due."""
        return self._moments

    @property
    def due_results(self) -> dict[int, str]:
        """Index of an output to take -> what has caused it, if the record has not: a window or a timer, as texts name it."""
        return self._due_results

    @property
    def has_results(self) -> bool:
        """Whether there are outputs to take."""
        return bool(self._results)

    def _row(self, record: Record) -> bytes:
        """The row of the record's key.

        Raises:
            PoisonError: it has none.
        """
        if record.key is None:
            raise PoisonError(
                f"{record} has no key, and {self.keeps}: set one with key_by(), or choose a poison policy that leaves it out"
            )
        return self.row_prefix + record.key


class Expiring(Protocol):
    """An item of a row.

    Attributes:
        listed_ms: the moment at which the timetable lists it; None: not yet listed.
    """

    listed_ms: int | None


Item = TypeVar("Item", bound=Expiring)


class ExpiringRows(Generic[Item]):
    """Decoded rows of one stage in one state partition, while a batch runs.

    What a row becomes depends on its own old content, the records, and stream time at the end of the batch.
    Each item is listed in the timetable once. If it has been extended when that listing is due, it is listed again.

    An item that gives something when it expires must not be purged before that. It expires at another moment than it is listed
    for if it was extended, or if the stage is declared with other times now. So the timetable reminds of it once its row is read.

    Args:
        table: the stage's rows.
        timetable: their timetable.
        decode: content of a row -> its items.
        encode: items -> content.
        end_of: an item -> the first stream time at which the item has expired.
        gives: whether an item gives something when it expires. Then its row has to be read before a record of it moves stream time.
    """

    def __init__(
        self,
        table: RowTable,
        timetable: Timetable,
        *,
        decode: Callable[[bytes], list[Item]],
        encode: Callable[[list[Item]], bytes],
        end_of: Callable[[Item], int],
        gives: bool = False,
    ) -> None:
        self._table = table
        self._timetable = timetable
        self._end_of = end_of
        self._rows: LiveRows[list[Item]] = LiveRows(
            table,
            lambda content: [] if content is None else decode(content),
            lambda items: encode(items) if items else None,
            self._remind if gives else None,
        )

    def all_at(self, row: bytes) -> list[Item]:
        """All live items of a row, including those that have expired but are not purged yet."""
        return self._rows[row]

    def at(self, row: bytes) -> list[Item]:
        """The live items of a row that have not expired."""
        now_ms = self._timetable.time.now_ms
        items = self._rows[row]
        return items if now_ms is None else [item for item in items if self._end_of(item) > now_ms]

    def replace(self, row: bytes, items: list[Item]) -> None:
        """Replace the items of a row, or mark those it has as changed."""
        self._rows[row] = items

    def opened(self, rows: Iterable[bytes]) -> dict[bytes, list[Item]]:
        """The items of rows, of these and others; see `LiveRows.opened`. Mark those that get other ones with `changed`."""
        return self._rows.opened(rows)

    def changed(self, rows: Iterable[bytes]) -> None:
        """Mark rows as changed."""
        self._rows.changed(*rows)

    def finish(self, due: Iterable[bytes]) -> None:
        """Purge and write rows that changed and rows that are due; list what is new.

        Args:
            due: names of rows that became due in this batch.
        """
        now_ms = self._timetable.time.now_ms
        rows = self._rows.all_changed().union(due)
        if now_ms is not None:
            self._table.load(rows)  # rows that are only due may not have been read in this batch
            self._purge(rows, now_ms)
        self._rows.write()

    def _remind(self, row: bytes, items: list[Item]) -> None:
        for item in items:
            end_ms = self._end_of(item)
            if end_ms != item.listed_ms:
                self._timetable.remind(row, end_ms)

    def _purge(self, rows: Iterable[bytes], now_ms: int) -> None:
        opened, end_of = self._rows.opened(rows), self._end_of
        for row in rows:
            kept: list[Item] = []
            for item in opened[row]:
                end_ms = end_of(item)
                if end_ms <= now_ms:
                    continue
                kept.append(item)
                if item.listed_ms is None or item.listed_ms <= now_ms:
                    item.listed_ms = end_ms
                    self._timetable.file(row, end_ms)
            opened[row] = kept
        self.changed(rows)


class RememberingStage(TimedStage, Generic[Item]):
    """One that remembers ids, until stream time has passed what it remembers of them; `late`: `forward` or `drop`."""

    def __init__(
        self,
        table: RowTable,
        guard: JumpGuard | None,
        *,
        identity: Identity,
        late: str,
        decode: Callable[[bytes], list[Item]],
        encode: Callable[[list[Item]], bytes],
        end_of: Callable[[Item], int],
        **timetable: Any,  # noqa: ANN401 - see `Timetable`
    ) -> None:
        super().__init__(table, guard, **timetable)
        check_callable("identity", identity, type(self).__name__)
        check_choice("late", late, ("forward", "drop"), type(self).__name__)
        self._identity = identity
        self._late = late
        self._expiring = ExpiringRows(table, self._timetable, decode=decode, encode=encode, end_of=end_of)

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will read for these records."""
        return rows_of(self._row, records)

    def finish(self, now_ms: int) -> None:
        self._expiring.finish(row for _, row in self._timetable.take_due())
        super().finish(now_ms)

    def _row(self, record: Record) -> bytes | None:
        return row_of(self._identity, record)


class TimedKind(RecordKind[Stage]):
    """A kind whose stages go by event time."""

    standard: ClassVar[JumpGuard] = MONTH_GUARD
    """The guard that "standard" stands for."""
    late_choices: ClassVar[tuple[str, ...]] = ("drop", "stop")

    own_setting: ClassVar[str] = "lateness_ms"
    """The setting by which its stages allow for values older than their inputs; empty: they have none."""

    guard: Any = STANDARD
    late: Any = "drop"
    time: DeclaredFunction | None = None

    @property
    def times(self) -> tuple[DeclaredFunction | None, ...]:
        return () if self.time is None else (self.time,)

    @property
    def own_times(self) -> OwnTimes | None:
        """The trait of this name."""
        inputs = tuple(number for number, time in enumerate(self.times) if time is not None)
        setting = self.own_setting
        return OwnTimes(inputs, setting, getattr(self, setting) if setting else 0) if inputs else None

    @property
    def time_guard(self) -> Any:  # noqa: ANN401 - unchecked
        """The guard as its stages take it."""
        return self.standard if self.guard == STANDARD else self.guard

    def timing(self, clock_ms: int | None) -> dict[str, Any]:
        """The settings of its stages for event time."""
        return {"guard": self.time_guard, "clock_ms": clock_ms}

    def outputs(self, stage: Any) -> Iterable[Given]:  # noqa: ANN401 - a `KeyedStage`
        due, moments = stage.due_results, stage.moments
        return [
            Given(key, value, due.get(index), moments.get(index))
            for index, (key, value) in enumerate(stage.take_results())
        ]

    def begin(self, stage: Any, event_time: EventTimeSpan) -> None:  # noqa: ANN401 - a `KeyedStage`
        stage.begin(event_time.begun_ms)

    def next_due_ms(self, stage: Any) -> int | None:  # noqa: ANN401 - a `KeyedStage`
        due_ms: int | None = stage.next_due_ms
        return due_ms

    def advance(self, stage: Any, to_ms: int) -> None:  # noqa: ANN401 - a `TimedStage`
        stage.advance(to_ms)

    def check(self, where: str, *, dead_letters: bool) -> None:
        check_choice("late", self.late, self.late_choices, where)
        super().check(where, dead_letters=dead_letters)


class RuleKind(TimedKind[Stage]):
    """A kind whose stages are objects of one class, the rule, made with the fields of the kind.

    Attributes:
        rule: the class; takes a table, then the fields by name.
    """

    rule: ClassVar[Callable[..., Any]]

    def wrapped(self, function: DeclaredFunction, functions: RecordFunctions) -> Callable[..., Any]:
        """A function of the user as the rule takes it: by default a function of a value as one of a record."""
        return functions.of(function)

    def settings(self, functions: RecordFunctions, clock_ms: int | None) -> dict[str, Any]:
        """The arguments of the rule. Late records that stop a flow are dropped by the rule: `RecordWork` stops at them."""
        times = ("time", "other_time", "table_time")  # `RecordWork` calls them
        names = getattr(self, "__dataclass_fields__", ())
        values = {name: getattr(self, name) for name in names if name not in times}
        for name, value in values.items():
            if isinstance(value, DeclaredFunction):
                values[name] = self.wrapped(value, functions)
        if "guard" not in values:
            return values
        return {**values, "late": "drop" if self.late == "stop" else self.late, **self.timing(clock_ms)}

    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> Stage:
        stage: Stage = self.rule(table, **self.settings(functions, clock_ms))
        return stage
