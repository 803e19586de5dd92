"""Goal: a flow with stages that folds other revisions publishes what it makes of them once, under a revision of its own.

Method: sums of numbers go through a flow with a stage to a reader. Its input is corrected, the flow is rebuilt, with crashes at every write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Flow
from sqe_chain.adapters.memory.store import MemoryStore, StoreCopy
from sqe_chain.errors import ConfigurationError, UnknownRevision
from sqe_chain.testing import Crash, Rehearsal
from tests.support.revised import append, begin_revision, counted, hop, key_of, message
from tests.support.suites import points

FIRST, SECOND = "clean/good", "clean/good@2"


def middle(revision: int = 1, *, lines: bool = True) -> Flow:
    """It publishes each text again, behind a stage, and each state that changes."""
    flow = Flow("middle", state_partitions=2)
    noted = flow.source("good", StringValue).aggregate(
        "all", key=key_of, state=StringValue, fold=append_emitting
    )
    noted.to("texts", partitions=2, revision=revision)
    if lines:
        noted.changes().to("lines", partitions=1, revision=revision)
    return flow


def append_emitting(state: StringValue, value: StringValue) -> Iterator[StringValue]:
    append(state, value)
    yield value


def last() -> Flow:
    """What reads it."""
    flow = Flow("last", state_partitions=2)
    flow.source("texts", StringValue).aggregate("all", key=key_of, state=StringValue, fold=append)
    return flow


class Chain:
    """Both flows, and what they have read."""

    def __init__(self) -> None:
        self.middle = Rehearsal(middle())
        self.last = Rehearsal(last(), log=self.middle.log, partitions={"texts": 2})

    def feed(self, *messages: tuple[str, int, str]) -> None:
        for text, root, output in messages:
            self.middle.feed("good", message(text, root, hop(output)), key="k")

    def run(self) -> None:
        self.middle.run_until_caught_up()
        self.last.run_until_caught_up()

    def correct(self) -> None:
        """Everything from root 1 on was wrong."""
        begin_revision(self.middle, "clean/good", 2, {0: 1})
        self.feed(("B", 1, SECOND), ("C", 2, SECOND))

    def declare(self, revision: int) -> None:
        self.middle.flow, self.middle.service = middle(revision), None

    def published(self, revision: str) -> Counter[str]:
        """The texts that were published under a name, each position once."""
        seen = dict[tuple[int, bytes], str]()
        for envelope in self.middle.published("texts"):
            if envelope.chain.links[-1].output == f"middle/texts{revision}":
                seen[envelope.chain.lane(), envelope.chain.position()] = envelope.payload_as(
                    StringValue
                ).value
        return Counter(seen.values())


def begun() -> Chain:
    found = Chain()
    found.feed(("a", 0, FIRST), ("b", 1, FIRST))
    found.run()
    return found


@pytest.fixture
def chain() -> Chain:
    return begun()


def test_what_was_published_is_published_again_under_the_next_revision(chain: Chain) -> None:
    chain.correct()
    chain.run()
    assert (counted(chain.middle), counted(chain.last)) == (["a", "b"], ["a", "b"])
    with pytest.raises(ConfigurationError, match="Declare revision=2"):
        chain.middle.rebuild()
    chain.declare(2)
    with pytest.raises(UnknownRevision, match="Run sqe-chain rebuild first"):
        chain.middle.start()
    chain.middle.rebuild()
    chain.run()
    assert sorted(counted(chain.middle)) == ["B", "C", "a"]
    assert chain.published("@2") == Counter("aBC")
    assert counted(chain.last) == ["a", "b"]  # until it is rebuilt
    chain.last.rebuild()
    assert sorted(counted(chain.last)) == ["B", "C", "a"]
    chain.feed(("D", 3, SECOND))
    chain.run()
    assert sorted(counted(chain.last)) == ["B", "C", "D", "a"]


def test_its_own_code_is_corrected_in_the_same_way(chain: Chain) -> None:
    chain.declare(2)
    chain.middle.rebuild()
    chain.run()
    assert chain.published("@2") == Counter("ab")
    chain.middle.rebuild()  # the same revision again: nothing is published twice
    before = len(chain.middle.published("texts"))
    chain.run()
    assert len(chain.middle.published("texts")) == before
    lines = chain.middle.published("lines")
    newest = [own for own in lines if own.chain.links[-1].output == "middle/lines@2"]
    assert newest[-1].payload_as(StringValue).value.split() == ["a", "b"]


def test_a_revision_does_not_go_back_and_has_no_seam(chain: Chain) -> None:
    chain.declare(2)
    with pytest.raises(ConfigurationError, match="Expected no --to"):
        chain.middle.rebuild({("good", 0): 1})
    chain.middle.rebuild()
    chain.declare(1)
    with pytest.raises(ConfigurationError, match="has published revision 2"):
        chain.middle.start()
    with pytest.raises(ConfigurationError, match="has published revision 2"):
        chain.middle.rebuild()


def test_a_rebuild_that_was_refused_leaves_no_revision_that_readers_would_follow(chain: Chain) -> None:
    chain.declare(2)
    with pytest.raises(ConfigurationError, match="Expected no --to"):
        chain.middle.rebuild({("good", 0): 1})
    chain.declare(1)
    chain.feed(("c", 2, FIRST))
    chain.run()
    chain.last.rebuild()
    assert sorted(counted(chain.last)) == ["a", "b", "c"]


def test_a_rebuild_that_was_killed_leaves_no_revision_that_readers_would_follow() -> None:
    for number in points("own revisions"):
        chain = begun()
        chain.declare(2)
        chain.middle.crash_at_write(number)
        try:
            chain.middle.rebuild()
        except Crash:
            pass
        else:
            return
        chain.middle.script.writes.clear()
        chain.declare(1)
        try:
            chain.middle.start()
        except ConfigurationError:  # it had cut over, so the code of before cannot publish any more
            chain.declare(2)
        chain.feed(("c", 2, FIRST))
        chain.run()
        chain.last.rebuild()
        assert sorted(counted(chain.last)) == ["a", "b", "c"], number


def test_an_output_that_a_revision_began_without_is_not_replaced_when_it_is_declared_again(
    chain: Chain,
) -> None:
    chain.middle.flow, chain.middle.service = middle(2, lines=False), None
    chain.middle.rebuild()
    chain.feed(("c", 2, FIRST))
    chain.run()
    chain.declare(2)
    with pytest.raises(ConfigurationError, match="Declare revision=3"):
        chain.middle.start()
    assert chain.middle.log.describe(["lines.revisions"]) == {}
    chain.declare(3)
    chain.middle.rebuild()
    chain.run()
    assert chain.published("@3") == Counter("abc")
    assert len(chain.middle.log.records("lines.revisions")) == 1


def test_a_flow_that_begins_under_a_revision_has_its_record_before_it_publishes() -> None:
    chain = Chain()
    chain.last.run_until_caught_up()
    chain.declare(3)
    chain.feed(("a", 0, FIRST))
    chain.run()
    assert counted(chain.last) == []  # it began before there was any revision
    chain.last.rebuild()
    assert counted(chain.last) == ["a"]


def test_a_flow_that_has_lost_its_plans_takes_the_next_revision(chain: Chain) -> None:
    chain.correct()
    chain.declare(2)
    chain.middle.rebuild()
    chain.run()
    cast("MemoryStore", chain.middle.stores[""]).restore_all(StoreCopy())
    with pytest.raises(ConfigurationError, match="Declare revision=3"):
        chain.middle.rebuild()
    chain.declare(3)
    chain.middle.rebuild()
    chain.run()
    assert chain.published("@3") == Counter("aBC")


def test_killed_anywhere_it_is_published_once() -> None:
    for number in points("own revisions"):
        chain = begun()
        chain.correct()
        chain.declare(2)
        chain.middle.crash_at_write(number)
        try:
            chain.middle.rebuild()
        except Crash:
            chain.middle.service = None
            chain.middle.script.writes.clear()
            chain.middle.rebuild()
        chain.middle.run_until_crash()
        ended = bool(chain.middle.script.writes)
        chain.middle.script.writes.clear()
        chain.run()
        chain.last.rebuild()
        assert chain.published("@2") == Counter("aBC")
        assert sorted(counted(chain.last)) == sorted(counted(chain.middle)) == ["B", "C", "a"]
        if ended:
            return
