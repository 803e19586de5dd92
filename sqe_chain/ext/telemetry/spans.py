"""The spans that are under way, and how they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time_ns
from typing import Final

from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)

from sqe_chain.errors import text_of
from sqe_chain.errors.safe_text import without_secrets
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.events import COMMIT, PROCESS, PUBLISH, STEPS

Attribute = str | int | bool | list[str]
START: Final = "start"
BATCH: Final = "batch"

_OPERATIONS: Final = {PUBLISH: (SpanKind.CLIENT, "send"), COMMIT: (SpanKind.CLIENT, "settle")}
"""Steps that are operations on Kafka -> kind of the span, and `messaging.operation.type`."""


@dataclass(slots=True)
class Open:
    """A span that is under way.

    Attributes:
        number: of the step; 0: it is no step, and others lie in it.
        name: what log lines call it.
        log_fields: what log lines have of it.
        reads: it is a batch that has read records, which its `Committed` will describe.
        end_ns: when it has ended, nanoseconds since 1970, though not all is known of it.
    """

    span: Span
    number: int
    name: str
    log_fields: dict[str, object]
    reads: bool = False
    end_ns: int = 0


@dataclass(slots=True)
class Spans:
    """Begins the spans of one service; all have the attributes `common`."""

    tracer: Tracer
    flow: CompiledFlow
    common: dict[str, Attribute] = field(init=False)

    def __post_init__(self) -> None:
        self.common = {"sqe_chain.flow": self.flow.declared_name}

    def begin_start(self) -> Open:
        """The span around steps 1 and 2."""
        span = self._begin(f"start {self.flow.name}", SpanKind.INTERNAL, {})
        return Open(span, 0, START, ids_of(span))

    def begin_batch(self, number: int, *, reads: bool) -> Open:
        """The span of a batch, which is the operation `process` of the conventions; a plan that only brings in a layout reads nothing."""
        attributes = self.messaging("batch", "process", self.flow.input_topics)
        attributes["sqe_chain.batch.number"] = number
        span = self._begin(f"batch {self.flow.name}", SpanKind.CONSUMER, attributes)
        return Open(span, 0, BATCH, {**ids_of(span), "batch": number}, reads)

    def begin_step(self, number: int, parent: Open) -> Open:
        """The span of a numbered step."""
        name = STEPS[number].name
        kind, operation = _OPERATIONS.get(number, (SpanKind.INTERNAL, ""))
        topics = self.flow.input_topics if number in (PROCESS, COMMIT) else ()
        if number == PUBLISH:
            topics = tuple(sorted({output.topic for output in self.flow.outputs}))
        attributes = self.messaging(name, operation, topics) if operation else {}
        attributes["sqe_chain.step"] = number
        title = f"{name} {topics[0]}" if len(topics) == 1 else name
        span = self._begin(title, kind, attributes, parent)
        return Open(span, number, name, {**parent.log_fields, **ids_of(span), "step": name})

    def _begin(
        self, title: str, kind: SpanKind, attributes: Mapping[str, Attribute], parent: Open | None = None
    ) -> Span:
        context = None if parent is None else set_span_in_context(parent.span)
        return self.tracer.start_span(title, context, kind, {**self.common, **attributes})

    def messaging(self, name: str, operation: str, topics: tuple[str, ...]) -> dict[str, Attribute]:
        """Attributes by the semantic conventions for messaging."""
        attributes: dict[str, Attribute] = {
            "messaging.system": "kafka",
            "messaging.operation.name": name,
            "messaging.operation.type": operation,
        }
        if operation not in ("send", "create"):
            attributes["messaging.consumer.group.name"] = self.flow.declared_name
        if len(topics) == 1:  # else it is not that of all messages
            attributes["messaging.destination.name"] = topics[0]
        return attributes


def ids_of(span: Span) -> dict[str, object]:
    """The ids of a span as log lines have them, in hexadecimal; none where OpenTelemetry is disabled."""
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}


def set_all(opened: Open, attributes: Mapping[str, Attribute | None]) -> None:
    """Set attributes of a span; what is None is not known."""
    opened.span.set_attributes({name: value for name, value in attributes.items() if value is not None})


def add_event(opened: Open, name: str, attributes: Mapping[str, str | int]) -> None:
    """Add an event to a span; its texts have no password."""
    safe = {
        key: without_secrets(value) if isinstance(value, str) else value for key, value in attributes.items()
    }
    opened.span.add_event(name, safe)


def end(opened: Open) -> None:
    """End a span now, or when it ended."""
    opened.span.end(opened.end_ns or time_ns())


def fail(opened: Open, error: BaseException) -> None:
    """End a span with an error, whose text has no password and no traceback."""
    name, text = type(error).__name__, without_secrets(text_of(error) or type(error).__name__)
    set_all(opened, {"error.type": name})
    add_event(opened, "exception", {"exception.type": name, "exception.message": text})
    opened.span.set_status(Status(StatusCode.ERROR, text))
    end(opened)
