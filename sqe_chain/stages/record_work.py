"""Kinds of stages that look at one record after the other: what filters, windows and most kinds of users are made of."""

from __future__ import annotations

import marshal
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from sqe_chain._proto.dropped_pb2 import Dropped
from sqe_chain.codecs import codec_for
from sqe_chain.errors import EnvelopeError, FlowError, PoisonError
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.stage_kind import StageKind, StageTask, StageWork
from sqe_chain.flow.table import Table
from sqe_chain.flow.units import Unit, number
from sqe_chain.stages.record import Record, Spot, Verdict
from sqe_chain.stages.table import MemoryTable
from sqe_chain.stages.user_code import UserCodeError, guarded

Extract = Callable[[Record], Any]
"""A function of a record: what a `RecordStage` calls."""
LONGEST_KEY: Final = 32 * 1024
"""Rows of records with longer keys are not loaded ahead: the store may refuse such a key, and then so will the stage."""


class RecordStage(Protocol):
    """What looks at the records of one state partition in one batch, over a table of rows."""

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will look at for these records, so that they are read together."""

    def accept(self, record: Record) -> Verdict:
        """Whether a record goes on. Changes objects in memory, or rows.

        Raises:
            PoisonError: its input is to blame, and is left out by the flow's policy.
        """

    def finish(self, now_ms: int) -> None:
        """The end of a batch: purge what is due, write every changed row into the table."""


Stage = TypeVar("Stage", bound=RecordStage)


class Given(NamedTuple):
    """What goes on in the place of records.

    Attributes:
        key: under which key.
        value: a value that a codec takes.
    """

    key: bytes | None
    value: object


class RecordFunctions:
    """Makes functions of records of the user's functions of values.

    Args:
        name: of the stage, for error texts.
        now_ms: the batch's clock, for contexts.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.now_ms = now_ms

    def of(self, declared: DeclaredFunction | None, *, catch: bool = False) -> Extract | None:
        """The function; None for None.

        Args:
            declared: as the kind holds it.
            catch: the stage catches what the function raises. Else the record's input is left out for it.
        """
        if declared is None:
            return None
        call = declared.function if catch else guarded(declared.function)
        if not declared.takes_context:
            return lambda record: call(record.value)
        return lambda record: call(record.value, context_of(record, self.now_ms))


class RecordKind(StageKind, Generic[Stage]):
    """A kind whose stages look at one record after the other; see `StageKind` for what it may declare.

    `stage` makes the object that does it, `outputs` and `advance` are for those that give something else than the records.
    Records that are dropped for a reason are counted, and go to `dropped()`.
    """

    @property
    def called(self) -> str:
        """See `StageKind`."""
        return "filter"

    @property
    def sides(self) -> tuple[Any, ...]:
        """See `StageKind`."""
        return ("dropped",)

    @property
    def needs_root(self) -> bool:
        """Whether it looks at `Record.root` and `Record.root_position`."""
        return False

    @property
    def gives_outputs(self) -> bool:
        """Whether `outputs` go on instead of the records."""
        return False

    @abstractmethod
    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> Stage:
        """The object that looks at the records of one state partition in one batch.

        Args:
            table: its rows.
            functions: makes functions of records of the user's.
            clock_ms: the batch's clock; None when it is only made to see whether its settings are right.

        Raises:
            FlowError: a setting that it does not take.
        """

    def outputs(self, stage: Stage) -> Iterable[Given]:
        """What goes on now, after a record or a heartbeat; asked where `gives_outputs`, also if nobody wants it."""
        del stage
        return ()

    def advance(self, stage: Stage, to_ms: int) -> None:
        """A heartbeat: event time has come to this moment."""

    def check(self, where: str, *, dead_letters: bool) -> None:
        """Make one stage, to see whether it takes its settings; see `StageKind`."""
        del dead_letters
        try:
            self.stage(MemoryTable(), RecordFunctions("", 0), None)
        except (FlowError, TypeError) as error:
            raise FlowError(f"{where}: {error}") from error

    def start(self, task: StageTask) -> StageWork:
        """See `StageKind`."""
        return RecordWork(self, task)


@dataclass(slots=True)
class UnitRecord(Record):
    """A record made of a unit.

    Attributes:
        unit: what it was made of.
        id: where ids decide the state partition: its id.
    """

    unit: Unit | tuple[()] = ()
    id: bytes | None = None


