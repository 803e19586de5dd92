"""What a start and a batch of a service return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqe_chain.task.exclusion import Exclusion
from sqe_chain.task.results import Report


@dataclass(frozen=True, slots=True)
class StartResult:
    """The result of a start: the service is ready for its first batch.

    Attributes:
        partitions: input partitions that it reads.
        plan: number of the last plan; None for a flow without stages, which has none.
        redone: numbers of the plans that had to be finished first, oldest first; None for a flow without stages.
        inputs: messages read again for what had to be finished.
    """

    partitions: int
    plan: int | None = None
    redone: tuple[int, ...] | None = None
    inputs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The result of a batch: it is published, persisted and committed.

    Attributes:
        worked: whether there was anything new; if not, nothing was done, and all numbers are 0.
        plan: number of the last plan; None for a flow without stages.
        inputs: messages read.
        replays: of these, replays.
        exclusions: of these, those that the poison policy skipped.
        outputs: messages published.
        lag_by_partition: "topic/partition" -> offsets that were there when the batch began, and are not in it.
        parked: records that are parked after the batch; None where none can be.
        held: records that wait for event time after the batch; None where no stage goes by it.
        holder: "topic/partition" that holds them back; None when nothing waits.
        watermark_ms: up to where event time is known there, milliseconds since 1970; None when nothing waits, or nothing is known.
        event_time_ms: newest timestamp among the last records read of each partition, milliseconds since 1970; -1 none.
        batch_ms: how long the batch took, milliseconds.
        dropped: "stage/reason" -> what stages have dropped, or noticed.
    """

    worked: bool
    plan: int | None = None
    inputs: int = 0
    replays: int = 0
    exclusions: tuple[Exclusion, ...] = ()
    outputs: int = 0
    lag_by_partition: Mapping[str, int] = field(default_factory=dict)
    parked: int | None = None
    held: int | None = None
    holder: str | None = None
    watermark_ms: int | None = None
    event_time_ms: int = -1
    batch_ms: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        report: Report,
        exclusions: Sequence[Exclusion],
        *,
        plan: int | None,
        outputs: int,
        lag_by_partition: Mapping[str, int],
        batch_ms: int,
    ) -> BatchResult:
        """The result of a batch that has read something.

        Args:
            report: what its tasks have reported.
            exclusions: skipped inputs.
            plan: number of its plan.
            outputs: messages published: fewer than the tasks have made, where a batch publishes nothing.
            lag_by_partition: what was there and is not in it.
            batch_ms: how long it took.
        """
        return cls(
            worked=True,
            plan=plan,
            inputs=report.inputs,
            replays=sum(end.replays for end in report.ends),
            exclusions=tuple(exclusions),
            outputs=outputs,
            lag_by_partition=lag_by_partition,
            event_time_ms=max((end.last_timestamp_ms for end in report.ends), default=-1),
            batch_ms=batch_ms,
            dropped={f"{stage}/{reason}": count for (stage, reason), count in sorted(report.dropped.items())},
        )

    @property
    def lag(self) -> int:
        """Offsets, over all partitions, that were there when the batch began, and are not in it."""
        return sum(self.lag_by_partition.values())
