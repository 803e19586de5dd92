"""Records that a broker in memory refuses: the same ones as Kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqe_chain.errors import OutputRefused, OutputTooLarge
from sqe_chain.ports import NO_LIMIT, Headers, TopicInfo

if TYPE_CHECKING:
    from collections.abc import Callable

Content = tuple[bytes | None, bytes | None, Headers | None]
"""Key, value and headers of a record."""

_OVERHEAD_BYTES = 97  # of a batch and of a record in it, as Kafka's client counts


def accept(
    info: TopicInfo, where: str, content: Content, timestamp_ms: int, now_ms: Callable[[], int]
) -> int:
    """Check a record as a broker does, and return the timestamp that it gets.

    Args:
        info: the topic.
        where: topic and partition, for errors.
        content: the record.
        timestamp_ms: the timestamp from its writer.
        now_ms: the broker's clock; called only if the topic limits or sets timestamps.

    Raises:
        OutputTooLarge: the record is larger than the topic accepts.
        OutputRefused: a key is missing, or the topic does not accept the time.
    """
    key, value, headers = content
    size = _OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    size += sum(len(name) + len(text or b"") for name, text in headers or ())
    if size > info.max_message_bytes:
        raise OutputTooLarge(
            f"A record for {where}, key {key and key[:60]!r}, has {size:,} bytes; its topic takes {info.max_message_bytes:,}."
        )
    if key is None and info.compacted:
        raise OutputRefused(f"{where}: the topic is compacted and takes no record without a key.")
    if info.append_time:
        return now_ms()
    if (info.before_max_ms, info.after_max_ms) != (NO_LIMIT, NO_LIMIT):
        ahead_ms = timestamp_ms - now_ms()
        if ahead_ms > info.after_max_ms or -ahead_ms > info.before_max_ms:
            raise OutputRefused(f"{where}: the topic takes no record {ahead_ms} ms ahead of its clock.")
    return timestamp_ms


def system_ms() -> int:
    """The system's clock."""
    return time.time_ns() // 1_000_000
