"""Goal: whatever way replays take, each fact counts once, also in a stage of a coarser key behind.

Method: two hops in memory. Every republisher dies between publish and commit, so each message
comes at least twice. The test compares totals per word with what was fed.
"""

from __future__ import annotations

from collections import Counter

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.envelope.message import wrap
from sqe_chain.errors import ChangedRepublisher, GapError
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

WORDS = ["ant", "bee", "cat", "ape", "bat", "cow", "asp", "boa", "cod", "auk", "bug", "cub"]
LAYOUTS = [pytest.param(2, id="in-place"), pytest.param(3, id="shuffled")]


@pytest.fixture
def log(request: pytest.FixtureRequest) -> MemoryLog:
    broker = MemoryLog(request.node.nodeid)
    broker.clear()
    return broker


def pairs(value: StringValue) -> list[StringValue]:
    """Two words of different keys for one: they go to different partitions, and on to one line."""
    return [value, word(chr(ord(value.value[0]) + 1) + value.value[1:])]


def whole(value: StringValue) -> str:
    return value.value


def receiver(log: MemoryLog, topic: str, state_partitions: int, partitions: int = 2) -> Rehearsal:
    """Per initial, then all in one."""
    flow = Flow(f"receiver-{topic}", state_partitions=state_partitions)
    first = flow.source(topic, StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    return Rehearsal(flow, log=log, partitions={topic: partitions})


def settle(*rehearsals: Rehearsal) -> None:
    """Each dies once after publishing, then everything catches up; twice round."""
    for _ in range(2):
        for rehearsal in rehearsals[:-1]:
            rehearsal.crash(step=7, when="before")
            rehearsal.service = None
            rehearsal.run_until_crash()
        rehearsals[-1].run_until_caught_up()
        for rehearsal in rehearsals[:-1]:
            rehearsal.run_until_caught_up()
        rehearsals[-1].run_until_caught_up()


def counted(rehearsal: Rehearsal, stage: str = "all") -> Counter[str]:
    return Counter(text for ledgers in stored_words(rehearsal, stage).values() for text in ledgers.split())


def check(rehearsal: Rehearsal, expected: Counter[str]) -> None:
    assert counted(rehearsal, "letters") == expected
    assert counted(rehearsal) == expected
    replays = sum(int(str(event["replays"])) for event in rehearsal.events("committed"))
    assert replays > 0, "it would prove nothing"


@pytest.mark.parametrize("state_partitions", LAYOUTS)
def test_one_root_through_two_partitions_of_the_topic_in_between(
    log: MemoryLog, state_partitions: int
) -> None:
    """Both halves of a root meet again under one key; neither makes the other a replay."""
    first = Flow("first")
    first.source("raw", StringValue).flat_map(pairs).to("mid", key=whole, partitions=2)
    second = Flow("second")
    second.source("mid", StringValue).to("end", key=same_key, partitions=2)
    one, two, found = (
        Rehearsal(first, log=log),
        Rehearsal(second, log=log, partitions={"mid": 2}),
        receiver(log, "end", state_partitions),
    )
    for text in WORDS:
        one.feed("raw", word(text))
    settle(one, two, found)
    check(found, Counter(value.value for text in WORDS for value in pairs(word(text))))


@pytest.mark.parametrize("step", [5, 6, 7])
@pytest.mark.parametrize("state_partitions", LAYOUTS)
def test_emissions_beside_changes_into_one_topic(log: MemoryLog, state_partitions: int, step: int) -> None:
    """`changes()` are made from the last inputs a second time: they are lanes of their own."""
    flow = Flow("both", state_partitions=4)
    stage = flow.source("raw", StringValue).aggregate("words", key=whole, state=StringValue, fold=append_word)
    stage.to("mid", key=first_letter, partitions=2)
    stage.changes().map(lambda state: word(state.value.strip())).to(
        "mid", name="changes", key=first_letter, partitions=2
    )
    one, found = (
        Rehearsal(flow, log=log, settings=Settings(max_records=5)),
        receiver(log, "mid", state_partitions),
    )
    for text in WORDS:
        one.feed("raw", word(text))
    one.crash(step=step, when="before")
    one.crash(step=step, when="before", after_passes=1)
    one.run_until_caught_up()
    assert one.crashes == 2
    found.run_until_caught_up()
    assert counted(found) == counted(found, "letters") == Counter(WORDS + WORDS)
    lanes = {(chain.links[0].output, chain.links[0].shard) for chain in one.chains("mid")}
    assert {output for output, _ in lanes} == {"both/mid", "both/changes"}
    assert len({shard for _, shard in lanes}) > 2


@pytest.mark.parametrize("state_partitions", LAYOUTS)
def test_shards_of_one_stage_are_lanes_of_their_own(log: MemoryLog, state_partitions: int) -> None:
    """Two state partitions emit for one input into one partition; the slower one is not made a replay."""
    flow = Flow("sharded", state_partitions=5)
    stage = (
        flow.source("raw", StringValue)
        .flat_map(pairs)
        .aggregate("words", key=whole, state=StringValue, fold=append_word)
    )
    stage.to("mid", key=same_key, partitions=1)
    one, found = Rehearsal(flow, log=log), receiver(log, "mid", state_partitions, partitions=1)
    for number in range(4):
        one.feed("raw", word(WORDS[number]))
        one.crash(step=5, when="after")
        one.run_until_caught_up()
    found.run_until_caught_up()
    check(found, Counter(value.value for text in WORDS[:4] for value in pairs(word(text))))


# ---------------------------------------------------------------------------- consistency checks


def written(log: MemoryLog, count: int = 6) -> list[bytes]:
    """What a writer has published in one batch to one partition."""
    flow = Flow("writer")
    flow.source("origin", StringValue).to("words", key=same_key, partitions=1)
    rehearsal = Rehearsal(flow, log=log)
    for text in WORDS[:count]:
        rehearsal.feed("origin", word(text))
    rehearsal.run_until_caught_up()
    values = [bytes(message.value() or b"") for message in log.records("words")]
    log.delete("words")
    return values


def stateless(log: MemoryLog) -> Rehearsal:
    flow = Flow("stateless")
    flow.source("words", StringValue).to("out", partitions=1)
    return Rehearsal(flow, log=log)


def stateful(log: MemoryLog, **options: object) -> Rehearsal:
    flow = Flow("stateful", **options)  # type: ignore[arg-type]
    flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    return Rehearsal(flow, log=log)


@pytest.mark.parametrize("order", ["0 1 3 4", "0 2 1 3", "1 2", "0 1 2 4"])
@pytest.mark.parametrize("receiver_of", [stateless, stateful])
@pytest.mark.parametrize("batches", [1, 9])
def test_a_hole_or_a_swap_stops(log: MemoryLog, order: str, receiver_of: object, batches: int) -> None:
    """Within a batch and between batches, for those that count and for those that only pass on."""
    values = written(log)
    found = receiver_of(log)  # type: ignore[operator]
    if batches > 1:
        found.settings = Settings(allow_weak_durability=True, max_records=1)
    for number in order.split():
        found.log.append("words", 0, values[int(number)])
    with pytest.raises(GapError, match=r"words\[0\]@"):
        found.run_until_caught_up()


def changed(log: MemoryLog, outputs: int) -> None:
    """A republisher that makes `outputs` envelopes from an input, whatever was made before, and dies before it commits."""
    flow = Flow("changing")
    flow.source("origin", StringValue).flat_map(
        lambda value: [word(f"{value.value}{n}") for n in range(outputs)]
    ).to("words", key=whole, partitions=1)
    rehearsal = Rehearsal(flow, log=log, settings=Settings().asking(accept_changed_batch=True))
    if log.records("words"):
        rehearsal.crash(step=2, when="after")
    else:
        rehearsal.crash(step=7, when="before")
    rehearsal.run_until_crash()


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("receiver_of", [stateless, stateful])
@pytest.mark.parametrize("together", [True, False])
def test_a_republisher_that_changed_its_mind_stops(
    log: MemoryLog, before: int, after: int, receiver_of: object, together: bool
) -> None:
    found = receiver_of(log)  # type: ignore[operator]
    log.create_topic("origin", 1)
    log.append("origin", 0, wrap(word("ant"), key=None, timestamp_ms=0))
    changed(log, before)
    if not together:
        found.run_until_caught_up()
    changed(log, after)
    with pytest.raises(ChangedRepublisher, match="gave other outputs"):
        found.run_until_caught_up()


def test_a_hole_behind_an_undecodable_record_is_waived(log: MemoryLog) -> None:
    """It may have been what is missing."""
    values = written(log)
    rehearsal = stateful(log, poison="skip")
    for value in (values[0], b"rubbish", values[2], values[3]):
        rehearsal.log.append("words", 0, value)
    rehearsal.run_until_caught_up()
    assert counted(rehearsal, "letters") == Counter([WORDS[0], WORDS[2], WORDS[3]])
    rehearsal.log.append("words", 0, values[5])
    with pytest.raises(GapError):
        rehearsal.run_until_caught_up()


@pytest.mark.parametrize("receiver_of", [stateless, stateful])
def test_a_lane_met_in_the_middle_is_waived_once(log: MemoryLog, receiver_of: object) -> None:
    values = written(log)
    found = receiver_of(log)  # type: ignore[operator]
    found.settings = Settings(allow_weak_durability=True, start="latest")
    found.log.append("words", 0, values[0])
    found.run_until_caught_up()
    for number in (1, 3):  # 2 may have been written before: a batch that was under way then
        found.log.append("words", 0, values[number])
        found.run_until_caught_up()
    found.log.append("words", 0, values[5])
    with pytest.raises(GapError):
        found.run_until_caught_up()
