"""Records that a topic refuses permanently, found before a batch is sealed.

A sealed batch must be published, if need be by another run. So a record that its topic always refuses would block the flow.
Therefore all that depends on the input alone is checked when the record is made, and goes to the poison policy. That is a size
(`OutputTooLarge`), a missing key in a compacted topic, and the time of a bare output. The check uses the clock of the batch, which is
the same in every attempt.

The time of an *envelope* is never a reason to refuse: the event's time is inside it. A record whose time the topic does not
accept gets the time of sending. So does a bare output that was accepted at the seal and has become too old since.

Nor does a record get a time at which its topic deletes it at once. Kafka counts `retention.ms` from a record's own time, so a
backfill of old events would be gone within minutes, before anybody has read it. Such a record gets the time of sending as well.

The time is chosen when a record is sent, so a redo may choose another one. That is harmless: no envelope, position or payload depends on
it, and readers of envelopes take the event's time from there.

Source: KIP-937 (`message.timestamp.before.max.ms`, `message.timestamp.after.max.ms`).
"""

from __future__ import annotations

from sqe_chain.ports import NO_LIMIT, TopicInfo

MARGIN_MS = 300_000
"""Allowance for clocks of brokers and services that differ, and for the time a record takes to arrive."""


_KEPT_MS = 86_400_000
"""For how long a topic keeps a record at least after it was sent; where `retention.ms` is less than twice that, for half of it."""


def _oldest_kept_ms(info: TopicInfo, now_ms: int) -> int:
    """The oldest timestamp with which a topic keeps a record for long enough to be read.

    Args:
        info: the topic.
        now_ms: the time now, milliseconds since 1970.

    >>> _oldest_kept_ms(TopicInfo("t", b"", 1, retention_ms=604_800_000), now_ms=700_000_000)
    181600000
    """
    if info.append_time or info.retention_ms < 0:
        return 0
    return max(0, now_ms - info.retention_ms + min(_KEPT_MS, info.retention_ms // 2))


def stamps(info: TopicInfo, now_ms: int) -> tuple[int, int]:
    """The first and last timestamp with which a record is sent as it is: the topic accepts it, and keeps it for a while.

    Args:
        info: the topic.
        now_ms: the time now, milliseconds since 1970.
    """
    first, last = window(info, now_ms)
    return max(first, _oldest_kept_ms(info, now_ms)), last


def window(info: TopicInfo, now_ms: int) -> tuple[int, int]:
    """The first and last timestamp that a topic certainly accepts: its limits, less a margin.

    The margin is `MARGIN_MS`, but at most half of the limit. Times before 1970 are not accepted.

    Args:
        info: the topic.
        now_ms: the time now, milliseconds since 1970.

    >>> window(TopicInfo("t", b"", 1, after_max_ms=3_600_000), now_ms=10_000_000)
    (0, 13300000)
    """
    if info.append_time:
        return 0, NO_LIMIT
    before_ms, after_ms = _less_margin(info.before_max_ms), _less_margin(info.after_max_ms)
    return max(0, now_ms - before_ms), min(NO_LIMIT, now_ms + after_ms)


def refusal(info: TopicInfo, key: bytes | None, timestamp_ms: int | None, now_ms: int) -> str | None:
    """Why a topic would refuse a record, as the end of a sentence that begins with the topic; None: it would not.

    Args:
        info: the topic.
        key: the record's key.
        timestamp_ms: the record's time, milliseconds since 1970; below 0: it has none. None: its time does not
            matter, as for envelopes.
        now_ms: the time now, milliseconds since 1970.

    >>> refusal(TopicInfo("t", b"", 1, compacted=True), None, None, 0)
    'is compacted (cleanup.policy) and takes no record without a key; give outputs a key, or take another topic'
    """
    if key is None and info.compacted:
        return "is compacted (cleanup.policy) and takes no record without a key; give outputs a key, or take another topic"
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    first, last = window(info, now_ms)
    if timestamp_ms > last:
        return (
            f"takes no record {timestamp_ms - now_ms} ms ahead of the clock (message.timestamp.after.max.ms="
            f"{info.after_max_ms}, less a margin); correct the writer's clock, or raise that"
        )
    if timestamp_ms < first:
        return (
            f"takes no record {now_ms - timestamp_ms} ms old (message.timestamp.before.max.ms={info.before_max_ms}, "
            "less a margin); raise that"
        )
    return None


def _less_margin(limit_ms: int) -> int:
    return limit_ms if limit_ms == NO_LIMIT else limit_ms - min(MARGIN_MS, limit_ms // 2)
