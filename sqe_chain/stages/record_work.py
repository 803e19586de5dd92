"""Kinds of stages that process one record after the other: the base of filters, windows and most kinds of users."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import le
from typing import Any, ClassVar, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from sqe_chain._proto.dropped_pb2 import Dropped
from sqe_chain.codecs import codec_for
from sqe_chain.errors import EnvelopeError, FlowError, PoisonError
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.event_time import event_ms
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import EventTimeSpan, StageKind, StageTask, StageTraits, StageWork
from sqe_chain.flow.stored import named_key
from sqe_chain.flow.table import RowTable
from sqe_chain.flow.units import Unit, UnitRun, number, unpack_key_and_id
from sqe_chain.stages.provenance import root_order
from sqe_chain.stages.record import Reason, Record, Spot, Verdict
from sqe_chain.stages.table import MemoryTable
from sqe_chain.stages.user_code import UserCodeError, guarded

Extract = Callable[[Record], Any]
"""A function of a record: what a `RecordStage` calls."""
NEVER: Final = 1 << 64
"""After the time of any record."""
LONGEST_KEY: Final = 32 * 1024
"""Rows of records with longer keys are not loaded ahead: a store may refuse such a key, which must fail its record alone."""


class RecordStage(Protocol):
    """Processes the records of one state partition in one batch, over a table of rows."""

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will read for these records, so that they are loaded together."""

    def accept(self, record: Record) -> Verdict:
        """Decide whether a record is forwarded. Changes objects in memory, or rows.

        Raises:
            PoisonError: its input is to blame; the flow's poison policy decides.
        """

    def finish(self, now_ms: int) -> None:
        """The end of a batch: purge what is due, write every changed row into the table."""


Stage = TypeVar("Stage", bound=RecordStage)


class Given(NamedTuple):
    """An output of a stage with the trait `gives_outputs`.

    Attributes:
        key: its key.
        value: a value that a codec takes.
        due: the window or timer that has caused it, as error texts name it before its key; None: the record has.
        moment_ms: the moment of event time under which it goes out; None: it goes out under the record.
    """

    key: bytes | None
    value: object
    due: str | None = None
    moment_ms: int | None = None


