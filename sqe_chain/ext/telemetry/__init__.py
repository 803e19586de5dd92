"""A wing: spans of a service by OpenTelemetry, and the trace context that a producer gives its messages."""

from sqe_chain.ext.telemetry.propagation import trace_headers

__all__ = ["trace_headers"]
