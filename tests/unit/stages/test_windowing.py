"""A record lies in the windows in which Kafka Streams puts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import FlowError
from sqe_chain.flow.stored import Span
from sqe_chain.stages.windowing import (
    Hopping,
    Sessions,
    Tumbling,
    Windowing,
    bucket_of,
    closes_ms,
    life_ms,
)


def starts_of_kafka_streams(timestamp_ms: int, size_ms: int, advance_ms: int) -> list[int]:
    """`TimeWindows.windowsFor`, line by line."""
    start_ms = max(0, timestamp_ms - size_ms + advance_ms) // advance_ms * advance_ms
    starts = []
    while start_ms <= timestamp_ms:
        starts.append(start_ms)
        start_ms += advance_ms
    return starts


@given(st.integers(0, 500), st.integers(1, 60), st.data())
def test_hopping_windows_are_those_of_kafka_streams(
    timestamp_ms: int, size_ms: int, data: st.DataObject
) -> None:
    advance_ms = data.draw(st.integers(1, size_ms))
    expected = [
        Span(start_ms, start_ms + size_ms)
        for start_ms in starts_of_kafka_streams(timestamp_ms, size_ms, advance_ms)
        if start_ms + size_ms > timestamp_ms
    ]
    assert Hopping(size_ms, advance_ms).spans(timestamp_ms) == expected


@given(st.integers(-500, 500), st.integers(1, 60))
def test_a_tumbling_window_is_a_hopping_one_that_advances_by_its_size(
    timestamp_ms: int, size_ms: int
) -> None:
    assert Tumbling(size_ms).spans(timestamp_ms) == Hopping(size_ms, size_ms).spans(timestamp_ms)


@given(
    st.sampled_from(
        [Tumbling(3_600_000), Tumbling(7), Hopping(3_600_000, 1_000), Hopping(100, 30), Hopping(640, 3)]
    ),
    st.integers(0, 10_000),
    st.integers(0, 10**9),
)
def test_fixed_windows_that_share_a_bucket_are_few_and_alone_they_close_at_its_end(
    windows: Tumbling | Hopping, grace_ms: int, timestamp_ms: int
) -> None:
    length_ms, phase_ms = bucket_of(windows, grace_ms)
    assert length_ms % windows.advance_ms == 0
    assert length_ms - windows.advance_ms < max(1, life_ms(windows, grace_ms) / 64)
    if length_ms == windows.advance_ms:
        for span in windows.spans(timestamp_ms):
            assert (closes_ms(windows, span, grace_ms) - phase_ms) % length_ms == 0


@pytest.mark.parametrize(
    "make", [lambda: Tumbling(0), lambda: Hopping(10, 0), lambda: Hopping(10, 11), lambda: Sessions(-1)]
)
def test_windows_that_cannot_be_are_refused(make: type[Windowing]) -> None:
    with pytest.raises(FlowError):
        make()  # type: ignore[call-arg]
