"""What a kind of stage is: the one protocol that folds, windows and filters implement, and kinds of other packages.

A kind has two parts. `StageKind` is its declaration: data that the flow holds, and that travels to workers. `StageWork`
is what it does: one object for each state partition and batch, which is given units and a table of rows, and knows
neither store nor log. Around it the framework shuffles, loads, writes in atomic steps, does batches again after crashes,
and leaves inputs out that fail; so a kind that keeps to these promises is exact without a line about any of that:

* the same units in the same order give the same rows and outputs: no clock but `StageTask.now_ms`, no randomness;
* what is remembered stands in rows, and nowhere else beyond the end of a batch;
* rows keep the rule of `sqe_chain.flow.table`.

Kinds that look at one record after the other are simpler to write with `sqe_chain.stages.RecordKind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from sqe_chain.codecs import Codec
from sqe_chain.flow.context import Origin
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.stored import StoredState
from sqe_chain.flow.table import Table
from sqe_chain.flow.units import Push, Unit

Spread = Literal["key", "partition", "lane", "id"]
"""What decides the state partition of a unit: its key, the input partition or lane that it came from, or an id."""
Order = Literal["units", "times"]
"""In which order units are taken. "units": as they come, input partition after input partition. "times": at the end of
the batch, of all input partitions always the one whose next record is the earliest, as Kafka Streams does; each keeps its
own order. For what compares event times: else a batch that spans an hour makes the second partition an hour late."""
Side = Literal["", "changes", "dropped"]
"""What a node takes of a stage: what goes on, what `changes()` gives, or what `dropped()` gives."""

NOTHING, ENVELOPE, CONTEXT = 0, 1, 2
"""What a node needs to know of the input behind a unit: its coordinates alone; also lane, position and time, of which
an envelope is made; or all that a context shows. It is carried along through a shuffle."""


class LiveState:
    """One key's state while a batch runs, of a kind with `StageKind.states_by_key`.

    Attributes:
        state: the live state.
        origin: the last input that touched it; None before the first.
        deleted: the last input that touched it deleted it.
    """

    __slots__ = ("deleted", "origin", "state")

    def __init__(self, state: Any) -> None:  # noqa: ANN401 - of the type that the stage declares
        self.state = state
        self.origin: Origin | None = None
        self.deleted = False


class PlainFold(NamedTuple):
    """What lets ordinary messages be folded without units; see `StageWork.plain_fold`.

    Attributes:
        states: key -> live state, of keys that were loaded; None: leave the key as it is.
        fold: ``(state, value) -> None | iterable``, which changes the state.
    """

    states: Mapping[bytes, LiveState | None]
    fold: UserFunction


class StageTable(Table, Protocol):
    """The rows of a stage in one state partition, for the batch at hand."""

    @property
    def untouched(self) -> bool:
        """Whether no row is known to be `settled`."""

    def take(self, row: bytes) -> bytes | None:
        """The same as `get`, for a row that is not asked for again in this batch: it is not kept."""


@dataclass(slots=True)
class StageTask:
    """What a stage is given for one state partition in one batch.

    Attributes:
        name: of the stage, for error texts.
        place: where it was declared, for error texts.
        table: its rows.
        now_ms: the batch's clock: the same in every attempt.
        emit: takes what goes on: value, key, path, origin. None when nobody wants it.
        drop: takes what `dropped()` gives; None when nobody wants it.
        before_input: to be called with the next input before its first unit is looked at.
        failed: to be called when user code raises, in the stage or in the steps after it, or when the stage refuses an
            input. The batch is then done again without that input, so the run goes on only to find more of them. Raises
            to stop at once.
        counts: (stage, reason) -> records; added to.
        reversible: every change has to be taken back when its input fails; only asked of kinds that can.
        suspects: topic, partition and offset of inputs on trial: each is applied, then taken back. Kinds that cannot
            take back are not given them.
    """

    name: str
    place: str
    table: StageTable
    now_ms: int
    emit: Push | None
    drop: Push | None
    before_input: Callable[[Origin], None]
    failed: Callable[[Origin, Exception], None]
    counts: Counter[tuple[str, str]]
    reversible: bool = False
    suspects: frozenset[tuple[str, int, int]] = frozenset()


class StageWork(ABC):
    """What a stage does with the units of one state partition in one batch."""

    @abstractmethod
    def apply(self, units: Sequence[Unit]) -> None:
        """Take a block of units, in their order; all belong to this state partition.

        Loads the rows they need together (`StageTable.load`), then takes one unit after the other: calls
        `StageTask.before_input` where the input changes, changes rows or objects in memory, gives what goes on to
        `emit` and what does not to `drop`, and calls `failed` for an input that fails. Errors of a store are raised.
        """

    @abstractmethod
    def finish(self) -> None:
        """After the last unit: put every changed row into the table.

        Raises:
            PoisonError: something cannot be stored, and no single input is to blame.
        """

    def push_changes(self, push: Push) -> None:  # noqa: B027 - most kinds give none
        """After `finish`: give what `changes()` gives to the steps behind it. Of kinds with this side."""

    def plain_fold(self) -> PlainFold | None:
        """How ordinary messages may be folded at once; None: each has to become a unit.

        Only where that gives the same: nobody wants what the fold emits, nothing has to be taken back, and the
        fold asks for nothing but the value.
        """
        return None


class StageKind(ABC):
    """A kind of stage, as a stream declares it: `Stream.stage`. Data that is sent to workers: no open files, no locks.

    Everything has a default but `name` and `start`. What depends on settings is a property; what does not may be a plain
    attribute of the class: ``order = "times"``.

    Attributes:
        name: of the kind, for all its stages: 1 to 120 of letters, digits, ``.``, ``_``, ``-``. Stored with the flow: a
            stage of another kind under the same name is refused, for it would not understand the rows.
    """

    name: ClassVar[str]

    @property
    def method(self) -> str:
        """The word by which users know it, in pictures and error texts."""
        return self.name

    @property
    def called(self) -> str:
        """What such a stage is, for an error's text about one of its functions."""
        return "stage"

    @property
    def spread(self) -> Spread:
        """What decides the state partition of a unit. Rows of two of them never meet."""
        return "key"

    @property
    def order(self) -> Order:
        """In which order units are taken."""
        return "units"

    @property
    def needs_key(self) -> bool:
        """Whether a unit without a key is poison before it comes here."""
        return False

    @property
    def needs(self) -> int:
        """What `apply` looks at of the input behind a unit: NOTHING, ENVELOPE or CONTEXT."""
        return ENVELOPE

    @property
    def identity(self) -> DeclaredFunction | None:
        """Where ids decide (`spread`): the user's function ``value -> bytes | str | None`` that gives them."""
        return None

    @property
    def heartbeat(self) -> DeclaredFunction | None:
        """The user's function that says of a value whether it only moves event time; None: there is none.

        A heartbeat comes to every state partition, as a unit without value. So such a stage has a shuffle.
        """
        return None

    @property
    def functions(self) -> tuple[DeclaredFunction, ...]:
        """All functions of the user, so that an error of one can name its stage."""
        return ()

    @property
    def maker(self) -> UserFunction | None:
        """The user's function that makes the values that go on; None: they are those that came, or the kind's own."""
        return None

    @property
    def states_by_key(self) -> bool:
        """Whether each row is named by a unit's key and holds its state, encoded by `codec`.

        Then the stage may have buckets and a view, and its states can be read by key.
        """
        return False

    @property
    def codec(self) -> Codec[Any] | None:
        """Of the states in its rows; None: what rows hold is the kind's own business. Stored types are compared with it."""
        return None

    @property
    def windowed(self) -> bool:
        """Whether a key has a state for each window of event time."""
        return False

    @property
    def reversible(self) -> bool:
        """Whether it can take back what an input did to its rows when that input fails.

        Where a stage of a flow cannot, an input that fails behind it is left out without a trial whether it fails by
        itself.
        """
        return False

    @property
    def sides(self) -> tuple[Side, ...]:
        """What it gives beside what goes on: "changes", "dropped"."""
        return ()

    @property
    def may_be_last(self) -> bool:
        """Whether its rows are worth something if no step follows it."""
        return self.codec is not None

    def check(self, where: str, *, dead_letters: bool) -> None:  # noqa: B027 - a kind may take anything
        """Check the settings, when a stream declares the stage.

        Args:
            where: place in the user's file; errors begin with it.
            dead_letters: whether the flow publishes dead letters.

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
        """The states in a stored row, of kinds with a `codec`.

        Args:
            row: its name.
            content: what stands there.

        Raises:
            Exception: the content is none of such states.
        """
        if self.codec is None:
            return ()
        return (StoredState(row, self.codec.decode(content)),)
