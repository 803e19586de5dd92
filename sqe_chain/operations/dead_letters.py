"""Dead letters: what their headers hold."""

from __future__ import annotations

from dataclasses import dataclass

from sqe_chain.ports import Headers, Message

FIRST_REASON = "sqe-flow"
"""The first header that a flow adds to an input that it leaves out; those before it are the input's own."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What the headers of a dead letter hold.

    Attributes:
        flow: the flow that left it out.
        topic: where it was read.
        topic_id: id of that topic, 16 bytes.
        partition: where it was read.
        offset: where it was read.
        lane: its lane there, hexadecimal.
        position: its position on the lane; empty where that is not known.
        error: class of the error.
        text: the error's text.
        headers: the input's own.
    """

    flow: str
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    lane: str
    position: bytes
    error: str
    text: str
    headers: Headers

    def __str__(self) -> str:
        """Where it was read: ``topic[partition]@offset``."""
        return f"{self.topic}[{self.partition}]@{self.offset}"


def parse_dead_letter(message: Message) -> DeadLetter | None:
    """The headers of a message as those of a dead letter; None: it is something else.

    Of an input that was left out twice, those of the last time.
    """
    headers = list(message.headers() or ())
    starts = [index for index, (name, _) in enumerate(headers) if name == FIRST_REASON]
    if not starts:
        return None
    texts = {name: (value or b"").decode(errors="replace") for name, value in headers[starts[-1] :]}
    try:
        return DeadLetter(
            texts["sqe-flow"],
            texts["sqe-topic"],
            bytes.fromhex(texts["sqe-topic-id"]),
            int(texts["sqe-partition"]),
            int(texts["sqe-offset"]),
            texts["sqe-lane"],
            bytes.fromhex(texts["sqe-position"]),
            texts["sqe-error"],
            texts["sqe-text"],
            headers[: starts[-1]],
        )
    except (KeyError, ValueError):
        return None
