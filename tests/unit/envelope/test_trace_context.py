"""Goal: headers name a span as W3C Trace Context has it, or none. Method: examples of the recommendation, and malformed ones."""

from __future__ import annotations

import pytest

from sqe_chain.envelope.trace_context import ids_of, own_context, trace_context
from sqe_chain.ports import Headers

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-03",  # further flags
        f"01-{TRACE}-{SPAN}-01-what-later-versions-add",
        f"01-{TRACE}-{SPAN}-01-{'x' * 1_000_000}",
    ],
)
def test_a_sampled_span_is_found(text: str) -> None:
    headers: Headers = [("other", b"1"), ("traceparent", text.encode()), ("tracestate", b"congo=t61rcWkgMzE")]
    assert trace_context(headers) == text[:55].encode()
    assert ids_of(text.encode()) == (int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-00",  # not sampled
        f"00-{TRACE}-{SPAN}-02",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        "",
        "\x00" * 55,
    ],
)
def test_what_is_not_sampled_or_malformed_is_no_span(text: str) -> None:
    assert trace_context([("traceparent", text.encode())]) is None


def test_two_headers_or_a_null_one_are_no_span() -> None:
    one = ("traceparent", f"00-{TRACE}-{SPAN}-01".encode())
    assert trace_context([one, one]) is None
    assert trace_context([("traceparent", None)]) is None
    assert trace_context([]) is None


def test_an_event_has_one_span_of_its_own_which_its_header_names() -> None:
    contexts = {own_context(bytes([number]) * 16) for number in range(1, 9)}
    assert len({ids_of(context)[1] for context in contexts}) == 8
    for context in contexts:
        assert trace_context([("traceparent", context)]) == context
