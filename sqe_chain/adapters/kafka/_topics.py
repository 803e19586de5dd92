"""A topic's settings, as a broker tells them: one of another make may leave out any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import NO_LIMIT, TopicInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_MESSAGE_BYTES = TopicInfo("", b"", 0).max_message_bytes
"""Kafka's own default."""


def topic_info(
    name: str, topic_id: bytes, replicas: list[int], config: Mapping[str, str | None]
) -> TopicInfo:
    """What is known of a topic.

    Args:
        name: its name.
        topic_id: its UUID.
        replicas: how many replicas each partition has.
        config: its settings; what is missing, None or empty was not told.

    Raises:
        ConfigurationError: a setting that should be a number is none.
    """

    def number(setting: str, untold: int) -> int:
        text = config.get(setting)
        if not text:
            return untold
        try:
            return int(text)
        except ValueError:
            raise ConfigurationError(
                f"Topic {name}: the broker says {setting}={text}. Expected a whole number."
            ) from None

    # Brokers before 3.6 have one limit for both directions; 3.x uses it where the newer one is not set.
    either = number("message.timestamp.difference.max.ms", NO_LIMIT)
    before_ms = number("message.timestamp.before.max.ms", NO_LIMIT)
    after_ms = number("message.timestamp.after.max.ms", NO_LIMIT)
    return TopicInfo(
        name=name,
        topic_id=topic_id,
        partitions=len(replicas),
        compacted="compact" in (config.get("cleanup.policy") or ""),
        max_message_bytes=min(
            number("max.message.bytes", _MAX_MESSAGE_BYTES), number("segment.bytes", NO_LIMIT)
        ),
        replicas=min(replicas, default=0),
        min_insync_replicas=number("min.insync.replicas", 0),
        before_max_ms=either if before_ms == NO_LIMIT else before_ms,
        after_max_ms=either if after_ms == NO_LIMIT else after_ms,
        append_time=config.get("message.timestamp.type") == "LogAppendTime",
        write_caching=config.get("write.caching") == "true",
        retention_ms=number("retention.ms", -1),
        retention_bytes=number("retention.bytes", -1),
    )
