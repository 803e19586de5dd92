"""A stream joined with a table: the second stream is read as the table's changes, and the latest one of a key holds.

>>> from sqe_chain.stages.record import Record
>>> from sqe_chain.stages.table import MemoryTable
>>> join = TableJoin(MemoryTable(), combine=lambda order, customer: f"{order} for {customer}", is_second=lambda one: one.topic == "customers")
>>> for at_ms, topic, value in ((10, "customers", "Ann"), (20, "orders", "A7"), (30, "customers", "Anne"), (30, "orders", "B1")):
...     _ = join.accept(Record(key=b"7", value=value, timestamp_ms=at_ms, topic=topic))
...     for _, joined in join.take_results():
...         print(joined)
A7 for Ann
B1 for Anne
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqe_chain._proto.joins_pb2 import VersionsRow
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import check_bool, check_duration
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_callable, truth
from sqe_chain.flow.stage_kind import MATCHED, STANDARD, UNMATCHED, StageTask, StageTraits, StageWork
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import NUMBERS, Unit, UnitRun
from sqe_chain.stages.clock import JumpGuard, bucket_length
from sqe_chain.stages.joining import JOINED, How, Join, JoinKind
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.own_values import Stored
from sqe_chain.stages.record import FORWARD, Record, Verdict
from sqe_chain.stages.record_work import RunWork, moves_in
from sqe_chain.stages.timed_stage import MONTH_GUARD
from sqe_chain.stages.user_code import RunError

_ALWAYS_MS = -(1 << 63)
_FROM_MS = attrgetter("from_ms")


@dataclass(slots=True)
class Version:
    """The value of a key in a table from some moment on.

    Attributes:
        from_ms: the moment.
        value: the value; each call of `combine` reads its own; None: deleted.
    """

    from_ms: int
    value: Stored | None


class TableJoin(Join):
    """Join each value of the first stream with the table's value at its time.

    Guarantees, for one state partition:

    * A value joins the version that is valid at its event time: the latest one that is not after it.
    * A change of the table joins nothing by itself: what was joined before stays as it is.
    * A static table has no times: the last value of a key holds, and no value is late.
    * Otherwise a value or a change more than `history_ms` before stream time is late, and dropped: what was valid then may be
      purged. An earlier change that is not late takes its place among the versions.

    Bound: a row for each key that the table has: the key, the value, and older versions of the last `history_ms`.

    Args:
        combine: (value, the table's value; None if there is none) -> output; None for no output.
        is_second: whether a record is a change of the table.
        deleted: whether a change deletes its key.
        how: "inner", or "left": what finds nothing is combined with None.
        history_ms: how long older versions are kept; 0 to 10**15.
        static: whether the table has no times.
        others: as for `TimedStage`.

    Attributes:
        joined: how many values of the first stream have found something.
        unmatched: how many have found nothing.
    """

    def __init__(  # noqa: PLR0913 - settings, each with its name
        self,
        table: RowTable,
        *,
        combine: Callable[[Any, Any], object],
        is_second: Callable[[Record], bool],
        deleted: Callable[[Any], bool] | None = None,
        how: How = "inner",
        history_ms: int = 0,
        static: bool = False,
        guard: JumpGuard | None = MONTH_GUARD,
        clock_ms: int | None = None,
    ) -> None:
        check_duration("history_ms", history_ms, type(self).__name__)
        check_bool("static", static, type(self).__name__)
        if deleted is not None:
            check_callable("deleted", deleted, type(self).__name__)
        bucket_ms = bucket_length(history_ms)
        super().__init__(table, combine, is_second, how, guard, bucket_ms=bucket_ms, clock_ms=clock_ms)
        self._deleted = deleted
        self._history_ms = history_ms
        self._static = static
        self.joined = self.unmatched = 0
        self._rows: LiveRows[list[Version]] = LiveRows(table, _versions_in, _versions_row)
        self._filed: dict[bytes, int] = {}

    def accept(self, record: Record) -> Verdict:
        """Take a change of the table, or join a value; see `take_results`.

        Raises:
            PoisonError: it has no key; or it is too far ahead, and the guard's policy is `stop`.
            Exception: whatever `combine` or `deleted` raises; the record has then moved stream time, and nothing else.
        """
        row, refused = self._begun(record)
        if refused is not None:
            return refused
        # A change, too: what it would have to be compared with may be purged, at the end of one batch or another.
        late = self._lateness(record, self._history_ms)
        if late is not None:
            return late
        if self._is_second(record):
            self._change(row, record)
            return FORWARD
        if self._table.settled(row):  # `combine` may refuse a version that came after this value
            return FORWARD
        said = self._said(row, record.timestamp_ms)
        if said is not None or self._how == "left":
            self._give(row[len(JOINED) :], record.value, said)
        self.joined += said is not None
        self.unmatched += said is None
        return FORWARD

    def join_run(
        self,
        combine: Callable[[Any, Any], object],
        keys: Sequence[bytes | None],
        values: Sequence[object],
        times_ms: Sequence[int],
        begin: int,
        end: int,
        moves_ms: Sequence[int] | None = None,
        *,
        placed: bool = False,
    ) -> int:
        """Join values of the first stream as `accept` does, from index `begin` to before `end`, up to the first that gives an output.

        Args:
            combine: see `TableJoin`.
            keys: of the records.
            values: of the records.
            times_ms: their event times.
            begin: the index of the first.
            end: the index after the last.
            moves_ms: what moves stream time; `NEVER`: the record needs `accept`. None: their times do.
            placed: they have places in the order of times.

        Returns the index after the last value that was joined, whose output is then among the results. The value at that index may need
        `accept`. Not after an earlier attempt has written rows.

        Raises:
            RunError: `combine` has raised.
        """
        time, inner = self._timetable.time, self._how != "left"
        now_ms, limit_ms = time.now_ms, time.believed_until_ms
        if self._static:
            now_ms, limit_ms = _ALWAYS_MS, -_ALWAYS_MS
        index, unmatched = begin, self.unmatched
        moves_ms = times_ms if moves_ms is None or self._static else moves_ms
        if now_ms is None:
            return begin
        while index < end:
            key, at_ms, to_ms = keys[index], times_ms[index], moves_ms[index]
            # The value itself moves stream time, before it is joined.
            late = max(now_ms, to_ms) - at_ms > self._history_ms
            if key is None or late or to_ms >= limit_ms:
                break
            now_ms = max(now_ms, to_ms)
            said = self._said(JOINED + key, at_ms)
            index += 1
            if said is None:
                self.unmatched += 1
                if inner:
                    continue
            try:
                joined = combine(values[index - 1], said)
            except Exception as error:
                raise RunError(error, index - 1) from error
            if joined is not None:
                self._results.append((key, joined))
                break
        self.joined += index - begin - (self.unmatched - unmatched)
        if not self._static:
            self._timetable.observe_run(index - begin, now_ms, placed=placed)
        return index

    def finish(self, now_ms: int) -> None:
        due = {row for _, row in self._timetable.take_due()}
        self._table.load(due)
        for row in sorted(due | self._rows.all_changed()):
            self._rows[row] = self._kept(row)
        self._rows.write()
        super().finish(now_ms)

    def _begun(self, record: Record) -> tuple[bytes, Verdict | None]:
        """The row of a record, after it has moved stream time; and a verdict, if it is refused."""
        if self._static and record.key is not None:
            return JOINED + record.key, None
        return self._row(record), self._moved(record)[1]

    def _lateness(self, record: Record, allowed_ms: int) -> Verdict | None:
        return None if self._static else super()._lateness(record, allowed_ms)

    def _said(self, row: bytes, at_ms: int) -> object:
        """The table's value of a key at a moment."""
        versions = self._rows[row]
        if self._static:
            at_ms = -_ALWAYS_MS
        if len(versions) == 1:
            version = versions[0].value if versions[0].from_ms <= at_ms else None
        else:
            at = bisect_right(versions, at_ms, key=_FROM_MS)
            version = versions[at - 1].value if at else None
        return None if version is None else self._values.read(version)

    def _change(self, row: bytes, record: Record) -> None:
        deleted = self._deleted
        gone = deleted is not None and truth("deleted", deleted, deleted(record.value))
        if self._table.settled(row):  # an earlier attempt has written it
            return
        value = None if gone else self._values.store(record.value)
        if self._static:
            self._rows[row] = [] if value is None else [Version(0, value)]
            return
        versions = self._rows[row]
        at = bisect_right(versions, record.timestamp_ms, key=_FROM_MS)
        changed = Version(record.timestamp_ms, value)
        self._rows[row] = [*versions[:at], changed, *versions[at:]]

    def _kept(self, row: bytes) -> list[Version]:
        """The versions that may still be asked for; a key is listed for when the next one may go."""
        now_ms, versions = self._timetable.time.now_ms, self._rows[row]
        if now_ms is None:
            return versions
        valid = bisect_right(versions, now_ms - self._history_ms, key=_FROM_MS)
        kept = versions[max(0, valid - 1) :]
        if valid and kept[0].value is None:  # a deletion before which no value can come
            kept = kept[1:]
        if len(kept) > 1 or (kept and kept[0].value is None):
            over = kept[1] if kept[0].value is not None else kept[0]
            self._timetable.file(row, max(over.from_ms + self._history_ms, now_ms + 1))
        return kept


def _versions_in(content: bytes | None) -> list[Version]:
    if content is None:
        return []
    return [
        Version(stored.from_ms, Stored(stored.type, stored.value) if stored.HasField("value") else None)
        for stored in VersionsRow.FromString(content).versions
    ]


def _versions_row(versions: list[Version]) -> bytes | None:
    if not versions:
        return None
    row = VersionsRow()
    for version in versions:
        stored = row.versions.add(from_ms=version.from_ms)
        if version.value is not None:
            stored.type, stored.value = version.value
    return row.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class TableJoinKind(JoinKind):
    """The kind of `join_table`."""

    name = "table-join"
    method = "join_table"
    rule = TableJoin

    deleted: DeclaredFunction | None = None
    history_ms: int = 0
    static: bool = False
    table_time: DeclaredFunction | None = None

    own_setting = "history_ms"

    @property
    def times(self) -> tuple[DeclaredFunction | None, ...]:
        return None, self.table_time

    @property
    def traits(self) -> StageTraits:
        return replace(super().traits, gives_later=False)

    def check(self, where: str, *, dead_letters: bool) -> None:
        if self.static and (self.history_ms or self.guard != STANDARD or self.table_time is not None):
            raise FlowError(
                f"{where}: join_table(static=True) goes by no times, so it has no history_ms, guard or table_time: leave them out"
            )
        super().check(where, dead_letters=dead_letters)

    def counted(self, stage: TableJoin) -> dict[str, int]:
        return {MATCHED: stage.joined, UNMATCHED: stage.unmatched}

    def start(self, task: StageTask) -> StageWork:
        return TableJoinWork(self, task)


class TableJoinWork(RunWork):
    """The work of a join with a table: record by record, or in runs where nothing is taken back."""

    rows = JOINED

    def __init__(self, kind: TableJoinKind, task: StageTask) -> None:
        super().__init__(kind, task)
        # Runs do not look whether an earlier attempt has written a row.
        self._in_runs = not task.reversible and task.table.untouched
        # The user's own function: where it fails the attempt ends, so nobody has to know whose error it was.
        self._combine = kind.combine.function

    def apply(self, units: Sequence[Unit]) -> None:
        if not self._in_runs:
            super().apply(units)
            return
        run = UnitRun.of(units)
        self._load(run)
        begin = 0
        for which, same in groupby(path[-len(NUMBERS[0]) :] for path in run.paths):
            end = begin + len(list(same))
            if which == NUMBERS[0]:
                self._join(run, begin, end)
            else:
                super().apply(run[begin:end])
            begin = end

    def _join(self, run: UnitRun, begin: int, end: int) -> None:
        """Join values of the first stream."""
        index, join_run, combine = begin, self._stage.join_run, self._combine
        moves_ms, placed = moves_in(run)
        while index < end:  # each turn takes one unit at least
            before = index
            try:
                index = join_run(
                    combine, run.keys, run.values, run.times_ms, index, end, moves_ms, placed=placed
                )
            except RunError as error:
                self._stop(run, error.index, error)
            if index > before and self._stage.has_results:
                try:
                    self._give(run[index - 1])
                except self._POISON as error:
                    self._stop(run, index - 1, error)
            elif index < end:
                super().apply((run[index],))
                index += 1