class RecordFunctions:
    """Wraps the user's functions of values as functions of records.

    Args:
        name: of the stage, for error texts.
        now_ms: the batch's clock, for contexts.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.now_ms = now_ms

    def of(self, declared: DeclaredFunction, *, catch: bool = False) -> Extract:
        """The function, as the kind holds it; `catch`: the stage catches what it raises, which is poison otherwise."""
        call = declared.function if catch else guarded(declared.function)
        if not declared.takes_context:
            return lambda record: call(record.value)
        return lambda record: call(record.value, context_of(record, self.now_ms))


FILTER: Final = StageTraits(called="filter", sides=("dropped",), gives_fresh=True)
"""Of kinds that forward records as they came, or drop them."""
FORWARDING: Final = replace(FILTER, gives_later=False)
"""Of those that do so in the batch in which a record came."""


class RecordKind(StageKind, Generic[Stage]):
    """A kind whose stages process one record after the other; see `StageKind` for what it may declare.

    `stage` makes the object that does it. `outputs` and `advance` are for stages that do not forward the records
    themselves. Records that are dropped for a reason are counted, and go to `dropped()`.
    """

    @property
    def traits(self) -> StageTraits:
        return FILTER

    @abstractmethod
    def stage(self, table: RowTable, functions: RecordFunctions, clock_ms: int | None) -> Stage:
        """The object that processes the records of one state partition in one batch.

        Args:
            table: its rows.
            functions: wraps the user's functions.
            clock_ms: the batch's clock; None when the object is only made to check its settings.

        Raises:
            FlowError: a setting that it does not take.
        """

    def outputs(self, stage: Stage) -> Iterable[Given]:
        """The outputs since the last call; called after each record or heartbeat with the trait `gives_outputs`, even without readers."""
        del stage
        return ()

    def counted(self, stage: Stage) -> Mapping[str, int]:
        """Reason -> records, after the last one: what a batch has to count besides the reasons of verdicts."""
        del stage
        return {}

    def begin(self, stage: Stage, event_time: EventTimeSpan) -> None:
        """The batch begins, for kinds in which something falls due: from now on `outputs` has moments."""

    def next_due_ms(self, stage: Stage) -> int | None:
        """See `StageWork.due_ms`."""
        del stage
        return None

    def advance(self, stage: Stage, to_ms: int) -> None:
        """Event time has reached this moment, without a record."""

    @property
    def times(self) -> tuple[DeclaredFunction | None, ...]:
        """The functions that give values their own times, by the numbers of their streams; None: those of a stream have none."""
        return ()

    def close(self, stage: Stage, event_ms: int) -> None:
        """The input ends at this event time: close all windows; see `StageWork.close_windows`."""

    def check(self, where: str, *, dead_letters: bool) -> None:
        del dead_letters
        try:  # a stage checks its own settings
            self.stage(MemoryTable(), RecordFunctions("", 0), None)
        except (FlowError, TypeError) as error:
            # A stage names its class, where no declaration is at hand.
            name, _, text = str(error).partition(": ")
            own = bool(text) and name.isidentifier() and name[:1].isupper()
            raise FlowError(f"{where}: {text if own else error}") from error

    def start(self, task: StageTask) -> StageWork:
        return RecordWork(self, task)


@dataclass(slots=True)
class UnitRecord(Record):
    """A record made of a unit; where ids decide the state partition, with its id."""

    unit: Unit | tuple[()] = ()
    id: bytes | None = None


class RecordWork(StageWork):
    """The work of one stage of such a kind, in one state partition and batch."""

    _POISON: Final = (UserCodeError, PoisonError, EnvelopeError)
    """Errors that the input is to blame for. Any other comes from a store, or is a bug."""

    def __init__(self, kind: RecordKind[Any], task: StageTask) -> None:
        self._kind = kind
        self._task = task
        # Operators after the stage are user code. Guarded, what they raise is known from an error of the store.
        self._emit, self._drop = (push and guarded(push) for push in (task.emit, task.drop))
        self._stage = kind.stage(task.table, RecordFunctions(task.name, task.now_ms), task.now_ms)
        traits = kind.traits
        self._ids, self._needs_root, self._gives = (
            traits.spread == "id",
            traits.needs_root,
            traits.gives_outputs,
        )
        self._late = getattr(kind, "late", "drop")
        functions = RecordFunctions(task.name, task.now_ms)
        self._times = [None if time is None else functions.of(time) for time in kind.times]
        # The input that has failed: its other units are skipped. Invariant: units of one input follow each other.
        self._failing: Origin | None = None
        # What windows and timers gave and operators refused, until `_report_due`: it is reported outside of what
        # blames a record.
        self._due_failures: list[tuple[Origin, Exception, bytes | None]] = []
        # Lane -> its root topic, id and partition: all messages of a lane have the same, and parsing a chain is slow.
        self._roots: dict[int, tuple[str, bytes, int]] = {}
        if task.closing is not None and traits.windowed:
            # The guard of the inputs has believed this time. The stage's own one must not refuse what other stages give at it.
            kind.advance(self._stage, task.closing.order_ms)
        if task.event_time is not None:
            kind.begin(self._stage, task.event_time)

    def apply(self, units: Sequence[Unit]) -> None:
        units = list(units)  # units side by side are put together once
        records = [self._record(unit) for unit in units]
        # The store may refuse such a key when it is asked for it, and then the whole block would fail.
        readable = [
            record for record in records if record is not None and len(record.key or b"") <= LONGEST_KEY
        ]
        self._task.table.load(self._wanted(readable))
        failed = self._task.failed
        for record, unit in zip(records, units, strict=True):
            origin = unit[4]
            if origin.same_input(self._failing):  # an input counts as a whole or not at all
                continue
            try:
                if record is None:
                    self._beat(unit)
                else:
                    self._process(record, unit)
            except self._POISON as error:
                self._report_due()
                failed(origin, error, unit[0])
                self._failing = origin
            if self._due_failures:
                self._report_due()

    def reach(self) -> None:
        span = self._task.event_time
        if span is None or span.until_ms is None:
            return
        self._kind.advance(self._stage, span.until_ms)
        self._give_all(self._kind.outputs(self._stage), b"", span.origin(span.until_ms))
        self._report_due()

    @property
    def due_ms(self) -> int | None:
        return self._kind.next_due_ms(self._stage)

    def finish(self) -> None:
        self._stage.finish(self._task.now_ms)
        for reason, count in self._kind.counted(self._stage).items():
            if count:
                self._task.counts[self._task.name, reason] += count

    def close_windows(self, origin: Origin) -> None:
        try:
            self._kind.close(self._stage, origin.order_ms)
        except self._POISON as error:
            self._task.failed(origin, error, None)
        if self._gives:
            self._give((None, None, "", b"", origin))
            self._report_due()

    def _wanted(self, records: Sequence[Record]) -> Iterable[bytes]:
        """The rows to load ahead; none where user code that names them fails, for `accept` will meet the same error."""
        try:
            return list(self._stage.rows_for(records))
        except UserCodeError:
            return ()

    def _beat(self, unit: Unit) -> None:
        """Move event time by a heartbeat, but not beyond its place, or the service's clock; it does nothing else."""
        origin = unit[4]
        # Not beyond the clock: one heartbeat from a wrong clock would close every window. A place was decided with a guard.
        placed = self._task.event_time is not None and origin.order_ms >= 0
        to_ms = origin.order_ms if placed else min(origin.timestamp_ms, self._task.now_ms)
        self._kind.advance(self._stage, to_ms)
        if self._gives:
            self._give(unit)

    def _process(self, record: UnitRecord, unit: Unit) -> None:
        if self._times:
            self._give_time(record, unit)
        verdict = self._stage.accept(record)
        if verdict.reason == Reason.LATE and record.own_time:
            hint = f"its input has the place {record.place_ms} ms; allow for older rows, or name their earliest time where the chain begins"
            verdict = replace(verdict, detail=f"{verdict.detail}; {hint}")
        if verdict.reason is not None:
            self._task.counts[self._task.name, str(verdict.reason)] += 1
        if verdict.reason == Reason.LATE and self._late == "stop":
            raise PoisonError(
                f"stage {self._task.name!r}: {record.topic}[{record.partition}] offset {record.offset} is late: {verdict.detail}. "
                "Choose a poison policy for such records, allow for them, or declare the stage with late='drop'"
            )
        if verdict.dead_letter:
            raise PoisonError(f"stage {self._task.name!r}: {verdict.detail}")
        if self._gives:
            self._give(unit)
        elif verdict.forward and self._emit is not None:
            self._emit(unit[1], record.key, unit[3], unit[4])
        if verdict.reason is not None and self._drop is not None:
            self._drop(self._dropped(record, verdict), record.key, unit[3], unit[4])

    def _give(self, unit: Unit) -> None:
        """Forward the outputs: under the input or moment that caused them, or the input that has moved event time to what caused them.

        Raises:
            Exception: of what the record has caused. Of anything else it is kept for `_report_due`.
        """
        _, of, _, path, origin = unit
        # Without a value there is no input to blame.
        self._give_all(self._kind.outputs(self._stage), path, origin, "event time" if of is None else None)

    def _give_all(
        self, given: Iterable[Given], path: bytes, origin: Origin, cause: str | None = None
    ) -> None:
        """See `_give`; cause: what has caused those that nothing else has; None: the input has."""
        if self._emit is None:
            return
        span, last_ms, ordinal = self._task.event_time, None, 0
        for index, (key, value, due, moment_ms) in enumerate(given):
            what = due or cause
            if what is None:
                self._emit(value, key, path + number(index), origin)
                continue
            own_path, of = path + number(index), origin
            if moment_ms is not None and span is not None:
                ordinal = ordinal + 1 if moment_ms == last_ms else 0
                last_ms, own_path, of = moment_ms, number(ordinal), span.origin(moment_ms)
            caused = of.due(f"{what} of {named_key(key or b'')} of stage {self._task.name!r}")
            try:
                self._emit(value, key, own_path, caused)
            except self._POISON as error:
                self._due_failures.append((caused, error, key))

    def _report_due(self) -> None:
        """Report the failures of what no record has caused. Outside of what catches those of records: it may raise."""
        failures, self._due_failures = self._due_failures, []
        for failure in failures:
            self._task.failed(*failure)

    def _record(self, unit: Unit) -> UnitRecord | None:
        """The unit as filters see it; None for a heartbeat. Where ids decide, the unit's key holds key and id."""
        key, value, _, path, origin = unit
        if value is None:
            return None
        identity = None
        if self._ids:
            key, identity = unpack_key_and_id(key)
        tp = origin.tp
        record = UnitRecord(
            value=value,
            key=key,
            timestamp_ms=origin.timestamp_ms,
            topic=tp.topic,
            topic_id=tp.topic_id,
            partition=tp.partition,
            offset=origin.offset,
            spot=Spot(origin.lane, origin.position + path),
            unit=unit,
            id=identity,
            place_ms=None if origin.order_ms < 0 else origin.order_ms,
        )
        if self._needs_root:
            record.root = self._root(origin)
            record.root_position = root_order(origin.position, lambda: Context(origin, None, 0).chain)
        return record

    def _give_time(self, record: UnitRecord, unit: Unit) -> None:
        """Give a record its own time; its input keeps its place. Raises UserCodeError, or PoisonError for what is no time."""
        which = len(self._times) > 1 and unit[3].endswith(number(1))
        time = self._times[which]
        if time is None:
            return
        if record.place_ms is None:
            record.place_ms = record.timestamp_ms
        record.timestamp_ms, record.own_time = event_ms(time(record)), True

    def _root(self, origin: Origin) -> tuple[str, bytes, int]:
        """Root topic, its id, and partition: the same for all of a lane."""
        known = self._roots.get(origin.lane)
        if known is None:
            root = Context(origin, None, 0).root
            known = self._roots[origin.lane] = root.topic, root.topic_id, root.partition
        return known

    def _dropped(self, record: Record, verdict: Verdict) -> Dropped:
        original, codec = verdict.original, codec_for(type(record.value))
        return Dropped(
            stage=self._task.name,
            reason=str(verdict.reason),
            detail=verdict.detail,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            lane=record.spot.lane,
            position=record.spot.position,
            original_lane=None if original is None else original.lane,
            original_position=None if original is None else original.position,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            type=codec.type_name,
            payload=codec.encode(record.value),
        )


