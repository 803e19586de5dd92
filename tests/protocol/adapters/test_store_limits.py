"""Goal: a key, a state or a view that a store does not take is found before the seal; a service can go on after it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word

LONG = "k" * 70_000


class Small(MemoryStore):
    """Takes what Cassandra takes of keys, and little of states."""

    @property
    def max_key_bytes(self) -> int:
        return 65_535

    @property
    def max_state_bytes(self) -> int:
        return 300_000

    def write(
        self, flow: str, stage: str, part: int, before: Any, after: Any, rows: Any, views: Any = None
    ) -> Any:
        for key, state in rows:
            assert len(key) <= self.max_key_bytes
            assert len(key) + len(state or b"") + (views.size(key) if views else 0) <= self.max_state_bytes
        return super().write(flow, stage, part, before, after, rows, views)


def note(state: StringValue, value: StringValue) -> None:
    state.value += value.value[:1] * (100_000 if value.value[1:] == "+" else 1)


def rehearsed(kind: str, poison: Any, view: Any = None) -> Rehearsal:
    flow = Flow("limits", state_partitions=1, poison=poison)
    source = flow.source("in", StringValue)
    if kind == "aggregate":
        source.aggregate("s", state=StringValue, fold=note, view=view)
    elif kind == "filter":
        source.drop_replays("s", by="key").to("out", partitions=1)
    else:
        source.drop_stale("s", sequence=lambda _, context: context.offset).to("out", partitions=1)
    store = Small("limits")
    store.restore_all()
    return Rehearsal(flow, store=store)


@pytest.mark.parametrize("kind", ["aggregate", "filter", "filter of a partition"])
def test_an_input_whose_key_is_too_long_is_poison(kind: str) -> None:
    rehearsal = rehearsed(kind, "dead_letter")
    rehearsal.log.set_block(1)
    for key in ("a", LONG, "b", "k" * 65_000):
        rehearsal.feed("in", word("x"), key=key, partition=0)
    rehearsal.run_until_caught_up()
    (letter,) = rehearsal.log.records("limits.dead-letters")
    assert letter.key() == LONG.encode()
    if kind == "aggregate":
        assert sorted(rehearsal.states("s")) == [b"a", b"b", b"k" * 65_000]


@pytest.mark.parametrize("kind", ["aggregate", "filter", "filter of a partition"])
def test_each_input_whose_key_is_too_long_is_poison(kind: str) -> None:
    """Also one that comes in a later block, when the key has been met."""
    rehearsal = rehearsed(kind, "dead_letter")
    rehearsal.log.set_block(1)
    for key in (LONG, "a", LONG):
        rehearsal.feed("in", word("x"), key=key, partition=0)
    rehearsal.run_until_caught_up()
    assert [letter.key() for letter in rehearsal.log.records("limits.dead-letters")] == [LONG.encode()] * 2


@pytest.mark.parametrize("kind", ["aggregate", "filter"])
def test_a_key_has_room_for_what_a_filter_adds_to_it_in_the_name_of_its_row(kind: str) -> None:
    """An aggregate adds nothing, so it takes the longest key of its store."""
    rehearsal = rehearsed(kind, "dead_letter")
    rehearsal.feed("in", word("x"), key="k" * 65_535)
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("limits.dead-letters")) == (kind == "filter")


@pytest.mark.parametrize("kind", ["aggregate", "filter"])
def test_under_stop_it_is_named_before_the_seal(kind: str) -> None:
    rehearsal = rehearsed(kind, "stop")
    rehearsal.feed("in", word("x"), key=LONG)
    with pytest.raises(PoisonError, match=r"in\[0\]@0.*key of 70000 bytes.*takes 65535"):
        rehearsal.run_until_caught_up()
    assert rehearsal.events("sealed") == []


@pytest.mark.parametrize("poison", ["stop", "dead_letter"])
@pytest.mark.parametrize(("view", "words"), [(None, 3), ("json", 2)])
def test_a_state_or_view_that_is_too_large_stops_before_the_seal(poison: Any, view: Any, words: int) -> None:
    """No single input is to blame, so no policy takes it; what was written before stays."""
    rehearsal = rehearsed("aggregate", poison, view)
    for _ in range(words - 1):
        rehearsal.feed("in", word("x+"), key="a")
        rehearsal.run_until_caught_up()
    rehearsal.feed("in", word("x+"), key="a")
    for _ in range(2):
        with pytest.raises(PoisonError, match=r"key b'a'.* takes 300000"):
            rehearsal.run_until_caught_up()
        rehearsal.service = None
    assert len(rehearsal.events("sealed")) == words - 1
