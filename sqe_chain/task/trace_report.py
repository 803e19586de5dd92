"""How outputs are traced, and what tasks report of it, in flows that are declared with `traces=True`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.envelope.trace_context import TRACEPARENT, TraceContext, own_context
from sqe_chain.ports import Headers

MOST_LINKS: Final = 32
"""Traces to which one output, or one batch, is linked."""
_MOST_OUTPUTS: Final = 1_000
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
        outputs: outputs with a trace of their own, at most `_MOST_OUTPUTS`.
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
        room = max(0, _MOST_OUTPUTS - len(self.outputs))
        self.outputs += outputs[:room]
        self.dropped_outputs += len(outputs[room:])

    def add(self, other: TraceReport) -> None:
        """Take in what another task reports."""
        for context in other.links:
            self.see(context)
        self.dropped += other.dropped
        self.made(other.outputs)
        self.dropped_outputs += other.dropped_outputs


Order = tuple[str, int, int]
"""Topic, partition, offset."""
Place = tuple[int, int, bytes | None]
"""What outputs are gathered by: number of the input, index of the output's node, key."""


@dataclass(frozen=True, slots=True)
class OwnTrace:
    """An output with a trace of its own is made of these records.

    Attributes:
        links: their spans.
        dropped: records with further spans.
    """

    links: tuple[TraceContext, ...]
    dropped: int

    def joined(self, other: OwnTrace) -> OwnTrace:
        """Both: their values go out together."""
        links = tuple(dict.fromkeys((*self.links, *other.links)))
        dropped = self.dropped + other.dropped + len(links[MOST_LINKS:])
        return OwnTrace(links[:MOST_LINKS], dropped)


Note = OwnTrace | Headers | None
"""How a payload is traced: by itself, in the trace that these headers name, or not at all."""


@dataclass(slots=True)
class RowTraces:
    """How the payloads are traced that are gathered together.

    Attributes:
        notes: of each envelope.
        outputs: what was made of those with traces of their own, at most `_MOST_OUTPUTS`.
        dropped: further ones.
    """

    notes: Mapping[Place, OwnTrace | Headers]
    outputs: dict[TraceContext, TracedOutput] = field(default_factory=dict)
    dropped: int = 0

    def headers(self, place: Place, topic: str, partition: int, event_id: bytes) -> Headers:
        """The headers of an envelope."""
        note = self.notes.get(place)
        if not isinstance(note, OwnTrace):
            return note or []
        context = own_context(event_id)
        if len(self.outputs) < _MOST_OUTPUTS or context in self.outputs:
            self.outputs[context] = TracedOutput(topic, partition, context, note.links, note.dropped)
        else:
            self.dropped += 1
        return [(TRACEPARENT, context)]
