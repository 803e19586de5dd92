"""What a topic refuses is known where the record is made, with the batch's clock."""

from __future__ import annotations

import pytest

from sqe_chain.ports import NO_LIMIT, TopicInfo
from sqe_chain.ports.accepting import MARGIN_MS, refusal, stamps, window

NOW = 1_700_000_000_000
HOUR = 3_600_000


def topic(**limits: int | bool) -> TopicInfo:
    return TopicInfo("t", bytes(16), 1, **limits)  # type: ignore[arg-type]


def test_a_topic_without_limits_takes_every_time_since_1970() -> None:
    assert window(topic(), NOW) == (0, NO_LIMIT)
    for timestamp_ms in (-1, 0, NOW, NO_LIMIT):
        assert refusal(topic(), b"k", timestamp_ms, NOW) is None


def test_limits_lose_a_margin_for_clocks_that_differ() -> None:
    found = window(topic(before_max_ms=2 * HOUR, after_max_ms=HOUR), NOW)
    assert found == (NOW - 2 * HOUR + MARGIN_MS, NOW + HOUR - MARGIN_MS)


@pytest.mark.parametrize("limit", [0, 1, 1_000, 2 * MARGIN_MS - 2])
def test_a_small_limit_loses_half_of_itself(limit: int) -> None:
    first, last = window(topic(before_max_ms=limit, after_max_ms=limit), NOW)
    assert (NOW - first, last - NOW) == (limit - limit // 2, limit - limit // 2)


def test_where_the_broker_sets_the_time_no_time_is_refused() -> None:
    info = topic(before_max_ms=0, after_max_ms=0, append_time=True)
    assert window(info, NOW) == (0, NO_LIMIT)
    assert refusal(info, b"k", NOW + HOUR, NOW) is None


def test_just_outside_is_refused_and_just_inside_is_not() -> None:
    info = topic(before_max_ms=2 * HOUR, after_max_ms=HOUR)
    first, last = window(info, NOW)
    assert refusal(info, b"k", first, NOW) is None
    assert refusal(info, b"k", last, NOW) is None
    assert "message.timestamp.before.max.ms=7200000" in str(refusal(info, b"k", first - 1, NOW))
    assert "message.timestamp.after.max.ms=3600000" in str(refusal(info, b"k", last + 1, NOW))


def test_a_record_without_a_time_gets_the_time_of_sending() -> None:
    info = topic(before_max_ms=HOUR, after_max_ms=HOUR)
    assert refusal(info, b"k", -1, NOW) is None
    assert refusal(info, b"k", None, NOW) is None


@pytest.mark.parametrize(
    ("retention_ms", "stays_ms"), [(168 * HOUR, 24 * HOUR), (48 * HOUR, 24 * HOUR), (2 * HOUR, HOUR), (0, 0)]
)
def test_a_record_keeps_its_time_if_the_topic_then_keeps_it_for_a_while(
    retention_ms: int, stays_ms: int
) -> None:
    first, last = stamps(topic(retention_ms=retention_ms), NOW)
    assert first + retention_ms - NOW == stays_ms
    assert last == NO_LIMIT


def test_without_retention_or_with_the_broker_s_own_time_every_time_is_kept() -> None:
    assert stamps(topic(), NOW) == (0, NO_LIMIT)
    assert stamps(topic(retention_ms=HOUR, append_time=True), NOW) == (0, NO_LIMIT)
    assert stamps(topic(retention_ms=10 * NOW), NOW)[0] == 0


def test_the_narrower_of_both_limits_counts() -> None:
    info = topic(retention_ms=168 * HOUR, before_max_ms=2 * HOUR)
    assert stamps(info, NOW) == window(info, NOW)


def test_a_compacted_topic_needs_a_key_and_an_empty_one_will_do() -> None:
    assert "compacted" in str(refusal(topic(compacted=True), None, None, NOW))
    assert refusal(topic(compacted=True), b"", None, NOW) is None
    assert refusal(topic(), None, NOW, NOW) is None
