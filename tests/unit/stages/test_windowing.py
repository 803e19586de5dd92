"""A record lies in the windows in which Kafka Streams puts it, or the calendar."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow.stored import Span
from sqe_chain.stages.windowing import (
    Calendar,
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


@given(st.integers(-500, 500), st.integers(1, 60), st.data())
def test_an_offset_moves_all_windows(timestamp_ms: int, size_ms: int, data: st.DataObject) -> None:
    advance_ms = data.draw(st.integers(1, size_ms))
    offset_ms = data.draw(st.integers(0, advance_ms - 1))
    found = Hopping(size_ms, advance_ms, offset_ms).spans(timestamp_ms)
    everything = [Span(at, at + size_ms) for at in range(offset_ms - 600 * advance_ms, 501, advance_ms)]
    holding = [span for span in everything if span.start_ms <= timestamp_ms < span.end_ms]
    first_ms = offset_ms - advance_ms if offset_ms else 0
    assert found == [span for span in holding if timestamp_ms < 0 or span.start_ms >= first_ms]
    assert found, "every record lies in a window"
    offset_ms = data.draw(st.integers(0, size_ms - 1))
    (span,) = Tumbling(size_ms, offset_ms).spans(timestamp_ms)
    assert span.start_ms <= timestamp_ms < span.end_ms == span.start_ms + size_ms
    assert (span.start_ms - offset_ms) % size_ms == 0


ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",  # midnights that do not exist.
    "America/St_Johns",  # Clocks put back from 00:01 to 23:01.
    "Pacific/Apia",  # A day that does not exist.
    "Pacific/Kwajalein",  # the same, by the other way round the date line
    "Asia/Kolkata",
    "Antarctica/Troll",  # two hours at once
    "Africa/Monrovia",  # seconds
)


@given(
    st.sampled_from(("day", "week", "month")),
    st.sampled_from(ZONES),
    st.datetimes(datetime(1900, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - hypothesis adds it
    st.booleans(),
)
def test_every_moment_lies_in_one_window_of_the_calendar(
    unit: str, zone: str, moment: datetime, near: bool
) -> None:
    windows = Calendar(unit, zone)  # type: ignore[arg-type]
    at_ms = round(moment.timestamp() * 1000)
    if near:  # where windows meet, or clocks are changed
        at_ms = windows.spans(at_ms)[0].end_ms - 1 + round(moment.microsecond / 1_000_000) * 3_600_000
    (span,) = windows.spans(at_ms)
    assert span.start_ms <= at_ms < span.end_ms
    assert windows.spans(span.start_ms) == windows.spans(span.end_ms - 1) == [span]
    assert windows.spans(span.end_ms)[0].start_ms == span.end_ms, "no gap"
    assert span.end_ms - span.start_ms <= windows.longest_ms


@pytest.mark.parametrize(
    ("day", "hours"), [("2025-03-30", 23), ("2025-07-01", 24), ("2025-10-26", 25), ("2026-01-01", 24)]
)
def test_a_day_in_berlin_is_as_long_as_it_is(day: str, hours: int) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    at_ms = round(midnight.timestamp() * 1000)
    assert Calendar("day", "Europe/Berlin").spans(at_ms) == [Span(at_ms, at_ms + hours * 3_600_000)]
    assert Calendar("day", "Europe/Berlin").spans(at_ms + hours * 3_600_000 - 1)[0].start_ms == at_ms


def test_weeks_begin_on_monday_and_months_with_the_first() -> None:
    at_ms = round(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp() * 1000)  # a Sunday

    def days(unit: str) -> list[str]:
        (span,) = Calendar(unit).spans(at_ms)  # type: ignore[arg-type]
        return [datetime.fromtimestamp(one / 1000, UTC).isoformat() for one in span]

    assert days("week") == ["2026-11-16T00:00:00+00:00", "2026-11-23T00:00:00+00:00"]
    assert days("month") == ["2026-11-01T00:00:00+00:00", "2026-12-01T00:00:00+00:00"]


@pytest.mark.parametrize("timestamp_ms", [1 << 48, 253_402_300_799_999, -(10**15)])
def test_a_time_outside_the_calendar_is_poison(timestamp_ms: int) -> None:
    with pytest.raises(PoisonError, match="outside the calendar"):
        Calendar("month", "Europe/Berlin").spans(timestamp_ms)


@given(
    st.sampled_from(
        [
            Tumbling(3_600_000),
            Tumbling(7),
            Tumbling(70, 9),
            Hopping(3_600_000, 1_000),
            Hopping(100, 30),
            Hopping(640, 3, 2),
        ]
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
    "make",
    [
        lambda: Tumbling(0),
        lambda: Tumbling(10, 10),
        lambda: Hopping(10, 0),
        lambda: Hopping(10, 11),
        lambda: Hopping(10, 5, 5),
        lambda: Sessions(-1),
        lambda: Calendar("year"),  # type: ignore[arg-type]
        lambda: Calendar("day", "Europe/Atlantis"),
        lambda: Calendar("day", "../zone"),
    ],
)
def test_windows_that_cannot_be_are_refused(make: type[Windowing]) -> None:
    with pytest.raises(FlowError):
        make()  # type: ignore[call-arg]
