"""Dead-letter records: how an input that cannot be processed is kept, and what is read of that later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqe_chain.chain import written_lane
from sqe_chain.envelope.revisions import FIRST
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Origin
from sqe_chain.ports import Headers, Message, Output
from sqe_chain.task.exclusion import Exclusion

FIRST_REASON: Final = "sqe-flow"
"""The first header that a flow adds to an input that it skips; those before it are the input's own."""

_REVISION: Final = "sqe-of-revision"

Identity = tuple[int, bytes]
"""Of an input: its lane as its reader sees it, and its position there. If nobody can read them: 0, and where it was read."""


def identity_of(lane: int, position: bytes, revision: int) -> Identity:
    """What an input is known by: its lane as its reader sees it, and its position; of a later revision on another lane."""
    return lane if revision == FIRST else written_lane(lane, f"@{revision}", None), position


def dead_letter(
    flow: CompiledFlow,
    origin: Origin,
    exclusion: Exclusion,
    number: int = -1,
    *,
    after: int = -1,
    unsure: bool = False,
    revision: int = FIRST,
) -> Output:
    """The record that keeps a skipped input: key and value unchanged, the reason in headers.

    Args:
        flow: the flow.
        origin: the input.
        exclusion: why it is skipped.
        number: of inputs skipped before it in its input partition; -1: its plans list them.
        after: where its partition of the dead-letter topic ended before its batch was begun; -1: its plans list it.
        unsure: what the flow had read was not known, so this input may be a replay of one that was published.
        revision: the revision of the outputs that would have been made of it. The next one tries it again.
    """
    message = origin.message
    if message is None:
        raise AssertionError("a dead-letter record is made where its message was read")
    tp = origin.tp
    reasons = {
        "sqe-flow": flow.declared_name,
        "sqe-topic": tp.topic,
        "sqe-topic-id": tp.topic_id.hex(),
        "sqe-partition": str(tp.partition),
        "sqe-offset": str(origin.offset),
        "sqe-lane": f"{origin.lane:016x}",
        "sqe-position": origin.position.hex(),
        "sqe-timestamp": str(message.timestamp()[1]),
    }
    if number >= 0:
        reasons["sqe-number"] = str(number)
    if after >= 0:
        reasons["sqe-after"] = str(after)
    if unsure:
        reasons["sqe-unsure"] = "1"
    if revision != FIRST:
        reasons[_REVISION] = str(revision)
    reasons |= {"sqe-error": exclusion.error, "sqe-text": exclusion.text}
    headers = [*(message.headers() or []), *((name, text.encode()) for name, text in reasons.items())]
    partition = tp.partition % flow.dead_letter_partitions
    # The time of sending: a topic that deletes by time would delete the record of an old event at once.
    return flow.dead_letter_topic, partition, message.key(), message.value(), headers, 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What the headers of a dead-letter record hold: the flow that skipped an input, where it read it, why, and the input's own headers.

    Attributes:
        topic_id: id of the input's topic, 16 bytes.
        lane: its lane there, hexadecimal.
        position: its position on the lane; empty where that is not known.
        timestamp_ms: the record's own time, milliseconds since 1970; -1: it had none.
        number: how many dead-letter records of the same input partition the flow had made before; None: an older version made it.
        after: where its partition of the dead-letter topic ended before its batch was begun; None: an older version made it.
        unsure: nobody knows whether the input was published before it failed.
        revision: the revision of the outputs that would have been made of it.
    """

    flow: str
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    lane: str
    position: bytes
    timestamp_ms: int
    error: str
    text: str
    headers: Headers
    number: int | None = None
    after: int | None = None
    unsure: bool = False
    revision: int = FIRST

    @property
    def identity(self) -> Identity:
        """What it is known by, wherever it comes again. A later revision has another record of the same input."""
        if self.readable:
            return identity_of(int(self.lane, 16), self.position, self.revision)
        return 0, self.topic_id + self.partition.to_bytes(4, "big") + self.offset.to_bytes(8, "big")

    @property
    def readable(self) -> bool:
        """Whether its envelope can be read, so that its lane is known. Else it has only the place where it was read."""
        return bool(self.position)

    @property
    def coordinates(self) -> tuple[bytes, int, int]:
        """Topic id, partition and offset of the input."""
        return self.topic_id, self.partition, self.offset

    def __str__(self) -> str:
        """Where the flow read it: ``topic[partition]@offset``."""
        return f"{self.topic}[{self.partition}]@{self.offset}"


def parse_dead_letter(message: Message) -> DeadLetter | None:
    """The headers of a message as those of a dead-letter record; None: the message is something else.

    If flows skipped the input twice, those of the last time.
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
            int(texts["sqe-timestamp"]),
            texts["sqe-error"],
            texts["sqe-text"],
            headers[: starts[-1]],
            int(texts["sqe-number"]) if "sqe-number" in texts else None,
            int(texts["sqe-after"]) if "sqe-after" in texts else None,
            "sqe-unsure" in texts,
            int(texts.get(_REVISION, FIRST)),
        )
    except (KeyError, ValueError):
        return None