def context_of(record: Record, now_ms: int) -> Context:
    """The context of the input that a record of a flow was made from."""
    unit: Any = getattr(record, "unit", ())
    return Context(unit[4], record.key, now_ms)


def id_of(record: Record) -> bytes | None:
    """The id of a record of a flow, where ids decide its state partition."""
    identity: bytes | None = getattr(record, "id", None)
    return identity


class RunWork(RecordWork):
    """The same in a flow that stops at poison: an attempt in which user code fails is worth nothing."""

    rows: ClassVar[bytes]
    """Prefix of the rows of keys."""

    def __init__(self, kind: RecordKind[Any], task: StageTask) -> None:
        super().__init__(kind, task)
        self._loaded: set[bytes | None] = {None}

    def _load(self, run: UnitRun) -> None:
        fresh = set(run.keys).difference(self._loaded)
        self._loaded |= fresh
        self._task.table.load([self.rows + key for key in fresh if len(key) <= LONGEST_KEY])

    def _stop(self, run: UnitRun, index: int, error: Exception) -> NoReturn:
        self._task.failed(run.origin(index), error, run.keys[index])
        raise AssertionError("poison stops this flow") from error


def moves_in(run: UnitRun) -> tuple[Sequence[int], bool]:
    """What records move stream time to in a run, and whether they have places in the order of times.

    These are their places, mostly the same as their times; `NEVER` of those that are no part of a run. One that lies after its place,
    because its clock ran ahead, is none. In a flow with places, one before 1970 is none, as in `RecordWork`.
    """
    times_ms, orders_ms = run.times_ms, run.orders_ms
    placed = max(orders_ms, default=-1) >= 0
    if not placed:
        return times_ms, placed
    if min(orders_ms) >= 0 and all(map(le, times_ms, orders_ms)):
        return orders_ms, placed
    each = zip(times_ms, orders_ms, strict=True)
    return [order_ms if 0 <= order_ms >= at_ms else NEVER for at_ms, order_ms in each], placed
