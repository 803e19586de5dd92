"""What a receiver that ignores replays takes of a topic. Whatever it ignores must be one: a lane and position has one content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from sqe_chain import ReplayFilter, read

Received = TypeVar("Received", bound=Any)


def received(topic: str, topic_id: bytes, messages: Iterable[Received]) -> Iterator[Received]:
    """The messages that are new.

    Args:
        topic: the topic.
        topic_id: its id.
        messages: all of it, those of each partition in their order.
    """
    accepts, contents = ReplayFilter({topic: topic_id}), dict[object, object]()
    for message in messages:
        one = read(message.value(), headers=message.headers(), strict=True)
        content = (
            message.partition(),
            one.payloads,
            one.key,
            one.type,
            one.timestamp_ms,
            one.chain.links[-1].of,
        )
        known = contents.setdefault((one.lane, one.position), content)
        assert known == content, f"{one.chain} says {content}, and {known} before"
        if accepts.accept(message):
            yield message
