"""A topic without envelopes that is created again is another root: it is read from 0, loudly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import PartitionsMismatch, RecreatedTopic, ServiceStopped
from sqe_chain.features.rebuilding import Reached, Rebuilding
from sqe_chain.flow import Flow
from sqe_chain.plans.inputs import commit
from sqe_chain.plans.planning import layout_plan
from sqe_chain.ports import Commit
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.states import Claim
from sqe_chain.testing import Crash, Rehearsal
from tests.support.number_flows import add
from tests.support.typed_results import states_as


def decode(value: bytes) -> Int64Value:
    return Int64Value(value=int(value))


def summing() -> Flow:
    flow = Flow("sums")
    flow.source("raw", decode, raw=True).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    return flow


def summing_envelopes() -> Flow:
    flow = Flow("sums")
    flow.source("raw", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    return flow


def republishing() -> Flow:
    flow = Flow("pass-on")
    flow.source("raw", decode, raw=True).to("out", partitions=1)
    return flow


def notices(rehearsal: Rehearsal) -> list[str]:
    return [
        str(event["text"]) for event in rehearsal.events("notice") if "created again" in str(event["text"])
    ]


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("flow", [summing, republishing])
def test_it_may_have_other_partitions_and_every_service_reports_it(
    flow: Callable[[], Flow], partitions: int, running: bool
) -> None:
    """Nothing waits for partitions that are gone, and one notice names both topics and what becomes of each."""
    rehearsal = Rehearsal(flow(), partitions={"raw": 2})
    for partition in (0, 1):
        rehearsal.feed("raw", b"3", partition=partition)
    rehearsal.run_until_caught_up()
    known = rehearsal.log.describe(["raw"])["raw"].topic_id.hex()
    rehearsal.script.events.clear()
    rehearsal.log.recreate("raw", partitions, keep_commits=True)
    rehearsal.feed("raw", b"4", partition=0)
    if not running:
        rehearsal.restart()
    rehearsal.run_until_caught_up()
    if rehearsal.flow.stages:
        assert states_as(Int64Value, rehearsal, "sum")[b"all"].value == 10
    else:
        assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")] == [3, 3, 4]
    assert not rehearsal.events("waiting") or running
    (text,) = notices(rehearsal)
    now = rehearsal.log.describe(["raw"])["raw"].topic_id.hex()
    for part in ("'raw'", known, now, "[0] up to 1", "stays counted", "from offset 0"):
        assert part in text
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert len(notices(rehearsal)) == 1
    assert set(rehearsal.commits()) == {("raw", number) for number in range(partitions)}


@pytest.mark.parametrize("flow", [summing, republishing])
def test_a_topic_made_smaller_before_the_commit_is_not_waited_for(flow: Callable[[], Flow]) -> None:
    """What was read of it is counted; the new one is read by the next batch."""
    rehearsal, done = Rehearsal(flow(), partitions={"raw": 2}), list[str]()
    for partition in (0, 1):
        rehearsal.feed("raw", b"3", partition=partition)
    rehearsal.start()

    def recreate() -> None:
        rehearsal.log.recreate("raw", 1)
        done.append("raw")

    if rehearsal.flow.stages:
        rehearsal.meanwhile(recreate, method="commit")
    else:  # its first commit notes what the batch is
        rehearsal.meanwhile(recreate, method="commit", at=1)
    rehearsal.batch()
    rehearsal.feed("raw", b"4", partition=0)
    rehearsal.run_until_caught_up()
    assert done == ["raw"]
    if rehearsal.flow.stages:
        assert states_as(Int64Value, rehearsal, "sum")[b"all"].value == 10
    else:
        assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")] == [3, 3, 4]


def test_offsets_of_a_topic_are_not_committed_for_the_one_that_was_created_in_its_place() -> None:
    """It has a partition of that number, too, but offsets of the old one prove nothing for it."""
    log = MemoryLog(uuid4().hex)
    for topic in ("again", "same"):
        log.create_topic(topic, 2)
    ids = {topic: info.topic_id.hex() for topic, info in log.describe(["again", "same"]).items()}
    commits = {(topic, partition): Commit(7, "") for topic in ids for partition in (0, 1)}
    log.recreate("again", 1)
    commit(log, partial(log.commit, "group"), commits, ids)
    assert log.committed("group", [("again", 0), ("same", 0), ("same", 1)]).keys() == {
        ("same", 0),
        ("same", 1),
    }


def test_a_republisher_reports_where_it_begins_when_its_commits_are_gone() -> None:
    """Kafka deletes commits with their topic, so that it was created again cannot be known for sure."""
    rehearsal = Rehearsal(republishing())
    rehearsal.feed("raw", b"1")
    rehearsal.run_until_caught_up()
    rehearsal.script.events.clear()
    rehearsal.log.recreate("raw")
    rehearsal.log.forget("pass-on")
    rehearsal.restart()
    (text,) = notices(rehearsal)
    assert "has no commit for [0] from 0" in text
    assert rehearsal.events("recovered") == [{"partitions": 1, "inputs": 0}]


def test_services_with_and_without_stages_recover_in_the_same_words() -> None:
    recovered = []
    for flow in (summing(), republishing()):
        rehearsal = Rehearsal(flow)
        rehearsal.start()
        recovered.append(rehearsal.events("recovered")[0])
    assert recovered[1].items() <= recovered[0].items()


@pytest.mark.parametrize("stages", [0, 1])
def test_an_output_made_smaller_while_it_is_published_stops_by_name(stages: int) -> None:
    flow = Flow("wide")
    source = flow.source("raw", decode, raw=True)
    if stages:
        summed = source.aggregate("sum", key=lambda _: "c", state=Int64Value, fold=add)
        summed.changes().to("out", partitions=4)
    else:
        source.to("out", partitions=4, key=lambda _: "c")
    rehearsal = Rehearsal(flow)
    rehearsal.feed("raw", b"1")
    rehearsal.start()
    rehearsal.meanwhile(lambda: rehearsal.log.recreate("out", 1), method="publish")
    with pytest.raises(PartitionsMismatch, match="'out' has 1 partitions, declared are 4"):
        rehearsal.batch()


def recreate_before_it_is_read(rehearsal: Rehearsal, topic: str, values: Sequence[object]) -> None:
    """Right before a topic is read it is created again, and filled; fetches do not show it."""

    def recreate() -> None:
        rehearsal.log.recreate(topic)
        for value in values:
            rehearsal.feed(topic, value)

    rehearsal.meanwhile(recreate, method="read")


@pytest.mark.parametrize("records", [3, 25_000])
@pytest.mark.parametrize("raw", [True, False])
def test_what_is_read_of_the_new_topic_is_not_published_as_if_it_were_of_the_old_one(
    records: int, *, raw: bool
) -> None:
    """Fetches carry no topic ids: a republisher, too, looks at them before it publishes what it has read."""
    flow = Flow("pass-on")
    (flow.source("in", decode, raw=True) if raw else flow.source("in", Int64Value)).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for number in range(records):
        rehearsal.feed("in", b"%d" % number if raw else Int64Value(value=number))
    rehearsal.start()
    recreate_before_it_is_read(rehearsal, "in", [b"7" if raw else Int64Value(value=7)] * records)
    if raw:
        rehearsal.run_until_caught_up()
        assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")] == [
            7
        ] * records
        assert {one.links[-1].topic_id for one in rehearsal.chains("out")} == set(
            rehearsal.log.topic_ids(["in"]).values()
        )
        return
    with pytest.raises(RecreatedTopic, match="Reset the group's offsets"):
        rehearsal.batch()
    assert not rehearsal.log.records("out")


@pytest.mark.parametrize("raw", [True, False])
def test_a_service_with_stages_counts_what_is_read_of_the_new_topic_as_that_of_another_root(
    *, raw: bool
) -> None:
    rehearsal = Rehearsal(summing() if raw else summing_envelopes())
    for _ in range(3):
        rehearsal.feed("raw", b"1" if raw else Int64Value(value=1))
    rehearsal.start()
    recreate_before_it_is_read(rehearsal, "raw", [b"7" if raw else Int64Value(value=7)] * 3)
    if raw:
        rehearsal.run_until_caught_up()
        assert states_as(Int64Value, rehearsal, "sum")[b"all"].value == 3 * 7
        assert rehearsal.ended == 0
        return
    with pytest.raises(RecreatedTopic, match="The only way on"):
        rehearsal.batch()
    assert not states_as(Int64Value, rehearsal, "sum")


def test_with_an_unfinished_plan_on_it_the_service_stops() -> None:
    rehearsal = Rehearsal(summing())
    rehearsal.feed("raw", b"1")
    rehearsal.crash(step=6)
    with pytest.raises(Crash):
        rehearsal.batch()
    rehearsal.log.recreate("raw")
    with pytest.raises(RecreatedTopic, match="raw"):
        rehearsal.start()


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("flow", [summing, summing_envelopes])
def test_what_was_counted_of_the_old_topic_cannot_be_folded_again(
    flow: Callable[[], Flow], noticed: bool
) -> None:
    """The new topic is not counted in its place either: it was not read yet, and nobody would hear of it."""
    rehearsal = Rehearsal(flow())
    raw = flow is summing
    rehearsal.feed("raw", b"3" if raw else Int64Value(value=3))
    rehearsal.run_until_caught_up()
    rehearsal.log.recreate("raw")
    for _ in range(2):
        rehearsal.feed("raw", b"10" if raw else Int64Value(value=10))
    if noticed and raw:
        rehearsal.restart()
    before = states_as(Int64Value, rehearsal, "sum")
    with pytest.raises(ServiceStopped, match="'raw' was created again"):
        rehearsal.rebuild()
    assert states_as(Int64Value, rehearsal, "sum") == before
    if raw:
        rehearsal.restart()
        rehearsal.run_until_caught_up()
        assert states_as(Int64Value, rehearsal, "sum")[b"all"].value == 23


def test_without_the_lost_store_the_commits_show_that_a_topic_was_created_again() -> None:
    store = MemoryStore(uuid4().hex)
    flow = Flow("sums")
    both = flow.source(["raw", "other"], decode, raw=True)
    both.aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    rehearsal = Rehearsal(flow, store=store)
    rehearsal.feed("raw", b"3")
    rehearsal.feed("other", b"3")
    rehearsal.run_until_caught_up()
    store.restore_all()
    rehearsal.log.recreate("raw", keep_commits=True)
    rehearsal.feed("raw", b"10")
    with pytest.raises(ServiceStopped, match="'raw' was created again"):
        rehearsal.rebuild()


def recreate_before_it_is_described(rehearsal: Rehearsal, question: int, value: bytes) -> None:
    """Right before this question for its topics, the input is created again, with one record."""

    def recreate() -> None:
        rehearsal.log.recreate("raw")
        rehearsal.log.append("raw", 0, value)

    rehearsal.meanwhile(recreate, method="describe", at=question)


@pytest.mark.parametrize("value", [b"10", b"no number"])
@pytest.mark.parametrize("question", range(6))
def test_a_topic_created_again_while_it_is_folded_again_changes_nothing(question: int, value: bytes) -> None:
    """No record is to blame that was to be read after all that had been counted, if at all."""
    rehearsal = Rehearsal(summing())
    rehearsal.feed("raw", b"3")
    rehearsal.run_until_caught_up()
    recreate_before_it_is_described(rehearsal, question, value)
    with pytest.raises(ServiceStopped, match=r"'raw' was .*created again"):
        rehearsal.rebuild()
    assert rehearsal.script.injected == [], "it was created again"
    if value != b"10":
        return
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert states_as(Int64Value, rehearsal, "sum")[b"all"].value == 13


def publishing() -> Flow:
    flow = Flow("sums")
    summed = flow.source("raw", decode, raw=True).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=add
    )
    summed.changes().to("out", partitions=1)
    return flow


def test_after_a_rebuild_a_topic_created_again_is_counted_and_published() -> None:
    """The offsets up to which the flow is silent are those of the old topic."""
    rehearsal = Rehearsal(publishing(), partitions={"raw": 2})
    rehearsal.feed("raw", b"1")
    rehearsal.feed("raw", b"2")
    rehearsal.run_until_caught_up()
    rehearsal.rebuild()
    rehearsal.log.recreate("raw")
    rehearsal.feed("raw", b"10")
    rehearsal.feed("raw", b"20", partition=1)
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert states_as(Int64Value, rehearsal, "sum")[b"all"].value == 33
    assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")][-1] == 33
    rehearsal.feed("raw", b"40", partition=1)
    rehearsal.run_until_caught_up()
    assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")][-1] == 73


def test_what_was_known_of_the_partitions_of_the_old_topic_holds_for_none_of_the_new_one() -> None:
    rehearsal = Rehearsal(publishing(), partitions={"raw": 1})
    rehearsal.feed("raw", b"1")
    rehearsal.run_until_caught_up()
    service = rehearsal.start()
    assert isinstance(service, StagedService)
    assert service.last is not None
    times = {("raw", 0): EventTimes(1), ("other", 0): EventTimes(2)}
    offsets = {("raw", 0): 1, ("other", 0): 2}
    reached, heard = Reached(times, None, 7), Reached(times, None, 8)
    behind = Rebuilding(silent_until=offsets, published_until=offsets, reached=reached, heard=heard)
    last = service.last.with_sections(behind)
    rehearsal.log.recreate("raw")
    infos = rehearsal.log.describe(["raw"])
    plan = layout_plan(last, [], Claim(2, "run"), 0, last.layout, infos, {("raw", 0): (0, False)})
    found = Rebuilding.of(plan)
    assert found.silent_until == found.published_until == {("other", 0): 2}
    assert found.reached == Reached({("other", 0): EventTimes(2)}, None, 7)
    assert found.heard == Reached({("other", 0): EventTimes(2)}, None, 8)


def test_a_topic_created_again_before_a_rewound_flow_has_read_it_again_stops_it() -> None:
    """What the flow had counted and published of it is not in its states any more, and can never be again."""
    rehearsal = Rehearsal(publishing())
    for _ in range(3):
        rehearsal.feed("raw", b"1")
    rehearsal.run_until_caught_up()
    rehearsal.rebuild({("raw", 0): 1})
    rehearsal.log.recreate("raw")
    rehearsal.feed("raw", b"10")
    with pytest.raises(RecreatedTopic, match="raw"):
        rehearsal.restart()


def test_a_republisher_reads_it_from_the_beginning_too() -> None:
    rehearsal = Rehearsal(republishing())
    rehearsal.feed("raw", b"1")
    rehearsal.run_until_caught_up()
    rehearsal.log.recreate("raw")
    rehearsal.feed("raw", b"2")
    rehearsal.run_until_caught_up()
    rehearsal.log.recreate("raw")
    rehearsal.feed("raw", b"3")
    rehearsal.restart()
    rehearsal.run_until_caught_up()
    found = [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")]
    assert found == [1, 2, 3]
    assert len({envelope.lane for envelope in rehearsal.published("out")}) == 3