class RecordWork(StageWork):
    """One stage of such a kind, in one state partition and batch.

    Args:
        kind: what the stage is.
        task: what it is given.
    """

    _POISON: Final = (UserCodeError, PoisonError, EnvelopeError)
    """What an input is to blame for. Whatever else is raised comes from a store, or is a bug."""

    def __init__(self, kind: RecordKind[Any], task: StageTask) -> None:
        self._kind = kind
        self._task = task
        self._emit, self._drop = (push and guarded(push) for push in (task.emit, task.drop))
        self._stage = kind.stage(task.table, RecordFunctions(task.name, task.now_ms), task.now_ms)
        self._ids, self._needs_root, self._gives = kind.spread == "id", kind.needs_root, kind.gives_outputs
        self._input: Origin | None = None
        self._failing: Origin | None = None
        self._roots: dict[int, tuple[str, bytes, int]] = {}

    def apply(self, units: Sequence[Unit]) -> None:
        """Look at a block of units, whose rows are read together; see `StageWork`."""
        records = [self._record(unit) for unit in units]
        readable = [one for one in records if one is not None and len(one.key or b"") <= LONGEST_KEY]
        self._task.table.load(self._wanted(readable))
        before_input, failed = self._task.before_input, self._task.failed
        for record, unit in zip(records, units, strict=True):
            origin = unit[4]
            if origin is not self._input:
                before_input(origin)
                self._input = origin
            if origin is self._failing:
                continue
            try:
                if record is None:
                    self._beat(unit)
                else:
                    self._look_at(record, unit)
            except self._POISON as error:
                failed(origin, error)
                self._failing = origin

    def finish(self) -> None:
        """See `StageWork`."""
        self._stage.finish(self._task.now_ms)

    def _wanted(self, records: Sequence[Record]) -> Iterable[bytes]:
        """The rows of records, as far as user code gives their names; where it fails, it will again, at its place."""
        try:
            return list(self._stage.rows_for(records))
        except UserCodeError:
            return ()

    def _beat(self, unit: Unit) -> None:
        """A heartbeat moves event time, not beyond the service's clock, and does nothing else."""
        self._kind.advance(self._stage, min(unit[4].timestamp_ms, self._task.now_ms))
        if self._gives:
            self._give(unit)

    def _look_at(self, record: UnitRecord, unit: Unit) -> None:
        verdict = self._stage.accept(record)
        if verdict.reason is not None:
            self._task.counts[self._task.name, str(verdict.reason)] += 1
        if verdict.dead_letter:
            raise PoisonError(f"stage {self._task.name!r}: {verdict.detail}")
        if self._gives:
            self._give(unit)
        elif verdict.forward and self._emit is not None:
            self._emit(unit[1], record.key, unit[3], unit[4])
        if verdict.reason is not None and self._drop is not None:
            self._drop(self._dropped(record, verdict), record.key, unit[3], unit[4])

    def _give(self, unit: Unit) -> None:
        """What goes on in the place of records, goes on under the input that brought it about."""
        given = self._kind.outputs(self._stage)
        if self._emit is not None:
            for index, (key, value) in enumerate(given):
                self._emit(value, key, unit[3] + number(index), unit[4])

    def _record(self, unit: Unit) -> UnitRecord | None:
        """The unit as filters see it; None for a heartbeat. Where ids decide, the key's place in it is the id's too."""
        key, value, _, path, origin = unit
        if value is None:
            return None
        identity = None
        if self._ids:
            key, identity = unpack_key_and_id(key)
        place = origin.place
        record = UnitRecord(
            value=value,
            key=key,
            timestamp_ms=origin.timestamp_ms,
            topic=place.topic,
            topic_id=place.topic_id,
            partition=place.partition,
            offset=origin.offset,
            spot=Spot(origin.lane, origin.position + path),
            unit=unit,
            id=identity,
        )
        if self._needs_root:
            record.root, record.root_position = self._root(origin), origin.position
        return record

    def _root(self, origin: Origin) -> tuple[str, bytes, int]:
        """Root topic, its id, and partition: the same for all of a lane."""
        found = self._roots.get(origin.lane)
        if found is None:
            root = Context(origin, None, 0).root
            found = self._roots[origin.lane] = root.topic, root.topic_id, root.partition
        return found

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
    """The context of the input behind a record of a flow."""
    unit: Any = getattr(record, "unit", ())
    return Context(unit[4], record.key, now_ms)


def id_of(record: Record) -> bytes | None:
    """The id of a record of a flow, where ids decide its state partition."""
    found: bytes | None = getattr(record, "id", None)
    return found


def pack_key_and_id(key: bytes | None, identity: bytes | None) -> bytes:
    """A unit's key, where ids decide its state partition: its own and the id."""
    return marshal.dumps((key, identity), 2)


def unpack_key_and_id(packed: bytes) -> tuple[bytes | None, bytes | None]:
    """What `pack_key_and_id` made one of."""
    key, identity = marshal.loads(packed)  # noqa: S302 - made by the step before
    return key, identity
