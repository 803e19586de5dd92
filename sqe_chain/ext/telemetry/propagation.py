"""The current span of a producer as headers of a message, by W3C Trace Context."""

from __future__ import annotations

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sqe_chain.ports import Headers


def trace_headers() -> Headers:
    """The headers `traceparent` and `tracestate` of the span that is current here; empty without a span.

    Pass them to the producer beside what `wrap` or `in_headers` gives.

        >>> trace_headers()
        []
    """
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return [(name, text.encode()) for name, text in carrier.items()]
