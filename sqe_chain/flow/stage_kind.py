"""The protocol of kinds of stages. Folds, windows and filters implement it, and so do kinds of other packages.

A kind has two parts. `StageKind` is its declaration: data that the flow holds and sends to workers. `StageWork` is
its behaviour: one object for each state partition and batch. It gets units and a table of rows, and knows neither
store nor log. The framework shuffles, loads, writes atomically, repeats batches after crashes, and skips inputs that
fail. So a kind is exact without code for any of that, if it keeps these promises:

* the same units in the same order give the same rows and outputs: no clock but `StageTask.now_ms`, no randomness;
* state that outlives a batch is in rows, and nowhere else;
* rows keep the rule of `sqe_chain.flow.table`.

Kinds that process one record after the other are simpler to write with `sqe_chain.stages.RecordKind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol

from sqe_chain.codecs import Codec
from sqe_chain.flow.functions import DeclaredFunction, UserFunction, functions_in
from sqe_chain.flow.state_table import StateTable
from sqe_chain.flow.stored import StoredState
from sqe_chain.flow.table import RowTable
from sqe_chain.ports import Sink

if TYPE_CHECKING:
    from sqe_chain.flow.context import Origin
    from sqe_chain.flow.units import Push, Unit, UnitRun

Spread = Literal["key", "partition", "lane", "id"]
"""What decides the state partition of a unit: its key, the input partition or lane that it comes from, or an id."""
Order = Literal["units", "times"]
"""The order of the units. By "units", input partition follows input partition. By "times", at the end of the batch, the next record
is always the earliest of any partition, as in Kafka Streams. Each partition keeps its own order. Stages that compare event times
need "times": otherwise a batch of an hour would make the records of the second partition an hour late."""
Side = Literal["", "changes", "dropped"]
"""Which output of a stage a node takes: the usual one, or that of `changes()` or `dropped()`."""

STANDARD: Final = "standard"
"""The guard that a stage has by default."""

MATCHED, UNMATCHED = "matched", "unmatched"
"""Reasons under which a stage counts values that have found something in its table, and those that have found nothing."""

NOTHING, ENVELOPE, CONTEXT = 0, 1, 2
"""What a node needs to know of the input of a unit, and a shuffle keeps. NOTHING: its coordinates alone. ENVELOPE: also lane,
position and time. CONTEXT: everything that a context shows."""


class LiveState:
    """One key's state while a batch runs, of a kind with `StageKind.states_by_key`.

    Attributes:
        state: the live state.
        origin: the last input that changed it; None: this batch has not changed it.
        deleted: whether that input deleted it.
    """

    __slots__ = ("deleted", "origin", "state")

    def __init__(self, state: Any) -> None:  # noqa: ANN401 - of the type that the stage declares
        self.state = state
        self.origin: Origin | None = None
        self.deleted = False


class StageTable(RowTable, Protocol):
    """The rows of a stage in one state partition, during one batch."""

    @property
    def untouched(self) -> bool:
        """Whether no row is known to be `settled`."""

    def take(self, row: bytes) -> bytes | None:
        """Like `get`, for a row that is read only once in this batch: it is not cached."""


@dataclass(frozen=True, slots=True)
class EventTimeSpan:
    """How far event time comes in a batch, for stages in which something falls due by it.

    Attributes:
        begun_ms: where it had come in the batch before, in all state partitions. All that was due by then is done. None: nowhere.
        until_ms: where it comes in this one: no input that is still to come belongs before it. None: nowhere.
        late_ms: the place of inputs that come too late for their own; None: none can be late.
        origin: moment -> the origin of all that the stage gives because event time has reached it.
    """

    begun_ms: int | None
    until_ms: int | None
    late_ms: int | None
    origin: Callable[[int], Origin]


@dataclass(slots=True)
class StageTask:
    """What a stage is given for one state partition in one batch.

    Attributes:
        name: of the stage, for error texts.
        declared_at: where it was declared, for error texts.
        table: its rows.
        now_ms: the batch's clock: the same in every attempt.
        emit: takes the output: value, key, path, origin. None when no node follows. What comes of an input goes out together, when
            another one gives something; so units of one input follow each other.
        drop: takes the records for `dropped()`; None when no node follows.
        failed: to be called with an input, an error and the unit's key, when the stage refuses the input or user code raises.
            That may be code of operators after the stage. The batch is then repeated without that input, so the attempt
            continues only to find more of them. Raises to stop at once.
        broken: to be called with what failed and the error when the stage fails and no single input is to blame. The service
            stops, unless inputs have failed in this attempt: then it is repeated without them.
        counts: (stage, reason) -> number of records; the stage adds to it.
        number: number of the plan that the batch becomes.
        changes: whether a node follows `changes()`.
        reversible: whether the changes of an input must be reverted when it fails; only for kinds that can do that.
        candidates: topic, partition and offset of candidates for failure: each is applied, then reverted. Empty for kinds that
            cannot revert.
        closing: the batch closes all windows: the origin of what they give. None: it does not.
        event_time: how far event time comes; None: units cause what falls due, and it goes out under them.
        applies: takes a run of units; after that, `emit` takes numbers of units in this run in place of origins, which costs less.
            None: it takes origins alone. A kind that gives another kind an `emit` of its own sets it to None.
    """

    name: str
    declared_at: str
    table: StageTable
    now_ms: int
    emit: Push | None
    drop: Push | None
    failed: Callable[[Origin, Exception, bytes | None], None]
    broken: Callable[[str, Exception], None]
    counts: Counter[tuple[str, str]]
    changes: bool = False
    reversible: bool = False
    candidates: frozenset[tuple[str, int, int]] = frozenset()
    closing: Origin | None = None
    event_time: EventTimeSpan | None = None
    number: int = 0
    applies: Callable[[UnitRun], None] | None = None


class StageWork(ABC):
    """What a stage does with the units of one state partition in one batch."""

    @abstractmethod
    def apply(self, units: Sequence[Unit]) -> None:
        """Process a block of units, in their order; all belong to this state partition.

        Loads the rows they need together (`StageTable.load`), then processes one unit after the other. It changes rows or objects
        in memory, passes output to `emit` and dropped records to `drop`, and calls `failed` for an input that fails. Errors of
        a store are raised.
        """

    @abstractmethod
    def finish(self) -> None:
        """Put every changed row into the table; called after the last unit.

        Raises:
            PoisonError: a state cannot be stored, and no single input is to blame.
        """

    def reach(self) -> None:  # noqa: B027 - in most kinds nothing falls due
        """The batch has no more units: do what is due until `StageTask.event_time` ends; called after the last unit."""

    @property
    def due_ms(self) -> int | None:
        """When something is due next, by event time; after `finish`, for kinds in which something falls due. None: nothing is."""
        return None

    @property
    def missed(self) -> int:
        """How many late units were not in all windows in which they would have been in time; after `finish`."""
        return 0

    def tick(self, origin: Origin, clock_ms: int) -> None:  # noqa: B027 - most kinds have no timers
        """The batch's clock has reached a moment; called after the last unit, before `finish`, for kinds with `ticks`.

        Args:
            origin: the origin of what is given now; no unit has caused it.
            clock_ms: the moment, later than that of each call in earlier batches.
        """

    @property
    def timer_ms(self) -> int | None:
        """When `tick` has something to do again, by the batch's clock; after `finish`. None: when units have come."""
        return None

    def close_windows(self, origin: Origin) -> None:  # noqa: B027 - most kinds have none
        """Close all windows, up to those in which a record of the origin's time (`order_ms`) could lie; called after the last unit.

        Stream time passes their ends, and their results go out under the origin. It is called for kinds that are `windowed`,
        where the end of a finite input closes them.

        Args:
            origin: what the results come from.
        """

    def push_changes(self, push: Push) -> None:  # noqa: B027 - most kinds have none
        """Pass changed states to the operators after `changes()`; called after `finish`, for kinds with this side."""


