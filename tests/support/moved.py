"""A flow in two stores that moves to two others."""

from __future__ import annotations

import itertools

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.flow import Flow
from sqe_chain.operations.forget import ForgetFlow
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

names = itertools.count()


def flow_of() -> Flow:
    flow = Flow("notes", state_partitions=2)
    first = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, buckets=2
    )
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word, store="other")
    return flow


def stores() -> dict[str, MemoryStore]:
    found = {name: MemoryStore(f"moving-{next(names)}", max_rows=2) for name in ("", "other")}
    for store in found.values():
        store.restore_all()
    return found


def feed(rehearsal: Rehearsal, words: str) -> None:
    for text in words.split():
        rehearsal.feed("words", word(text), key=text[0])
    rehearsal.run_until_caught_up()


def run_before() -> Rehearsal:
    """The flow as it has run so far."""
    rehearsal = Rehearsal(flow_of(), partitions={"words": 2}, store=stores())
    feed(rehearsal, "ant bee cow dog elk fox gnu hen ibis")
    feed(rehearsal, "ape boa")
    return rehearsal


def elsewhere(before: Rehearsal) -> Rehearsal:
    return Rehearsal(before.flow, log=before.log, store=stores())


def forget(rehearsal: Rehearsal) -> None:
    ForgetFlow(
        "notes",
        rehearsal.stores,
        rehearsal.log,
        topics=False,
        run_id="forgets",
        is_dead=lambda _: True,
        wait=lambda _: None,
    ).run()


def states_of(rehearsal: Rehearsal) -> tuple[dict[str, str], dict[str, str]]:
    return stored_words(rehearsal), stored_words(rehearsal, "all")
