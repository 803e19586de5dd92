"""The events of a service, one class for each kind, and who hears them.

`Event.name` and `Event.fields` are the name and the fields of the lines that a service writes, which users parse. A field
that is None is missing in its line. Numbers of messages, offsets and rows are counts; times have their unit in the name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal, NamedTuple, Protocol

from sqe_chain.plans.results import BatchResult, StartResult

SAMPLE = 5
"""Skipped inputs that `Committed` describes one by one, and errors that it counts."""
SAMPLE_TEXT = 200
"""Characters of their texts."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line.

    Attributes:
        name: the event's name in a line.
        warns: whether a person has to look at it.
        hidden: whether it is about the inside of a service, and gets no line.
        for_programs: fields that lines of text do not show: they are long, or not readable for people.
    """

    name: ClassVar[str] = ""
    warns: ClassVar[bool] = False
    hidden: ClassVar[bool] = False
    for_programs: ClassVar[frozenset[str]] = frozenset()

    def fields(self) -> dict[str, object]:
        """What a line shows beside the name, in this order; sequences as lists."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }


CLAIM, RECOVER, PROCESS, SEAL, PUBLISH, PERSIST, COMMIT = range(1, 8)
"""The numbered steps."""


class Step(NamedTuple):
    """What a numbered step is called.

    Attributes:
        name: in metrics, spans, log lines and proofs.
        doing: in sentences about what a service does.
    """

    name: str
    doing: str


STEPS: Final[Mapping[int, Step]] = {
    CLAIM: Step("claim", "claiming"),
    RECOVER: Step("recover", "recovering"),
    PROCESS: Step("process", "processing"),
    SEAL: Step("seal", "sealing"),
    PUBLISH: Step("publish", "publishing"),
    PERSIST: Step("persist", "persisting"),
    COMMIT: Step("commit", "committing"),
}
"""The numbered steps, in their order."""

When = Literal["before", "after"]


class Observer(Protocol):
    """Hears what a service does. An error raised here ends the service as a crash would."""

    def step(self, number: int, when: When) -> None:  # noqa: ARG002 - for those that do not ignore it
        """A numbered step begins or has ended. Most observers ignore it."""
        return

    def event(self, event: Event) -> None:
        """Something worth a line has happened."""


# ---------------------------------------------------------------------- once a run


@dataclass(frozen=True, slots=True)
class Standby(Event):
    """Another run holds the flow; this one waits until it gives the claim back, or its heartbeat has stopped.

    Attributes:
        epoch: of the other run's claim.
        owner: which process that is, as JSON.
        holder: the same for people, and what they can do.
    """

    name: ClassVar[str] = "standby"
    warns: ClassVar[bool] = True
    for_programs: ClassVar[frozenset[str]] = frozenset({"owner"})

    epoch: int
    owner: str
    holder: str = ""


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
        inputs: messages read again for what had to be finished; no `committed` counts them.
    """

    name: ClassVar[str] = "recovered"

    partitions: int
    plan: int | None = None
    redone: tuple[int, ...] | None = None
    inputs: int = 0

    @classmethod
    def of(cls, result: StartResult) -> Recovered:
        """The event for a start."""
        return cls(result.partitions, result.plan, result.redone, result.inputs)


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """What the first batch needs is prepared, as far as that was possible; it begins now. A run that ends by itself does not report it.

    Attributes:
        waited_ms: how long that took longer than step 2, in milliseconds.
    """

    name: ClassVar[str] = "ready"

    waited_ms: int


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
    warns: ClassVar[bool] = True

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
    hidden: ClassVar[bool] = True

    stages: tuple[str, ...]
    keys: int


@dataclass(frozen=True, slots=True)
class Sealed(Event):
    """Step 4: the plan is in the metadata store, the next run finishes it.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """Step 7: the batch is done.

    Attributes:
        plan: number of its plan; None for a flow without stages.
        inputs: messages read.
        replays: of these, replays.
        excluded: of these, skipped by the poison policy.
        excluded_errors: error class -> how many, of the commonest `SAMPLE`; None when nothing was skipped.
        excluded_sample: the first `SAMPLE` of them: `input`, `error` and the beginning of its `text`; or None.
        outputs: messages published.
        lag: offsets that were there when the batch began, and are not in it.
        lag_by_partition: the same for each "topic/partition".
        parked: records that are parked after the batch; None where none can be.
        held: records that wait for event time after the batch; None where no stage goes by it.
        holder: "topic/partition" that holds them back; None when nothing waits.
        watermark_ms: up to where event time is known there, milliseconds since 1970; None when nothing waits, or nothing is known.
        event_time_ms: newest timestamp among the last records read of each partition, milliseconds since 1970; -1 none.
        batch_ms: how long the batch took, milliseconds.
    """

    name: ClassVar[str] = "committed"
    for_programs: ClassVar[frozenset[str]] = frozenset({"lag_by_partition", "event_time_ms"})

    plan: int | None = None
    inputs: int
    replays: int
    excluded: int
    excluded_errors: Mapping[str, int] | None = None
    excluded_sample: tuple[Mapping[str, str], ...] | None = None
    outputs: int
    lag: int
    lag_by_partition: Mapping[str, int]
    parked: int | None = None
    held: int | None = None
    holder: str | None = None
    watermark_ms: int | None = None
    event_time_ms: int
    batch_ms: int

    @classmethod
    def of(cls, result: BatchResult) -> Committed:
        """The event for a batch."""
        left_out = result.exclusions
        counts = Counter([exclusion.error for exclusion in left_out])
        sample = tuple(
            {
                "input": f"{exclusion.topic}[{exclusion.partition}]@{exclusion.offset}",
                "error": exclusion.error,
                "text": exclusion.text[:SAMPLE_TEXT],
            }
            for exclusion in left_out[:SAMPLE]
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
            parked=result.parked,
            held=result.held,
            holder=result.holder,
            watermark_ms=result.watermark_ms,
            event_time_ms=result.event_time_ms,
            batch_ms=result.batch_ms,
        )


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
    warns: ClassVar[bool] = True

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
    warns: ClassVar[bool] = True

    text: str
    logger: str | None = None