class OwnTimes(NamedTuple):
    """The values of a stage that have times of their own (``time=``), apart from the places of their inputs.

    Attributes:
        inputs: the numbers of their streams: 0 is the first.
        setting: the setting by which the stage allows for values older than their inputs; empty: it has none.
        allowed_ms: how much older it allows them to be.
    """

    inputs: tuple[int, ...]
    setting: str
    allowed_ms: int


@dataclass(frozen=True, slots=True)
class StageTraits:
    """What the framework does around a kind of stage.

    Attributes:
        method: the name by which users know it, for pictures and error texts; by default the kind's.
        called: what such a stage is called in error texts about one of its functions.
        spread: what decides the state partition of a unit. Rows of different state partitions never meet.
        identity: where ids decide (spread "id"): the user's function ``value -> bytes | str | None`` that returns them.
        order: in which order units are processed.
        inputs: how many streams it takes: 1 or 2. With 2 the path of each unit ends with the number of its stream (`units.number`).
        needs_key: whether a unit without a key is poison.
        needs: what `StageWork.apply` needs to know at least of the input that a unit comes from: NOTHING or ENVELOPE. A function of
            the kind that takes the context needs CONTEXT.
        heartbeat: the user's function that decides whether a value is a heartbeat, which only moves event time. A heartbeat goes to
            every state partition, as a unit without value. So such a stage has a shuffle.
        maker: the user's function that makes the output values; None: they are the input values, or the kind makes them.
        guard: what keeps one wrong clock from moving event time: a `TimeGuard`, "standard", or None to believe every time.
        gives_fresh: whether a codec has read what it emits, and nobody else has it: the values that it took, or some that it
            decoded. What other kinds emit passes its codec before a function takes it.
        gives_outputs: of a `RecordKind`: whether its `outputs` are forwarded instead of the records.
        needs_root: of a `RecordKind`: whether it uses `Record.root` and `Record.root_position`.
        states_by_key: whether each row is named by a unit's key and holds its state, encoded by the kind's codec. Then the stage may
            have buckets and a view, and its states can be read by key.
        has_views: whether some of its rows can be shown to other programs (`StageKind.shown_in`), though not by key.
        apart: whether several readers, each with its own input partitions, can run it without knowing of each other.
        ticks: whether its work has to do when the batch's clock reaches a moment, though no unit has come; see `StageWork.tick`.
        gives_later: whether what it gives for an input may come with a later batch: when a window ends, a partner comes, or a timer
            goes off. So no offset shows when the stages after it have counted that input.
        falls_due: whether something is done when event time reaches a moment, though no unit has come; see `StageWork.reach`.
        windowed: whether a key has a state for each window of event time.
        reversible: whether it can revert the changes of an input that fails. After a stage that cannot, such an input is skipped
            without being retried alone.
        sides: its side outputs: "changes", "dropped".
        may_be_last: whether the stage is useful if no node follows it; None: if it has a codec or a sink.
        own_times: which of its values have times of their own; None: all have those of their inputs.
    """

    method: str = ""
    called: str = "stage"
    spread: Spread = "key"
    identity: DeclaredFunction | None = None
    order: Order = "units"
    inputs: int = 1
    needs_key: bool = False
    needs: int = ENVELOPE
    heartbeat: DeclaredFunction | None = None
    maker: UserFunction | None = None
    guard: Any = STANDARD
    gives_fresh: bool = False
    gives_outputs: bool = False
    needs_root: bool = False
    states_by_key: bool = False
    has_views: bool = False
    apart: bool = False
    ticks: bool = False
    gives_later: bool = True
    falls_due: bool = False
    windowed: bool = False
    reversible: bool = False
    sides: tuple[Side, ...] = ()
    may_be_last: bool | None = None
    own_times: OwnTimes | None = None


