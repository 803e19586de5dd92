"""What tasks report of traces, in flows that are declared with `traces=True`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.envelope.trace_context import TraceContext

MOST_LINKS: Final = 32
"""Traces to which one output, or one batch, is linked."""
MOST_OUTPUTS: Final = 1_000
"""Outputs of one task, or of one batch, whose links are reported."""


@dataclass(frozen=True, slots=True)
class TracedOutput:
    """An output with a trace of its own.

    Attributes:
        topic: where it is published.
        partition: its partition.
        context: its span.
        links: spans of the records that it was made of, at most `MOST_LINKS`.
        dropped: records whose spans are not among them.
    """

    topic: str
    partition: int
    context: TraceContext
    links: tuple[TraceContext, ...]
    dropped: int


@dataclass(slots=True)
class TraceReport:
    """What a task, or all of a batch, has seen of traces.

    Attributes:
        links: spans of the records that were read, at most `MOST_LINKS`.
        dropped: records whose spans are not among them.
        outputs: outputs with a trace of their own, at most `MOST_OUTPUTS`.
        dropped_outputs: further ones.
    """

    links: dict[TraceContext, None] = field(default_factory=dict)
    dropped: int = 0
    outputs: list[TracedOutput] = field(default_factory=list)
    dropped_outputs: int = 0

    def see(self, context: TraceContext) -> None:
        """Note the span of a record."""
        if context in self.links or len(self.links) < MOST_LINKS:
            self.links[context] = None
        else:
            self.dropped += 1

    def made(self, outputs: Sequence[TracedOutput]) -> None:
        """Note outputs."""
        room = max(0, MOST_OUTPUTS - len(self.outputs))
        self.outputs += outputs[:room]
        self.dropped_outputs += len(outputs[room:])

    def add(self, other: TraceReport) -> None:
        """Take in what another task reports."""
        for context in other.links:
            self.see(context)
        self.dropped += other.dropped
        self.made(other.outputs)
        self.dropped_outputs += other.dropped_outputs
