"""Rehearsals whose spans are kept in memory, by the SDK's own exporter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from sqe_chain.ext.telemetry.tracing import Tracing
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Observer
from sqe_chain.plans.settings import Settings
from sqe_chain.runtime.observers import Observers
from sqe_chain.testing import Rehearsal


class Traced(Rehearsal):
    """A rehearsal with spans.

    Attributes:
        exporter: has the spans that have ended.
        tracing: the observer under test.
        further: other observers, which hear everything first.
    """

    def __init__(self, flow: Flow, **options: Any) -> None:
        super().__init__(flow, **options)
        self.exporter = InMemorySpanExporter()
        self.further: list[Observer] = []
        self.trace_again()

    def trace_again(self) -> None:
        """Trace the next run as another process would."""

        def provider(_name: str, ids: IdGenerator) -> TracerProvider:
            made = TracerProvider(resource=Resource.get_empty(), id_generator=ids)
            made.add_span_processor(SimpleSpanProcessor(self.exporter))
            return made

        self.tracing = Tracing(self.flow, provider)

    def _environment(self, settings: Settings | None) -> Environment:
        env = super()._environment(settings)
        return replace(env, observer=Observers(self.script, *self.further, self.tracing))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Those that have ended, in the order of their beginnings."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, prefix: str) -> list[ReadableSpan]:
        """Those whose names begin so."""
        return [span for span in self.spans if span.name.startswith(prefix)]


def children(parent: ReadableSpan, spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    """The spans in a span, in the order of their beginnings."""
    return [
        span for span in spans if span.parent is not None and span.parent.span_id == parent.context.span_id
    ]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})