class StageKind(ABC):
    """A kind of stage, as a stream declares it: `Stream.stage`. Data that is sent to workers: no open files, no locks.

    All but `name` and `start` have defaults. What does not depend on settings may be a class attribute:
    ``traits = StageTraits(order="times")``.

    Attributes:
        name: name of the kind: 1 to 120 of letters, digits, ``.``, ``_``, ``-``. It is stored with the flow: a stage
            whose kind has changed is refused, for the new kind would not understand its rows.
    """

    name: ClassVar[str]

    @property
    def traits(self) -> StageTraits:
        """What the framework does around it."""
        return StageTraits()

    @property
    def functions(self) -> tuple[DeclaredFunction, ...]:
        """All functions of the user, so that an error in one can name its stage; by default those in the fields of a dataclass."""
        return functions_in(self)

    @property
    def codec(self) -> Codec[Any] | None:
        """Of the states in its rows, to be compared with the stored type; None: the kind has its own format of rows."""
        return None

    @property
    def state_table(self) -> StateTable | None:
        """How a table shows its states (`view="NAME"`); None: no table can. Raises ValueError: these states cannot have columns."""
        return None

    @property
    def sink(self) -> Sink | None:
        """Where its rows are written instead of the store, in step 6: something that can be pickled. None: into the store.

        Rows may then be of any size, and cannot be read: each batch begins with an empty table of rows.
        """
        return None

    def check(self, where: str, *, dead_letters: bool) -> None:  # noqa: B027 - a kind may take anything
        """Check the settings, when a stream declares the stage.

        Args:
            where: file and line of the declaration; errors begin with it.
            dead_letters: whether the flow publishes dead-letter records.

        Raises:
            FlowError: one of them is wrong.
        """

    @abstractmethod
    def start(self, task: StageTask) -> StageWork:
        """The work for one state partition in one batch.

        Args:
            task: what it is given.
        """

    def states_in(self, row: bytes, content: bytes) -> Iterable[StoredState]:
        """The states in a stored row, for kinds with a `codec`.

        Args:
            row: its name.
            content: its content.

        Raises:
            Exception: the content does not hold such states.
        """
        if self.codec is None:
            return ()
        return (StoredState(row, self.codec.decode(content)),)

    def shown_in(self, row: bytes, content: bytes) -> Mapping[str, object] | None:
        """What a view shows of a stored row, as an object of JSON; None: nothing, at no time. See `has_views`.

        Args:
            row: its name.
            content: its content.

        Raises:
            Exception: it cannot be shown; then the view has the error.
        """
        del row
        if self.codec is None:
            return None
        shown = self.codec.to_view(self.codec.decode(content))
        # Lists and numbers, and the JSON of some of protobuf's own types (wrappers, timestamps), are no object.
        return shown if isinstance(shown, dict) else {"value": shown}
