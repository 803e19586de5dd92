"""The events of a service, one class for each kind.

`Event.name` and `Event.fields` are the name and the fields of the lines that a service writes, which users parse. A field
that is None is left out of its line. Numbers of messages, offsets and rows are counts; times have their unit in the name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from sqe_chain.protocol.results import BatchResult, StartResult

SAMPLE = 5
"""Inputs left out that `Committed` describes one by one, and errors of which it gives the number."""
SAMPLE_TEXT = 200
"""Characters of their texts."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line.

    Attributes:
        name: the event's name in a line.
    """

    name: ClassVar[str] = ""

    def fields(self) -> dict[str, object]:
        """What a line shows beside the name, in this order; sequences as lists."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value is not None
        }


# ---------------------------------------------------------------------- once a run


@dataclass(frozen=True, slots=True)
class Standby(Event):
    """Another run holds the flow; this one waits until it gives the claim back, or its heartbeat has stopped.

    Attributes:
        epoch: of the other run's claim.
        owner: which process that is, as JSON.
    """

    name: ClassVar[str] = "standby"

    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """Step 1: this run owns the flow.

    Attributes:
        epoch: of its claim.
        run_id: its random name.
        plan: number of the last plan; -1 before the first.
    """

    name: ClassVar[str] = "claimed"

    epoch: int
    run_id: str
    plan: int


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """Step 2: nothing is unfinished any more, the service is ready for its first batch.

    Attributes:
        partitions: input partitions that it reads.
        plan: number of the last plan; None for a flow without stages, which has none.
        redone: numbers of the plans that had to be finished first; None for a flow without stages.
    """

    name: ClassVar[str] = "recovered"

    partitions: int
    plan: int | None = None
    redone: tuple[int, ...] | None = None

    @classmethod
    def of(cls, result: StartResult) -> Recovered:
        """The event for a start."""
        return cls(result.partitions, result.plan, result.redone)


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """What the first batch needs is prepared, as far as that was possible; it begins now. Not said by a run that ends by itself.

    Attributes:
        waited_ms: how long that took longer than step 2, in milliseconds.
    """

    name: ClassVar[str] = "ready"

    waited_ms: int


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
    """The newest state of each key was published once more.

    Attributes:
        plan: number of the last plan.
        outputs: stage -> messages published now.
        known: stages that were announced before, and nothing has changed since.
    """

    name: ClassVar[str] = "announced"

    plan: int
    outputs: Mapping[str, int]
    known: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped(Event):
    """The service ends in good order.

    Attributes:
        reason: the signal, `once`, `stop`, ...
    """

    name: ClassVar[str] = "stopped"

    reason: str


# ---------------------------------------------------------------------- each batch


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """Step 3: inputs failed in an attempt; the batch is processed again, to find out which are to blame.

    Attributes:
        attempt: 1, 2, ...
        inputs: how many failed.
        first: one of them, and why.
    """

    name: ClassVar[str] = "failed"

    attempt: int
    inputs: int
    first: str


@dataclass(frozen=True, slots=True)
class Shuffled(Event):
    """Step 3: keys do not lie where murmur2 puts them, so this run shuffles from now on.

    Attributes:
        stages: the stages concerned.
        keys: keys that lay elsewhere in this batch.
    """

    name: ClassVar[str] = "shuffled"

    stages: tuple[str, ...]
    keys: int


@dataclass(frozen=True, slots=True)
class Sealed(Event):
    """Step 4: the plan is in the home store, whoever comes will finish it.

    Attributes:
        plan: its number.
        id: its id, hexadecimal.
    """

    name: ClassVar[str] = "sealed"

    plan: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """Step 5: all outputs are acknowledged.

    Attributes:
        plan: number of the plan; None for a flow without stages.
        outputs: messages published.
    """

    name: ClassVar[str] = "published"

    plan: int | None = None
    outputs: int


@dataclass(frozen=True, slots=True)
class Persisted(Event):
    """Step 6 for one level of stages: its states are written.

    Attributes:
        plan: number of the plan.
        level: 1 for the stages next to the inputs; the highest is written first.
        rows: states written.
    """

    name: ClassVar[str] = "persisted"

    plan: int
    level: int
    rows: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """Step 7: the batch is done.

    Attributes:
        plan: number of its plan; None for a flow without stages.
        inputs: messages read.
        replays: of these, replays.
        excluded: of these, left out by the poison policy.
        excluded_errors: error class -> how many, of the commonest `SAMPLE`; None when nothing was left out.
        excluded_sample: the first `SAMPLE` of them: `input`, `error` and the beginning of its `text`; or None.
        outputs: messages published.
        lag: offsets that were there when the batch began, and are not in it.
        lag_by_partition: the same for each "topic/partition".
        held: records that wait for event time after the batch; None where no stage goes by it.
        holder: "topic/partition" that holds them back; None when nothing waits.
        watermark_ms: up to where event time is known there, milliseconds since 1970; None when nothing waits, or nothing is known.
        event_time_ms: newest timestamp among the last records read of each partition, milliseconds since 1970; -1 none.
        batch_ms: how long the batch took, milliseconds.
    """

    name: ClassVar[str] = "committed"

    plan: int | None = None
    inputs: int
    replays: int
    excluded: int
    excluded_errors: Mapping[str, int] | None = None
    excluded_sample: tuple[Mapping[str, str], ...] | None = None
    outputs: int
    lag: int
    lag_by_partition: Mapping[str, int]
    held: int | None = None
    holder: str | None = None
    watermark_ms: int | None = None
    event_time_ms: int
    batch_ms: int

    @classmethod
    def of(cls, result: BatchResult) -> Committed:
        """The event for a batch."""
        left_out = result.exclusions
        counts = Counter(one.error for one in left_out)
        sample = tuple(
            {
                "input": f"{one.topic}[{one.partition}]@{one.offset}",
                "error": one.error,
                "text": one.text[:SAMPLE_TEXT],
            }
            for one in left_out[:SAMPLE]
        )
        return cls(
            plan=result.plan,
            inputs=result.inputs,
            replays=result.replays,
            excluded=len(left_out),
            excluded_errors=dict(counts.most_common(SAMPLE)) if left_out else None,
            excluded_sample=sample if left_out else None,
            outputs=result.outputs,
            lag=result.lag,
            lag_by_partition=result.lag_by_partition,
            held=result.held,
            holder=result.holder,
            watermark_ms=result.watermark_ms,
            event_time_ms=result.event_time_ms,
            batch_ms=result.batch_ms,
        )


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
class CaughtUp(Event):
    """There is nothing new in the inputs.

    Attributes:
        plan: number of the last plan; None for a flow without stages.
    """

    name: ClassVar[str] = "caught_up"

    plan: int | None = None


# ---------------------------------------------------------------------- at any time


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """A broker or a store does not answer; the call is repeated.

    Attributes:
        what: what is waited for, after "waiting to".
        reason: the error.
        wait_ms: until the next attempt, milliseconds.
    """

    name: ClassVar[str] = "waiting"

    what: str
    reason: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something that a person should know.

    Attributes:
        text: a sentence.
        logger: name of the logger, for what a library has logged; else None.
    """

    name: ClassVar[str] = "notice"

    text: str
    logger: str | None = None
