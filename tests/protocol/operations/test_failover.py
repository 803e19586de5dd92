"""Goal: a flow that goes on in a cluster that mirrors its inputs counts each record once, or stops and names the lanes that lack some."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import (
    AnotherCluster,
    ConfigurationError,
    GapError,
    LostOffsets,
    PartitionsMismatch,
    ServiceStopped,
    Superseded,
)
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failover import check_may_fail_over
from sqe_chain.ports import Range
from sqe_chain.ports.readers import Partitions
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.mirrored import INPUT, Clusters, republished_words, totals_of_words
from tests.support.plans import last_plan
from tests.support.table_flows import Reading
from tests.support.word_flows import append_word, first_letter, word, words_by_first_letter

BEFORE, BETWEEN, AFTER = "ant bee cow dog elk fox ape", "bat cat doe", "auk boa cod eel fly asp"


@pytest.mark.parametrize("name", ["first.words", INPUT])
def test_a_flow_goes_on_with_the_mirror(name: str) -> None:
    clusters = Clusters(name)
    clusters.feed(BEFORE)
    clusters.totals.run_until_caught_up()
    clusters.feed(BETWEEN)
    clusters.mirror.copy()
    clusters.mirror.copy(again=4)
    clusters.fail_over()
    clusters.totals.run_until_caught_up()
    clusters.check()
    clusters.feed(AFTER)
    clusters.mirror.copy(again=2)
    clusters.totals.run_until_caught_up()
    clusters.check()


@pytest.fixture
def clusters() -> Clusters:
    """What was published is counted, and mirrored."""
    found = Clusters()
    found.feed(BEFORE)
    found.totals.run_until_caught_up()
    found.mirror.copy()
    return found


@pytest.mark.parametrize("elected", ["first", "second"])
def test_leaders_that_only_one_cluster_had_are_not_looked_for_in_the_other(elected: str) -> None:
    clusters = Clusters()
    for partition in range(2):
        for _ in range(3):
            getattr(clusters, elected).elect(INPUT if elected == "first" else clusters.name, partition)
    clusters.feed(BEFORE)
    clusters.totals.run_until_caught_up()
    clusters.feed(BETWEEN)
    clusters.mirror.copy()
    clusters.fail_over()
    clusters.totals.run_until_caught_up()
    clusters.check()
    clusters.fail_over(clusters.first, {})
    clusters.feed(AFTER)
    clusters.totals.run_until_caught_up()
    clusters.check()


def test_it_comes_back_by_the_same_command(clusters: Clusters) -> None:
    clusters.feed(BETWEEN)
    clusters.mirror.copy(again=1)
    clusters.fail_over()
    clusters.totals.run_until_caught_up()
    clusters.feed(AFTER)
    second = clusters.totals
    clusters.fail_over(clusters.first, {})
    clusters.totals.run_until_caught_up()
    clusters.check()
    with pytest.raises(AnotherCluster, match=clusters.first.name):
        second.restart()
    clusters.mirror.copy()
    clusters.feed("auk")
    clusters.mirror.copy()
    clusters.fail_over()
    clusters.totals.run_until_caught_up()
    clusters.check()


def test_the_old_cluster_is_refused_from_then_on(clusters: Clusters) -> None:
    first = clusters.totals
    zombie = first.zombie()
    clusters.fail_over()
    clusters.feed(BETWEEN)
    with pytest.raises(Superseded):
        zombie.wake()
    with pytest.raises(AnotherCluster, match=clusters.second.name):
        first.restart()
    unaware = Rehearsal(clusters.flow, log=clusters.first, store=clusters.store)  # it has read no plan before
    with pytest.raises(AnotherCluster, match=clusters.second.name):
        unaware.start()
    clusters.mirror.copy()
    clusters.totals.run_until_caught_up()
    clusters.check()


def test_offsets_go_on_so_none_of_before_has_another_record(clusters: Clusters) -> None:
    before = last_plan(clusters.store, "notes").next_offsets()
    clusters.fail_over()
    clusters.feed(AFTER)
    clusters.mirror.copy()
    clusters.totals.run_until_caught_up()
    after = last_plan(clusters.store, "notes").next_offsets()
    assert all(after[tp] > offset for tp, offset in before.items())
    log = environment_of(clusters.totals).ports.log
    assert {tp: bound.begin for tp, bound in log.bounds(before).items()} == before
    for topic, partition in before:
        topic_id = log.describe([topic])[topic].topic_id
        with pytest.raises(LostOffsets, match="before the failover"):
            list(log.read(Range(topic, topic_id, partition, 0, 1)))


def test_a_mirror_that_lags_behind_what_was_counted_is_named_and_may_be_accepted() -> None:
    clusters = Clusters()
    clusters.feed("ant ape asp")
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy(1)
    with pytest.raises(GapError, match="ends there before position") as error:
        clusters.fail_over()
    (lane,) = re.findall("[0-9a-f]{16}(?=: words)", str(error.value))
    done = clusters.fail_over(accepted=(lane,))
    assert [found.lane for found in done.accepted] == [lane]
    clusters.feed("auk")
    clusters.mirror.copy()
    clusters.totals.run_until_caught_up()
    clusters.check()


def test_what_the_mirror_never_gets_is_named_and_does_not_count_when_it_comes_late() -> None:
    clusters = Clusters()
    clusters.feed("ant")
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    clusters.feed("ape asp auk")
    clusters.mirror.skip(1)
    clusters.mirror.copy()
    with pytest.raises(GapError, match="lacks what is after") as error:
        clusters.fail_over()
    (lane,) = re.findall("[0-9a-f]{16}(?=: words)", str(error.value))
    clusters.fail_over(accepted=(lane,))
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy(again=3)  # now it comes
    clusters.totals.run_until_caught_up()
    clusters.fed.remove("ape")
    clusters.check()


def test_a_gap_that_comes_after_the_failover_stops_and_is_accepted_by_the_same_command(
    clusters: Clusters,
) -> None:
    clusters.fail_over()
    clusters.feed("ape asp auk")
    clusters.mirror.skip(1)
    clusters.mirror.copy()
    with pytest.raises(GapError):
        clusters.totals.run_until_caught_up()
    with pytest.raises(GapError, match="lacks what is after") as error:
        clusters.fail_over()
    (lane,) = re.findall("[0-9a-f]{16}(?=: words)", str(error.value))
    clusters.fail_over(accepted=(lane,))
    clusters.totals.run_until_caught_up()
    clusters.fed.reverse()
    clusters.fed.remove("ape")
    clusters.fed.reverse()
    clusters.check()


def begun_in_the_middle(*words: str) -> Clusters:
    """A flow that has not read the first words of its input."""
    clusters = Clusters(settings=settings_of(start="latest"))
    clusters.feed("ant bee")
    clusters.totals.run_until_caught_up()
    clusters.fed.clear()
    for text in words:
        clusters.feed(text)
        clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    return clusters


def test_a_flow_that_began_in_the_middle_has_no_excuse_for_a_gap_any_more() -> None:
    clusters = begun_in_the_middle("asp", "boa")
    clusters.feed("ape auk ass")
    clusters.mirror.skip(1)
    clusters.mirror.copy()
    with pytest.raises(GapError, match="lacks what is after"):
        clusters.fail_over()


def test_a_partition_that_was_entered_in_the_middle_and_not_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has read nothing of it since"):
        begun_in_the_middle().fail_over()


def test_a_second_failover_before_anything_is_read_looks_for_the_last_record_too(clusters: Clusters) -> None:
    clusters.fail_over()
    clusters.first.recreate(INPUT)  # restored without what was counted
    with pytest.raises(GapError, match="ends there before position"):
        clusters.fail_over(clusters.first, {})


def test_nothing_is_left_to_do_there(clusters: Clusters) -> None:
    clusters.fail_over()
    with pytest.raises(ConfigurationError, match="since a failover already"):
        clusters.fail_over()


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({"others": "first.words"}, "Expected another topic for each of its inputs and outputs: words"),
        ({INPUT: "absent"}, "absent not found in the other cluster"),
        ({INPUT: "padding"}, "has 1 partitions, and the flow knows 2 of 'words'"),
    ],
)
def test_topics_that_do_not_fit_are_refused_before_the_flow_is_touched(
    clusters: Clusters, names: dict[str, str], error: str
) -> None:
    home = clusters.store.home("notes")
    with pytest.raises((ConfigurationError, PartitionsMismatch), match=error):
        clusters.fail_over(names=names)
    assert clusters.store.home("notes") == home


def test_the_cluster_that_it_reads_is_refused(clusters: Clusters) -> None:
    with pytest.raises(ConfigurationError, match=r"reads cluster first-.* already, and there not"):
        clusters.fail_over(clusters.first, {})


def test_a_mirror_that_is_compacted_is_refused(clusters: Clusters) -> None:
    clusters.second.configure(clusters.name, compacted=True)
    with pytest.raises(ConfigurationError, match="Mirror it without compaction"):
        clusters.fail_over()


def test_a_record_of_the_same_length_is_not_taken_for_the_last_one_that_was_counted() -> None:
    """Envelopes end with their own checksum, so a checksum of the whole would be the same for all of these."""
    clusters = Clusters()
    clusters.feed("asp")
    clusters.totals.run_until_caught_up()
    clusters.feed("auk")
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy(1)
    with pytest.raises(GapError, match="ends there before position"):
        clusters.fail_over()


def test_records_that_were_wrapped_at_their_origin_are_refused(clusters: Clusters) -> None:
    clusters.totals.feed(INPUT, word("gnu"), partition=0)
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    with pytest.raises(ConfigurationError, match="wrapped at their origin"):
        clusters.fail_over()


def test_a_record_that_is_wrapped_at_its_origin_stops_the_flow_after_a_failover(clusters: Clusters) -> None:
    clusters.fail_over()
    origin = Rehearsal(totals_of_words("others"), partitions={INPUT: 1})
    origin.feed(INPUT, word("gnu"))
    (record,) = origin.log.records(INPUT)
    clusters.second.append(clusters.name, 0, record.value(), record.key())
    with pytest.raises(ServiceStopped, match="has no chain"):
        clusters.totals.run_until_caught_up()
    clusters.check()


def raw_words() -> Flow:
    flow = Flow("notes")
    flow.source(INPUT, StringValue, raw=True).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    return flow


def other_policy() -> Flow:
    flow = Flow("notes", poison="dead_letter")
    words_by_first_letter(flow, INPUT)
    return flow


def compacted_allowed() -> Flow:
    flow = Flow("notes", allow_compacted=True)
    words_by_first_letter(flow, INPUT)
    return flow


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        (republished_words, "has no stages"),
        (raw_words, "reads words without envelopes"),
        (other_policy, "has poison='dead_letter'"),
        (compacted_allowed, "allows compacted inputs"),
    ],
)
def test_a_flow_is_refused_by_name_that_knows_or_leaves_something_by_offsets(
    declared: Callable[[], Flow], error: str
) -> None:
    with pytest.raises(ConfigurationError, match=error):
        check_may_fail_over(declared().compile())


def transactional() -> Flow:
    flow = Flow("notes", transactional=True)
    words_by_first_letter(flow, INPUT).to("letters", key=first_letter, partitions=1)
    return flow


def keep_word(words: StringValue, value: StringValue) -> None:
    append_word(words, value)


def by_event_time() -> Flow:
    flow = Flow("notes")
    flow.source(INPUT, StringValue).windowed(
        "hours", Tumbling(3_600_000), key=first_letter, state=StringValue, fold=keep_word
    ).to("hours", partitions=1)
    return flow


def reminded() -> Flow:
    """Timers by the batch's clock and by event time are set in one kind of stage."""
    flow = Flow("notes")
    flow.source(INPUT, StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=remind, on_timer=no_timers
    )
    return flow


