"""Goal: where a flow runs changes nothing: without a shuffle or with one, the results are equal.

Method: the same flow works off the same log in several layouts. The test compares states, and outputs
byte for byte where the layouts publish under the same shards.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

LETTERS = "abcdefgh"


def pairs(value: StringValue) -> list[StringValue]:
    return [value, word(value.value + "+"), word(f"{value.value[0]}-")]


def flow_of(state_partitions: int) -> Flow:
    """Three sources, one stream used twice, two stages of level 1, one of level 2, outputs everywhere."""
    flow = Flow("layouts", state_partitions=state_partitions)
    one = flow.source(["zebra", "apple"], StringValue)
    two = flow.source("mango", StringValue).flat_map(pairs)
    both = one.merge(two)
    both.to("copied", key=first_letter, partitions=3)
    first = both.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    beside = both.filter(lambda value: not value.value.endswith("+")).aggregate(
        "beside", key=first_letter, state=StringValue, fold=append_word
    )
    beside.flat_map(pairs).to("paired", key=same_key, partitions=2)
    first.to("noted", key=first_letter, partitions=2)
    first.changes().to("newest", partitions=2)
    second = first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    second.changes().to("sums", partitions=1)
    return flow


def feed(rehearsal: Rehearsal, seed: int, mis_partitioned: float, count: int = 40) -> None:
    """Words in three topics of three partitions; some not where murmur2 puts their key."""
    draw = random.Random(seed)
    for number in range(count):
        letter = draw.choice(LETTERS)
        partition = draw.randrange(3) if draw.random() < mis_partitioned else partition_of(letter.encode(), 3)
        rehearsal.feed(
            draw.choice(["zebra", "apple", "mango"]), word(f"{letter}{number}"), partition=partition
        )


def run(
    state_partitions: int, *, mis_partitioned: float = 0.0, seed: int = 1, **settings: object
) -> Rehearsal:
    partitions = dict.fromkeys(["zebra", "apple", "mango"], 3)
    rehearsal = Rehearsal(flow_of(state_partitions), partitions=partitions, settings=Settings(**settings))  # type: ignore[arg-type]
    feed(rehearsal, seed, mis_partitioned)
    rehearsal.run_until_caught_up()
    return rehearsal


def states(rehearsal: Rehearsal) -> dict[str, dict[str, str]]:
    return {stage: stored_words(rehearsal, stage) for stage in ("letters", "beside", "all")}


def identities(rehearsal: Rehearsal, topic: str) -> dict[object, object]:
    """What is published, without topic ids (they hold the broker's name)."""
    outputs: dict[object, object] = {}
    for message, envelope in zip(rehearsal.log.records(topic), rehearsal.published(topic), strict=True):
        links = tuple(
            (x.topic, x.partition, x.offset, x.output, x.shard, x.ordinal, x.of) for x in envelope.chain
        )
        content = (
            message.partition(),
            message.key(),
            envelope.payloads,
            envelope.timestamp_ms,
            envelope.type,
        )
        assert links not in outputs, "each once"
        outputs[links] = content
    return outputs


TOPICS = ["copied", "paired", "noted", "newest", "sums"]


@pytest.mark.parametrize("seed", range(5))
def test_without_a_shuffle_a_flow_gives_what_it_gives_with_one(seed: int) -> None:
    in_place, shuffled = run(3, seed=seed), run(3, seed=seed, in_place=False)
    assert states(in_place) == states(shuffled)
    for topic in TOPICS:
        assert identities(in_place, topic) == identities(shuffled, topic) != {}
        values = [
            [m.value() or b"" for m in sorted(found.log.records(topic), key=lambda m: m.partition())]
            for found in (in_place, shuffled)
        ]
        assert [len(value) for value in sorted(values[0])] == [len(value) for value in sorted(values[1])]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mis_partitioned", [0.1, 1.0])
def test_keys_that_lie_elsewhere_give_what_a_shuffle_gives(seed: int, mis_partitioned: float) -> None:
    """Found while the states are loaded; the batch is run again shuffled, and so are all that follow."""
    in_place, shuffled = (
        run(3, mis_partitioned=mis_partitioned, seed=seed, in_place=kind) for kind in (True, False)
    )
    assert states(in_place) == states(shuffled)
    for topic in TOPICS:
        assert identities(in_place, topic) == identities(shuffled, topic)
    assert len(in_place.events("shuffled")) == 1, "reported once a run"


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("step", [3, 5, 6])
def test_a_redo_in_another_layout_publishes_the_same(in_place: bool, step: int) -> None:
    """A run dies. The next one shuffles the batch that it ran without a shuffle, and the other way round."""
    rehearsal = Rehearsal(
        flow_of(3),
        partitions=dict.fromkeys(["zebra", "apple", "mango"], 3),
        settings=Settings(in_place=in_place),
    )
    feed(rehearsal, 1, 0.0)
    rehearsal.crash(step=step, when="after")
    rehearsal.run_until_crash()
    rehearsal.settings = Settings(allow_weak_durability=True, in_place=not in_place)
    rehearsal.run_until_caught_up()
    wanted = run(3)
    assert states(rehearsal) == states(wanted)
    for topic in TOPICS:
        published: dict[object, set[bytes | None]] = defaultdict(set)
        for message, envelope in zip(rehearsal.log.records(topic), rehearsal.published(topic), strict=True):
            published[envelope.lane, envelope.position].add(message.value())
        assert all(len(values) == 1 for values in published.values()), "byte for byte"
        assert len(published) == len(identities(wanted, topic))


def test_units_are_folded_by_topic_name_partition_offset_and_path() -> None:
    """Not by the order of declaration, nor of arrival."""
    for in_place in (True, False):
        flow = Flow("order", state_partitions=1)
        late = flow.source("zebra", StringValue)
        early = flow.source("apple", StringValue).flat_map(pairs)
        late.merge(early).aggregate("all", key=same_key, state=StringValue, fold=append_word)
        rehearsal = Rehearsal(flow, settings=Settings(in_place=in_place))
        rehearsal.feed("zebra", word("z1"))
        rehearsal.feed("apple", word("a1"))
        rehearsal.feed("zebra", word("z2"))
        rehearsal.feed("apple", word("a2"))
        rehearsal.run_until_caught_up()
        assert stored_words(rehearsal, "all") == {"all": "a1 a1+ a- a2 a2+ a- z1 z2"}


def test_a_stream_used_twice_feeds_both_and_keeps_its_order() -> None:
    for in_place in (True, False):
        flow = Flow("twice", state_partitions=1)
        stream = flow.source("words", StringValue).flat_map(pairs)
        left, right = stream.map(lambda v: word(f"l{v.value}")), stream.map(lambda v: word(f"r{v.value}"))
        left.merge(right).aggregate("all", key=same_key, state=StringValue, fold=append_word)
        left.aggregate("left", key=same_key, state=StringValue, fold=append_word)
        rehearsal = Rehearsal(flow, settings=Settings(in_place=in_place))
        rehearsal.feed("words", word("x"))
        rehearsal.feed("words", word("y"))
        rehearsal.run_until_caught_up()
        assert stored_words(rehearsal, "all") == {"all": "lx rx lx+ rx+ lx- rx- ly ry ly+ ry+ ly- ry-"}
        assert stored_words(rehearsal, "left") == {"all": "lx lx+ lx- ly ly+ ly-"}
