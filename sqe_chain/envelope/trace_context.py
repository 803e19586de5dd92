"""W3C Trace Context in Kafka headers: the span in which a record was made.

A record has at most one header `traceparent`. A record that was made of several others gets an id of its own. It is derived
from the event id, so every attempt at the record gives the same bytes.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from sqe_chain.ports import Headers

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_FORMAT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_SPAN_ID_LENGTH: Final = 8
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """A span, by its ids.

    Attributes:
        trace_id: 32 hexadecimal digits, not only zeros.
        span_id: 16 of them.
    """

    trace_id: str
    span_id: str

    def to_bytes(self) -> bytes:
        """The value of a header `traceparent`, of a sampled span."""
        return f"00-{self.trace_id}-{self.span_id}-01".encode()


def trace_context(headers: Headers) -> TraceContext | None:
    """The span that a record's headers name; None if it is not sampled, or there is none, or it is malformed.

        >>> trace_context([("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")])
        TraceContext(trace_id='0af7651916cd43dd8448eb211c80319c', span_id='b7ad6b7169203331')

    Args:
        headers: of the record.
    """
    contents = [content for name, content in headers if name == TRACEPARENT]
    parsed = _FORMAT.fullmatch(contents[0] or b"") if len(contents) == 1 else None
    if parsed is None:
        return None
    version, trace_id, span_id, flags, more = parsed.groups()
    if (more and version == b"00") or not int(flags, 16) & _SAMPLED:
        return None
    return TraceContext(trace_id.decode(), span_id.decode())


def own_context(event_id: bytes) -> TraceContext:
    """The span in which a record is made that has several causes: the same in every attempt.

    Args:
        event_id: of the record, 16 bytes.
    """
    return TraceContext(event_id.hex(), blake2b(event_id, digest_size=_SPAN_ID_LENGTH).hexdigest())
