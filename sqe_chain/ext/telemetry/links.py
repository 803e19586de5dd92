"""Links from batches and outputs to the traces of the records that they were made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from sqe_chain.envelope.trace_context import TraceContext, ids_of
from sqe_chain.ext.telemetry.spans import Open, Spans, set_all
from sqe_chain.task.trace_report import MOST_LINKS, TracedOutput, TraceReport


class GivenIds(RandomIdGenerator):
    """Gives random ids; for the span of an output those that its header has, which are `given` before."""

    def __init__(self) -> None:
        self.given: TraceContext | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.given is None else ids_of(self.given)[0]

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.given is None else ids_of(self.given)[1]


def link_records(opened: Open, report: TraceReport) -> None:
    """Link a span to the traces of the records that were read."""
    for link in _links(report.links):
        opened.span.add_link(link.context)
    if report.dropped:
        set_all(opened, {"sqe_chain.links.dropped": report.dropped})
    if report.dropped_outputs:
        set_all(opened, {"sqe_chain.outputs.without_span": report.dropped_outputs})


def create_spans(spans: Spans, ids: GivenIds, step: Open, outputs: Sequence[TracedOutput]) -> None:
    """Make the spans of outputs, each in a trace of its own, with the ids that the outputs bear. Link the step to the first ones."""
    for output in outputs:
        attributes = spans.messaging("create", "create", (output.topic,))
        attributes["messaging.destination.partition.id"] = str(output.partition)
        if output.dropped:
            attributes["sqe_chain.links.dropped"] = output.dropped
        links = [*_links(output.links), Link(step.span.get_span_context())]
        ids.given = output.context
        try:
            span = spans.tracer.start_span(
                f"create {output.topic}",
                Context(),
                SpanKind.PRODUCER,
                {**spans.common, **attributes},
                links,
            )
        finally:
            ids.given = None
        span.end()
    for output in outputs[:MOST_LINKS]:
        step.span.add_link(_span_context(output.context))


def _links(contexts: Iterable[TraceContext]) -> list[Link]:
    return [Link(_span_context(context)) for context in contexts]


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(*ids_of(context), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
