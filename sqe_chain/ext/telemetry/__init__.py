"""Traces: spans of a service by OpenTelemetry, and the context that a producer gives its messages. See docs/tracing.md."""

from sqe_chain.ext.telemetry.propagation import trace_headers

__all__ = ["trace_headers"]
