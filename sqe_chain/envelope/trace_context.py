"""W3C Trace Context in Kafka headers: the span in which a record was made.

A record has at most one header `traceparent`. A record that was made of several others gets an id of its own. It is derived
from the event id, so every attempt at the record gives the same bytes.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from sqe_chain.ports import Headers

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

TraceContext = bytes
"""The value of a header `traceparent` that names a sampled span: version, trace id, span id and flags, with dashes between."""

_SAMPLED: Final = re.compile(
    rb"((?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf])"
    rb"(?:(?<!\A00.{53})-|\Z)",
    re.DOTALL,
)
_SPAN_ID_LENGTH: Final = 8


def trace_context(headers: Headers) -> TraceContext | None:
    """The sampled span that a record's headers name; None if there is none, several, or a malformed one.

    What later versions of the format add is dropped, whatever its size.

        >>> trace_context([("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")])
        b'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    """
    contents = [content for name, content in headers if name == TRACEPARENT]
    sampled = _SAMPLED.match(contents[0] or b"") if len(contents) == 1 else None
    return None if sampled is None else sampled[1]


def own_context(event_id: bytes) -> TraceContext:
    """The span in which a record of this id, 16 bytes, is made that has several causes: the same in every attempt."""
    span_id = blake2b(event_id, digest_size=_SPAN_ID_LENGTH).hexdigest()
    return f"00-{event_id.hex()}-{span_id}-01".encode()


def ids_of(context: TraceContext) -> tuple[int, int]:
    """The ids of the trace and of the span."""
    _, trace_id, span_id, *_ = context.split(b"-")
    return int(trace_id, 16), int(span_id, 16)
