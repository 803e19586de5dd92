"""What the protocol needs of a place outside the store into which a stage writes its rows: a table.

Two systems cannot be written in one atomic step. So the sealed plan decides what is written. The sink recognizes what it has
already, by plan and state partition. Afterwards the stage's header in the store notes that nobody has to ask again.

An overwrite stages the rows of many plans, and one plan decides that they replace what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports.store import Rows


@dataclass(frozen=True, slots=True)
class SinkState:
    """What a sink holds.

    Attributes:
        epoch: the largest epoch of a run that has claimed it; 0: none has.
        plans: numbers of the plans whose rows it holds as the last of a state partition.
    """

    epoch: int = 0
    plans: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SinkClaim:
    """A run that takes over a sink.

    Attributes:
        flow: name of the flow under which the stage's rows are stored.
        stage: its name.
        epoch: of the run; larger than that of `Sink.look`.
        run_id: its random name.
        plans: number -> id of the plans whose rows it holds as the last of a state partition, as far as they are known.
        known: state partition -> what the store keeps of the last flush (`Sink.flush` has returned it); None: nothing.
    """

    flow: str
    stage: str
    epoch: int
    run_id: str
    plans: Mapping[int, str]
    known: Mapping[int, bytes | None]


@dataclass(frozen=True, slots=True)
class Flush:
    """The rows of one state partition and one sealed plan; see `SinkClaim` for stage and run.

    Attributes:
        part: the state partition.
        number: number of the plan.
        plan_id: its id.
        rows: what the stage has put into its table: the same in every attempt.
        known: what the store keeps of the flush before; None: there was none.
    """

    flow: str
    stage: str
    part: int
    epoch: int
    run_id: str
    number: int
    plan_id: str
    rows: Rows
    known: bytes | None


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that are written, and that nobody sees.

    Attributes:
        rows: their number.
        known: what the store must keep for the next flush.
        told: what it must keep until the overwrite is decided.
    """

    rows: int
    known: bytes
    told: bytes


@dataclass(frozen=True, slots=True)
class Replacement:
    """What was staged for an overwrite, of all state partitions; a sealed plan has decided it. See `Flush` for stage, run and plan.

    Attributes:
        since: number of the plan that has begun the overwrite.
        whole: replace all rows; else those alone whose partition keys were staged.
        known: state partition -> what the store keeps; None: nothing.
        staged: state partition -> what was `told` of it, in the order of plans. Not needed any more where the plan is done.
    """

    flow: str
    stage: str
    epoch: int
    run_id: str
    number: int
    plan_id: str
    since: int
    whole: bool
    known: Mapping[int, bytes | None]
    staged: Mapping[int, Sequence[bytes]]


class Sink(Protocol):
    """A place outside the store. Its calls may be repeated: after a lost reply, and by another run after a crash.

    Every call may raise `Unavailable` (no answer) and `ConfigurationError` (address, login, or it is not set up).
    """

    def check(self) -> list[str]:
        """What is weak about its durability; see `StateStore.check`."""

    def remarks(self) -> list[str]:
        """What is durable enough but worth knowing; see `StateStore.remarks`."""

    def look(self, flow: str, stage: str, parts: range) -> SinkState:
        """What it holds of a stage."""

    def claim(self, claim: SinkClaim) -> None:
        """Create what is missing, and shut out older runs: from now on a flush of theirs adds nothing.

        Raises:
            Superseded: a newer run has claimed it.
            TableInconsistent: it does not hold what was flushed by the store's account, or holds more.
            TableAltered: another program has written to it, or changed it.
        """

    def flush(self, flush: Flush) -> tuple[int, bytes]:
        """Add the rows, all at once, unless they are there already. When it returns they stay, whatever crashes.

        Returns:
            The number of rows that it has added now; and what the store must keep for the next flush.

        Raises:
            Superseded, TableInconsistent, TableAltered: as `claim`; nothing was added.
        """


@runtime_checkable
class WrappableSink(Sink, Protocol):
    """A sink made of calls that tests can let fail one by one."""

    def wrapped(self, wrap: Callable[[Any], Any]) -> Sink:
        """The same sink, with `wrap` around whatever makes its calls."""


@runtime_checkable
class ReplacingSink(Sink, Protocol):
    """A sink whose rows an overwrite can replace. Of others overwrites are refused."""

    def check_replaces(self) -> None:
        """Check that all state partitions can be replaced at once.

        Raises:
            ConfigurationError: they cannot.
        """

    def stage(self, flush: Flush, since: int) -> Staged:
        """Write the rows so that nobody sees them, until `replace`. When it returns they stay.

        Args:
            flush: the rows.
            since: number of the plan that has begun the overwrite.

        Raises:
            ChainError: as `flush`.
        """

    def check_staged(self, replacement: Replacement) -> list[str]:
        """What of the staged rows is not there any more, in words; empty: all is."""

    def replace(self, replacement: Replacement) -> bytes:
        """Replace what it holds by what was staged, all at once, unless that is done already. When it returns it stays.

        Returns:
            What the store must keep of each state partition for the next flush.

        Raises:
            TableInconsistent: see `claim`; or something that was staged is gone.
            ChainError: as `flush`.
        """


def replacing(sink: Sink, stage: str) -> ReplacingSink:
    """The sink of a stage, as one whose rows an overwrite can replace.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(sink, ReplacingSink):
        raise ConfigurationError(
            f"stage {stage!r}: an overwrite replaces rows, and {type(sink).__name__} cannot: it has no methods of ReplacingSink"
        )
    return sink