def remind(words: StringValue, value: StringValue, context: Context) -> None:
    words.value += value.value
    context.set_timer(1_000, clock="batch")


def no_timers(_state: StringValue, _timer: Timer) -> None:
    """Never called."""


def expiring() -> Flow:
    flow = Flow("notes")
    flow.source(INPUT, StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, expire_after_ms=60_000
    )
    return flow


def of_files() -> Flow:
    flow = Flow("notes", state_partitions=2)
    rows = flow.files("rows", Reading, "*.jsonl")
    rows.aggregate("totals", key=robot_of, state=StringValue, fold=keep_reading)
    return flow


def robot_of(reading: Reading) -> str:
    return reading.robot or ""


def keep_reading(_state: StringValue, _reading: Reading) -> None:
    """Never called."""


def with_sqe_keys() -> Flow:
    flow = Flow("notes")
    source = flow.source(INPUT, StringValue)
    source.to_sqe("bare", partitions=1, process_id=7)
    source.aggregate("letters", key=first_letter, state=StringValue, fold=append_word)
    return flow


def one_of_several() -> CompiledFlow:
    flow = Flow("notes")
    source = flow.source(INPUT, Reading, codec="json")
    source.ingest("readings", at="table", partition_key="robot", row_key="at_ms")
    return flow.compile().reader(Partitions.parse("0"))


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        (transactional, "is transactional"),
        (by_event_time, "takes its inputs by event time"),
        (reminded, "has timers in stage letters"),
        (expiring, "takes its inputs by event time"),
        (of_files, "reads files"),
        (with_sqe_keys, "SQE's keys"),
        (one_of_several, "is one of several readers"),
    ],
)
def test_it_is_refused_with_what_to_do(declared: Callable[[], Flow | CompiledFlow], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error) as refused:
        check_may_fail_over(declared().compile())
    assert "Begin in the other cluster under another flow name" in str(refused.value)


@pytest.mark.parametrize("whose", ["this", "the old"])
def test_a_cluster_without_an_id_is_refused(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    log = clusters.second if whose == "this" else clusters.first
    if whose == "the old":
        clusters = Clusters()
        log = clusters.first
    describe = log.describe
    with monkeypatch.context() as silent:
        silent.setattr(
            log,
            "describe",
            lambda topics: {name: replace(info, cluster="") for name, info in describe(topics).items()},
        )
        if whose == "the old":
            clusters.feed(BEFORE)
            clusters.totals.run_until_caught_up()
            clusters.mirror.copy()
        with pytest.raises(ConfigurationError, match=rf"the id of {whose} cluster is not known"):
            clusters.fail_over()
