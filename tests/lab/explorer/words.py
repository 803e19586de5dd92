"""The flows that are explored: words are appended to the state of their first letter, and then to one text of all.

`tests.lab.reference.words` computes what the states must be.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.chain import Coordinates
from sqe_chain.envelope import republish
from sqe_chain.envelope.message import read, wrap_unchecked
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from tests.lab.reference.words import ALL, INPUT, LETTERS, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqe_chain.ports import Output

OUTPUT = "republished"


def _first_character(word: StringValue) -> str:
    return word.value[0]


def _all(_word: StringValue) -> str:
    return ALL


def _append(words: StringValue, word: StringValue) -> list[StringValue]:
    words.value += f"{word.value} "
    return [word]


def _check(broken: str, word: StringValue) -> StringValue:
    if word.value == broken:
        raise ValueError(broken)
    return word


def words_flow(
    stages: int = 2,
    state_partitions: int = 1,
    *,
    store: str | None = None,
    parks: bool = False,
    broken: str = "",
) -> CompiledFlow:
    """The flow.

    Args:
        stages: 1 or 2.
        state_partitions: of it.
        store: of the second stage; None: the metadata store.
        parks: it parks words that fail.
        broken: the word on which its code fails.
    """
    flow = Flow("totals", state_partitions=state_partitions, poison="park" if parks else "stop")
    words = flow.source(INPUT, StringValue)
    if parks:
        words = words.map(partial(_check, broken))
    first = words.aggregate(LETTERS, key=_first_character, state=StringValue, fold=_append)
    first.to(OUTPUT, key=_first_character, partitions=1)
    if stages > 1:
        first.aggregate(ALL, key=_all, state=StringValue, fold=_append, store=store)
    return flow.compile()


def feed(log: MemoryLog, words: Sequence[str], partitions: int, *, topic: str = INPUT) -> None:
    """Append words as a republisher would that has published some of them twice: ``a1 b2 =a1``, the last one again.

    Each word comes from a partition of its own topic, that of its digit, and goes to the partition of its first character.
    """
    origin = f"{topic}.origin"
    log.create_topic(origin, partitions)
    log.create_topic(topic, partitions)
    topic_id = log.describe([origin])[origin].topic_id
    envelopes: dict[str, tuple[int, bytes]] = {}
    for word in words:
        if word not in envelopes and not word.startswith("="):
            envelopes[word] = _envelope(origin, topic_id, word, len(envelopes), partitions)
        partition, value = envelopes[word.removeprefix("=")]
        log.append(topic, partition, value, word.removeprefix("=")[:1].encode())


def _envelope(origin: str, topic_id: bytes, word: str, offset: int, partitions: int) -> tuple[int, bytes]:
    partition = (ord(word[0]) - ord("a")) % partitions
    key, payload = word[:1].encode(), StringValue(value=word)
    wrapped = read(wrap_unchecked(payload, key=key, timestamp_ms=1))
    at = Coordinates(topic=origin, topic_id=topic_id, partition=partition, offset=offset, leader_epoch=0)
    return partition, republish(wrapped, at, payload, output="origin/words", key=key)


def published_in(outputs: Any) -> dict[object, object]:
    """Lane and position -> key, words, number of siblings and partition, of what was published to a topic.

    Raises:
        ValueError: the same lane and position have two contents.
    """
    found: dict[object, object] = {}
    output: Output
    for output in outputs or ():
        way, words = words_of(output[3])
        place, content = (way.lane, way.position), (output[2], words, way.of, output[1])
        if found.setdefault(place, content) != content:
            raise ValueError(f"{way.position} has {content}, and had {found[place]} before")
    return found
