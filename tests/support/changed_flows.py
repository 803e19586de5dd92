"""A flow that has run comes back changed: another stage, source or output, or its input has grown."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, first_letter, same_key, word, words_by_first_letter

WORDS = ["ant", "bee", "cat", "ape", "bat"]


def two_stages(flow: Flow) -> None:
    words_by_first_letter(flow).aggregate("all", key=same_key, state=StringValue, fold=append_word)


def one_stage(flow: Flow) -> None:
    words_by_first_letter(flow)


def with_stage_beside(flow: Flow) -> None:
    """Another stage of level 1, declared beside two that were there before."""
    stream = flow.source("words", StringValue)
    stream.aggregate("beside", key=same_key, state=StringValue, fold=append_word)
    first = stream.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)


def with_source(flow: Flow) -> None:
    both = flow.source(["more", "words"], StringValue)
    first = both.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)


def with_output(flow: Flow) -> None:
    first = words_by_first_letter(flow)
    first.to("copies", partitions=1)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)


def declared(declare: Callable[[Flow], None], **options: object) -> Flow:
    flow = Flow("notes", state_partitions=2, **options)  # type: ignore[arg-type]
    declare(flow)
    return flow


def rehearsal_of(flow: Flow, before: Rehearsal | None = None, settings: Settings | None = None) -> Rehearsal:
    """The flow on the broker and store that another declaration of it has used before."""
    name = before.log.name if before else f"layout-{id(flow)}"
    log, store = MemoryLog(name), MemoryStore(name)
    if before is None:
        log.clear()
        store.restore_all()
    return Rehearsal(flow, partitions={"words": 2}, log=log, store=store, settings=settings)


def feed_words(rehearsal: Rehearsal, topic: str = "words", words: list[str] = WORDS) -> None:
    for text in words:
        rehearsal.feed(topic, word(text), key=text[0])


def grown(rehearsal: Rehearsal) -> None:
    rehearsal.log.grow("words", 4)
    for partition in (2, 3):
        rehearsal.feed("words", word(f"new-{partition}"), partition=partition)


CHANGES = {
    "stage behind": (one_stage, two_stages, None),
    "stage beside": (two_stages, with_stage_beside, None),
    "source": (two_stages, with_source, lambda found: feed_words(found, "more")),
    "output": (two_stages, with_output, None),
    "grown": (two_stages, two_stages, grown),
}
