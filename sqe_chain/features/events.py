"""The events of features, and of what is done to flows, one class for each kind; see `sqe_chain.plans.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sqe_chain.plans.events import Event
from sqe_chain.task.trace_report import TraceReport


@dataclass(frozen=True, slots=True)
class Rebuilt(Event):
    """A flow was folded again, and goes on from the new states.

    Attributes:
        plan: number of its last plan.
        stored_in: stage -> name of the flow under which its states are stored now.
    """

    name: ClassVar[str] = "rebuilt"

    plan: int
    stored_in: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Announced(Event):
    """The newest state of each key was published again.

    Attributes:
        plan: number of the last plan.
        outputs: stage -> messages published now.
        known: stages whose states were published before, and have not changed since.
    """

    name: ClassVar[str] = "announced"

    plan: int
    outputs: Mapping[str, int]
    known: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableFlushed(Event):
    """Step 6 for a table: all rows of what was read so far are durable in it. A service repeats the last one when it starts.

    So each arrives at least once, unless a later one replaces it; a program that keeps the offsets may keep the larger ones.

    Attributes:
        plan: number of the plan.
        table: name of the stage.
        offsets: "topic/partition" -> offset up to which every row is in the table, of the inputs that reach it. A run after a
            crash begins there or later.
    """

    name: ClassVar[str] = "flushed"
    for_programs: ClassVar[frozenset[str]] = frozenset({"offsets"})

    plan: int
    table: str
    offsets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TableReplaced(Event):
    """Step 6 of an overwrite: readers of a table see the rows of the files, and no longer those that were replaced.

    Attributes:
        plan: number of the plan that has decided it.
        table: name of the stage.
        mode: what was replaced: `table`, all rows; `partitions`, those whose partition keys are in the files.
        files: how many contents it has read.
    """

    name: ClassVar[str] = "replaced"

    plan: int
    table: str
    mode: str
    files: int


@dataclass(frozen=True, slots=True)
class FilesSeen(Event):
    """Which files there are: at the start, and when some have come, or are read to their ends.

    Attributes:
        files: how many with rows; those with the same content are one.
        files_left: of these, not read to their ends.
        rows: in all of them.
        rows_left: of these, not read.
    """

    name: ClassVar[str] = "files"

    files: int
    files_left: int
    rows: int
    rows_left: int


@dataclass(frozen=True, slots=True)
class Filtered(Event):
    """What filters have dropped in a batch, or noticed.

    Attributes:
        plan: number of its plan.
        counts: "stage/reason" -> messages.
    """

    name: ClassVar[str] = "filtered"

    plan: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NewerRevision(Event):
    """An output upstream has a revision that the flow does not follow. Its messages are ignored; `sqe-chain rebuild` takes them up.

    Attributes:
        output: its name, "flow/output".
        revision: the highest number that was met.
        follows: the number that counts for the flow.
    """

    name: ClassVar[str] = "newer_revision"
    warns: ClassVar[bool] = True

    output: str
    revision: int
    follows: int


@dataclass(frozen=True, slots=True)
class Ignored(Event):
    """Messages of a batch had no effect, because of revisions of outputs upstream.

    Attributes:
        plan: number of its plan.
        superseded: a newer revision counts for their roots.
        newer: of revisions that the flow does not follow.
    """

    name: ClassVar[str] = "ignored"

    plan: int
    superseded: int
    newer: int


@dataclass(frozen=True, slots=True)
class WindowsClosed(Event):
    """All windows were closed at the end of a finite input (`--close-windows`), or again where that had been done.

    Attributes:
        plan: number of its plan.
        outputs: messages published.
        event_ms: the latest event time read before, which the results bear, milliseconds since 1970.
    """

    name: ClassVar[str] = "windows_closed"

    plan: int
    outputs: int
    event_ms: int


@dataclass(frozen=True, slots=True)
class TracesSeen(Event):
    """The outputs of a batch are published, in a flow that follows traces.

    Attributes:
        report: the traces of its records and outputs.
    """

    name: ClassVar[str] = "traces"
    hidden: ClassVar[bool] = True

    report: TraceReport

    def fields(self) -> dict[str, object]:
        """How many links and outputs there are."""
        return {"links": len(self.report.links), "outputs": len(self.report.outputs)}


@dataclass(frozen=True, slots=True)
class AnnouncementResult:
    """The result of republishing states: they are published.

    Attributes:
        plan: number of the last plan.
        outputs: stage -> messages published now.
        known: stages whose states were published before, and have not changed since.
    """

    plan: int
    outputs: Mapping[str, int] = field(default_factory=dict)
    known: tuple[str, ...] = ()
