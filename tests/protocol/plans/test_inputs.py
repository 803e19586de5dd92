"""Goal: an input that is not what it was is named; whatever is still exact goes on.

Method: retention, truncation, topics created again, transactions, gaps and grown topics. The broker is in memory; one
service counts and one only passes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.envelope.message import wrap
from sqe_chain.errors import (
    ChainError,
    CompactedInput,
    LostOffsets,
    NoCommittedOffset,
    PartitionsMismatch,
    RecreatedTopic,
    TruncatedInput,
)
from sqe_chain.flow import Flow
from sqe_chain.plans.same_inputs import DESCRIBE_MS
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.plans import reseal_last_plan
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

WORDS = ["ant", "bee", "cat", "ape", "bat", "cow"]
MORE = ["asp", "boa", "cod"]
Service = Callable[..., Rehearsal]


def counting(**options: object) -> Rehearsal:
    flow = Flow("counting", state_partitions=2, **options)  # type: ignore[arg-type]
    first = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    first.to("copied", partitions=1)
    return Rehearsal(flow)


def passing(**options: object) -> Rehearsal:
    flow = Flow("passing", **options)  # type: ignore[arg-type]
    flow.source("words", StringValue).to("copied", partitions=1)
    return Rehearsal(flow)


BOTH = pytest.mark.parametrize("service", [counting, passing])


def feed(rehearsal: Rehearsal, words: list[str] = WORDS) -> None:
    for text in words:
        rehearsal.feed("words", word(text))


def fed(service: Service) -> Rehearsal:
    """A service that has read the words."""
    rehearsal = service()
    feed(rehearsal)
    rehearsal.run_until_caught_up()
    return rehearsal


def counted(rehearsal: Rehearsal) -> Counter[str]:
    texts = [text for words in stored_words(rehearsal, "letters").values() for text in words.split()]
    assert Counter(" ".join(stored_words(rehearsal, "all").values()).split()) == Counter(texts)
    return Counter(texts)


def with_start(start: str) -> Settings:
    return Settings(allow_weak_durability=True, start=start)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------- retention


@BOTH
@pytest.mark.parametrize("restart", [True, False])
def test_retention_that_passed_the_position_stops(service: Service, restart: bool) -> None:
    rehearsal = fed(service)
    feed(rehearsal, MORE)
    rehearsal.log.truncate_before("words", 0, len(WORDS) + 1)
    if restart:
        rehearsal.service = None
    with pytest.raises(LostOffsets, match=r"next to read is 6, but the log begins at 7"):
        rehearsal.run_until_caught_up()


@BOTH
@pytest.mark.parametrize("restart", [True, False])
def test_retention_up_to_the_position_is_no_loss(service: Service, restart: bool) -> None:
    rehearsal = fed(service)
    rehearsal.log.truncate_before("words", 0, len(WORDS))
    if restart:
        rehearsal.service = None
    feed(rehearsal, MORE)
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("copied")) == len(WORDS + MORE)


@pytest.mark.parametrize("step", [5, 6, 7])
def test_retention_that_passed_an_unfinished_plan_stops(step: int) -> None:
    rehearsal = counting()
    feed(rehearsal)
    rehearsal.crash(step=step, when="before")
    rehearsal.run_until_crash()
    rehearsal.log.truncate_before("words", 0, 2)
    if step < 7:
        with pytest.raises(LostOffsets):
            rehearsal.start()
    else:
        rehearsal.run_until_caught_up()
        assert counted(rehearsal) == Counter(WORDS)


@BOTH
def test_a_flow_without_position_stops_where_the_log_no_longer_begins_at_0(service: Service) -> None:
    rehearsal = service()
    feed(rehearsal)
    rehearsal.log.truncate_before("words", 0, 2)
    with pytest.raises(NoCommittedOffset, match="--start earliest"):
        rehearsal.run_until_caught_up()


@BOTH
@pytest.mark.parametrize(("start", "left"), [("earliest", WORDS[2:]), ("latest", [])])
def test_start_decides_where_to_begin(service: Service, start: str, left: list[str]) -> None:
    rehearsal = service()
    rehearsal.settings = with_start(start)
    feed(rehearsal)
    rehearsal.log.truncate_before("words", 0, 2)
    rehearsal.run_until_caught_up()
    feed(rehearsal, MORE)
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("copied")) == len(left + MORE)


@BOTH
@pytest.mark.parametrize("restart", [True, False])
def test_new_partitions_of_a_known_topic_are_read_from_0_whatever_start_is_set(
    service: Service, restart: bool
) -> None:
    """`start` is for what is there before a flow; what comes into new partitions comes after it."""
    rehearsal = service()
    rehearsal.settings = with_start("latest")
    feed(rehearsal)
    rehearsal.run_until_caught_up()
    partitions = rehearsal.log.describe(["words"])["words"].partitions
    rehearsal.log.grow("words", partitions + 1)
    rehearsal.feed("words", word("auk"), partition=partitions)
    if restart:
        rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("copied")) == 1


# ---------------------------------------------------------------------------- truncation


@BOTH
@pytest.mark.parametrize("restart", [True, False])
def test_a_log_that_ends_before_what_was_read_stops(service: Service, restart: bool) -> None:
    rehearsal = fed(service)
    rehearsal.log.truncate_after("words", 0, 4)
    if restart:
        rehearsal.service = None
    with pytest.raises(TruncatedInput, match="ends at 4"):
        rehearsal.run_until_caught_up()


@BOTH
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("more", [0, 2])
def test_a_log_that_was_truncated_and_written_again_stops(service: Service, restart: bool, more: int) -> None:
    """As long as before, or longer: the leader epoch shows it."""
    rehearsal = fed(service)
    rehearsal.log.truncate_after("words", 0, 4)
    feed(rehearsal, MORE[: 2 + more])
    feed(rehearsal, MORE[:more])
    if restart:
        rehearsal.service = None
    if service is counting and more == 0 and not restart:
        return  # nothing to read, nothing to compare: seen with the next record, or at the next start
    if service is passing and more == 0:
        return
    with pytest.raises(TruncatedInput):
        rehearsal.run_until_caught_up()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("what", ["time", "key", "value", "null value", "nothing"])
def test_a_record_replaced_in_the_same_leader_epoch_stops(what: str, known: bool) -> None:
    """For example a broker restored from a copy. Plans of older versions know the time, and not the content."""
    rehearsal = counting()
    feed(rehearsal)
    before = rehearsal.log.snapshot()
    rehearsal.feed("words", word("first"), key="a", partition=0, timestamp_ms=1_000)
    last = rehearsal.log.records("words")[-1]
    rehearsal.run_until_caught_up()
    if not known:
        forget_checksums(rehearsal)
    rehearsal.log.restore(before)
    rehearsal.log.append(
        "words",
        0,
        None if what == "null value" else b"another" if what == "value" else last.value(),
        b"b" if what == "key" else last.key(),
        timestamp_ms=2_000 if what == "time" else last.timestamp()[1],
    )
    if what == "nothing" or (what != "time" and not known):
        rehearsal.restart()
        return
    with pytest.raises(TruncatedInput, match=r"words\[0\]@6: .*written again"):
        rehearsal.restart()


def forget_checksums(rehearsal: Rehearsal) -> None:
    """The last plan as an older version would have written it."""

    def forget(plan: dict[str, Any]) -> None:
        for planned in plan["ranges"]:
            del planned["last_crc"]

    reseal_last_plan(rehearsal.stores[""], rehearsal.flow.name, forget)


def test_an_unfinished_plan_on_a_truncated_log_stops() -> None:
    rehearsal = counting()
    feed(rehearsal)
    rehearsal.crash(step=5, when="before")
    rehearsal.run_until_crash()
    rehearsal.log.truncate_after("words", 0, 4)
    feed(rehearsal, MORE)
    with pytest.raises(ChainError) as caught:
        rehearsal.start()
    assert isinstance(caught.value, TruncatedInput)


# ---------------------------------------------------------------------------- created again


@BOTH
@pytest.mark.parametrize("restart", [True, False])
def test_an_enveloped_input_created_again_stops(service: Service, restart: bool) -> None:
    rehearsal = fed(service)
    rehearsal.log.recreate("words", keep_commits=True)
    feed(rehearsal, WORDS + MORE)
    if restart:
        rehearsal.service = None
    with pytest.raises(RecreatedTopic, match="'words'"):
        rehearsal.run_until_caught_up()


@BOTH
def test_a_service_with_states_knows_it_without_commits_and_a_republisher_names_what_may_be(
    service: Service,
) -> None:
    rehearsal = fed(service)
    rehearsal.log.recreate("words")
    feed(rehearsal, MORE)
    rehearsal.service = None
    if rehearsal.flow.stages:
        with pytest.raises(RecreatedTopic, match="'words'"):
            rehearsal.run_until_caught_up()
        return
    rehearsal.run_until_caught_up()
    assert any("deleted and created again" in str(event["text"]) for event in rehearsal.events("notice"))


def test_an_input_created_again_while_a_batch_reads_it_stops_before_the_seal() -> None:
    rehearsal = counting()
    feed(rehearsal)
    rehearsal.run_until_caught_up()
    feed(rehearsal, MORE)
    real, broker = rehearsal.log.read, type(rehearsal.log)

    def read(self: MemoryLog, wanted: object) -> object:
        blocks = list(real(wanted))  # type: ignore[arg-type]
        broker.recreate(self, "words")
        return iter(blocks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "read", read)
        with pytest.raises(RecreatedTopic):
            rehearsal.batch()
    assert counted(rehearsal) == Counter(WORDS)


def upstream(log: MemoryLog, name: str = "upstream") -> Rehearsal:
    flow = Flow(name)
    flow.source("origin", StringValue).to("words", key=first_letter, partitions=1)
    return Rehearsal(flow, log=log)


def middle(log: MemoryLog) -> Rehearsal:
    flow = Flow("middle")
    flow.source("between", StringValue).to("words", key=first_letter, partitions=1)
    return Rehearsal(flow, log=log)


def test_a_root_created_again_counts_as_new_and_is_reported() -> None:
    """The republisher starts over under another group; its facts are other facts."""
    found = counting()
    rehearsal = upstream(found.log)
    for text in WORDS:
        rehearsal.feed("origin", word(text))
    rehearsal.run_until_caught_up()
    found.run_until_caught_up()
    found.log.recreate("origin")
    found.log.forget("upstream")
    rehearsal = upstream(found.log)
    for text in WORDS:
        rehearsal.feed("origin", word(text))
    rehearsal.run_until_caught_up()
    found.run_until_caught_up()
    assert counted(found) == Counter(WORDS + WORDS)
    assert any("created again" in str(event["text"]) for event in found.events("notice"))


@pytest.mark.parametrize(
    ("service", "recreated", "expected"),
    [
        (counting, "stop", None),
        (passing, "stop", None),
        (counting, "count", WORDS + WORDS + MORE),
        (counting, "skip", WORDS + MORE),
    ],
)
def test_a_topic_in_between_created_again(
    service: Service, recreated: str, expected: list[str] | None
) -> None:
    """Old roots come on new lanes: stop, count them again, or skip what was counted."""
    found = service(recreated=recreated)
    flow = Flow("first")
    flow.source("origin", StringValue).to("between", key=first_letter, partitions=1)
    one, two = Rehearsal(flow, log=found.log), middle(found.log)
    for text in WORDS:
        one.feed("origin", word(text))
    for rehearsal in (one, two, found):
        rehearsal.run_until_caught_up()
    found.log.recreate("between")
    for text in MORE:
        one.feed("origin", word(text))
    found.log.forget("first")
    found.log.forget("middle")
    one.service = two.service = None
    for rehearsal in (one, two):
        rehearsal.run_until_caught_up()
    if expected is None:
        with pytest.raises(RecreatedTopic, match="between"):
            found.run_until_caught_up()
        return
    found.run_until_caught_up()
    assert counted(found) == Counter(expected)


def raw_counting(name: str = "counting") -> Rehearsal:
    flow = Flow(name, state_partitions=2)
    source = flow.source("words", lambda data: word(data.decode()), raw=True)
    first = source.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    first.to("copied", partitions=1)
    return Rehearsal(flow)


@pytest.mark.parametrize("restart", [True, False])
def test_a_raw_root_created_again_is_read_from_its_beginning(restart: bool) -> None:
    rehearsal = raw_counting()
    for text in WORDS:
        rehearsal.feed("words", text.encode())
    rehearsal.run_until_caught_up()
    rehearsal.log.recreate("words", 2)
    for text in WORDS:
        rehearsal.feed("words", text.encode(), partition=1)
    if restart:
        rehearsal.service = None
    rehearsal.crash(step=7, when="before")
    rehearsal.run_until_caught_up()
    assert counted(rehearsal) == Counter(WORDS + WORDS)


def test_a_raw_root_created_again_with_an_unfinished_plan_on_it_stops() -> None:
    rehearsal = raw_counting()
    for text in WORDS:
        rehearsal.feed("words", text.encode())
    rehearsal.crash(step=5, when="before")
    rehearsal.run_until_crash()
    rehearsal.log.recreate("words")
    for text in WORDS + MORE:
        rehearsal.feed("words", text.encode())
    with pytest.raises(RecreatedTopic):
        rehearsal.start()


# ---------------------------------------------------------------------------- transactions, gaps, compaction


@BOTH
def test_aborted_and_open_transactions_are_not_read(service: Service) -> None:
    """Nor are records behind an open one; offsets of markers are no records."""
    rehearsal = service()
    feed(rehearsal)
    aborted, kept, still_open = (rehearsal.log.transaction() for _ in range(3))
    for text, transaction in zip(("axe", "boa", "cub"), (aborted, kept, still_open), strict=True):
        transaction.append("words", 0, wrap(word(text), key=None, timestamp_ms=0))
    aborted.abort()
    feed(rehearsal, ["asp"])
    kept.commit()
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("copied")) == len(WORDS) + 1, "up to the open one"
    still_open.commit()
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert len(rehearsal.log.records("copied")) == len(WORDS) + 3
    if service is counting:
        assert counted(rehearsal) == Counter([*WORDS, "boa", "cub", "asp"])
        assert (
            sum(commit.offset for commit in rehearsal.commits().values())
            == rehearsal.log.bounds([("words", 0)])["words", 0].stable_end
        )


@BOTH
def test_a_batch_of_markers_only_is_a_batch(service: Service) -> None:
    rehearsal = fed(service)
    for _ in range(2):
        transaction = rehearsal.log.transaction()
        transaction.append("words", 0, b"never seen")
        transaction.abort()
        rehearsal.crash(step=7, when="before")
        rehearsal.run_until_caught_up()
    feed(rehearsal, MORE)
    rehearsal.run_until_caught_up()
    assert rehearsal.crashes == 2
    assert {m.offset() for m in rehearsal.log.records("words")} == {*range(6), 10, 11, 12}


@BOTH
def test_sparse_offsets_are_not_counted(service: Service) -> None:
    rehearsal = service()
    for number, text in enumerate(WORDS):
        rehearsal.feed("words", word(text), offset=number * 1_000)
    rehearsal.crash(step=5, when="after")
    rehearsal.run_until_caught_up()
    values = {message.value() for message in rehearsal.log.records("copied")}
    assert len(values) == len(WORDS)


@BOTH
def test_a_compacted_input_stops_unless_allowed(service: Service) -> None:
    rehearsal = service()
    feed(rehearsal)
    rehearsal.log.configure("words", compacted=True)
    with pytest.raises(CompactedInput, match="allow_compacted"):
        rehearsal.start()


def test_a_compacted_input_that_is_allowed_goes_on_over_its_holes() -> None:
    rehearsal = counting(allow_compacted=True)
    rehearsal.log.configure("words", compacted=True)
    for text in [*WORDS, "ant"]:
        rehearsal.feed("words", word(text), key=text)
    rehearsal.run_until_caught_up()
    rehearsal.log.compact("words", 0)
    rehearsal.restart()
    rehearsal.feed("words", word("asp"), key="asp")
    rehearsal.run_until_caught_up()
    assert counted(rehearsal) == Counter([*WORDS, "ant", "asp"])


# ---------------------------------------------------------------------------- grown


def chain_of_services(state_partitions: int) -> tuple[Rehearsal, Rehearsal]:
    flow = Flow("counting", state_partitions=state_partitions)
    first = flow.source("mid", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    first.to("copied", key=first_letter, partitions=2)
    rehearsal = Rehearsal(flow, partitions={"mid": 2})
    flow = Flow("standard")
    flow.source("raw", StringValue).to("mid", key=first_letter, partitions=2)
    return Rehearsal(flow, log=rehearsal.log, partitions={"raw": 2}), rehearsal


@pytest.mark.parametrize("grows", ["raw", "mid", "copied"])
@pytest.mark.parametrize("state_partitions", [2, 3])
@pytest.mark.parametrize("rewound", [False, True])
def test_topics_that_grow_while_a_republisher_is_dead_before_its_commit(
    grows: str, state_partitions: int, rewound: bool
) -> None:
    """Replays take the lane of the first delivery, also when the group was set back to its beginning."""
    one, found = chain_of_services(state_partitions)
    for number, text in enumerate(WORDS):
        one.feed("raw", word(text), partition=number % 2)
    one.run_until_caught_up()
    found.run_until_caught_up()
    for number, text in enumerate(MORE):
        one.feed("raw", word(text), partition=number % 2)
    one.crash(step=7, when="before")
    one.run_until_crash()
    found.log.grow(grows, 5)
    if grows == "raw":
        for partition in (2, 3, 4):
            one.feed("raw", word(f"new-{partition}"), partition=partition)
    if rewound:
        found.log.forget("standard")
    one.run_until_caught_up()
    found.crash(step=6, when="before")
    found.run_until_caught_up()
    new = ["new-2", "new-3", "new-4"] if grows == "raw" else []
    assert counted(found) == Counter([*WORDS, *MORE, *new])
    assert {message.partition() for message in found.log.records("mid")} <= {0, 1}
    assert {message.partition() for message in found.log.records("copied")} <= {0, 1}


@BOTH
def test_an_output_topic_with_fewer_partitions_than_declared_stops(service: Service) -> None:
    flow = Flow("wide")
    stream = flow.source("words", StringValue)
    if service is counting:
        stream = stream.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    stream.to("copied", partitions=3)
    log = MemoryLog(f"wide-{service.__name__}")
    log.clear()
    log.create_topic("copied", 2)
    with pytest.raises(PartitionsMismatch, match="declared are 3"):
        Rehearsal(flow, log=log).start()


@pytest.mark.parametrize("stages", [False, True])
def test_a_service_that_has_nothing_to_do_describes_topics_seldom(*, stages: bool) -> None:
    """It looks ten times a second, and each description costs the broker and the driver something."""
    flow = Flow("pass-on")
    source = flow.source("in", bytes, raw=True)
    source.to("out", partitions=1)
    if stages:
        source.aggregate("all", key=lambda _: "all", state=StringValue, fold=lambda _state, _value: None)
    rehearsal = Rehearsal(flow)
    service = rehearsal.start()
    before = rehearsal.script.made["broker", "describe"]
    for _ in range(100):
        assert not service.batch().worked
    assert rehearsal.script.made["broker", "describe"] - before <= 1
    for partitions, passed_ms in ((2, DESCRIBE_MS), (3, -3_600_000)):
        rehearsal.log.grow("in", partitions)
        rehearsal.clock.jump(passed_ms)
        rehearsal.feed("in", b"1", partition=partitions - 1)
        assert service.batch().worked, "new partitions enter, also after the clock was set back"
