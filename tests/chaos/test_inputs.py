"""What can happen to inputs on a real broker: retention, topics created again, transactions, growth, poison.

Goal: each is counted exactly, or stops the service by name; through kills as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from services._proto.fastening_pb2 import Fastening
from sqe_chain.envelope.partitioner import partition_of
from tests.support.brokers import Admin
from tests.support.chaos_flows import REFUSED_BEFORE, REFUSED_IN_FIRST, REFUSED_IN_SECOND, ROBOTS, split
from tests.support.suites import some
from tests.support.totals_deployment import TOPICS, TotalsDeployment
from tests.support.waiting import PATIENCE_S

Deploy = Callable[..., TotalsDeployment]
POISONED = 1
"""Exit status of a failure in the flow."""


@pytest.fixture
def admin(kafka: str) -> Admin:
    return Admin(kafka)


def republish(deployment: TotalsDeployment, count: int = 20) -> None:
    """New messages, through the republisher."""
    deployment.feed(count)
    deployment.run_once("standard")


# --- lost and recreated ---------------------------------------------------------------------------


def test_retention_that_passed_the_position_stops_by_name(deployment: TotalsDeployment, admin: Admin) -> None:
    """Records are deleted before they were counted: the service stops, whether it is running or started again."""
    republish(deployment)
    run = deployment.start("totals")
    deployment.wait_for_no_lag(run)
    run.pause()
    republish(deployment)
    lags = deployment.lags("totals", "mid")
    assert lags != {}
    admin.delete_records({place: end for place, (_, end) in lags.items()})
    run.resume()
    assert "retention" in run.stopped_by("LostOffsets")
    assert "retention" in deployment.start("totals").stopped_by("LostOffsets")


def recreate(deployment: TotalsDeployment, admin: Admin, topic: str, partitions: int) -> None:
    admin.delete(deployment.topic(topic))
    deployment.log.create_topic(deployment.topic(topic), partitions)


def test_a_recreated_input_stops_by_name(deployment: TotalsDeployment, admin: Admin) -> None:
    """Offsets of another topic with the same name mean nothing: an aggregator stops, running or started again."""
    republish(deployment)
    run = deployment.start("totals")
    deployment.wait_for_no_lag(run)
    run.pause()
    recreate(deployment, admin, "mid", 3)
    run.resume()
    assert deployment.topic("mid") in run.stopped_by("RecreatedTopic")
    assert deployment.topic("mid") in deployment.start("totals").stopped_by("RecreatedTopic")


def test_a_topic_recreated_in_between_brings_nothing_twice(deploy: Deploy, admin: Admin) -> None:
    """From raw through pre and mid to totals: pre is created and filled again, so old roots arrive on new lanes.

    The running republisher stops by name. Started again it begins at the start, for with a topic Kafka forgets its
    commits. Then the totals stop by name, and with recreated='skip' count what they never counted, and no more.
    """
    deployment = deploy(topics={**TOPICS, "pre": 2})
    deployment.feed(20)
    deployment.run_once("early")
    relay = deployment.start("relay")
    deployment.wait_for_no_lag(relay, "relay", "pre")
    deployment.run_once("totals")
    relay.pause()
    deployment.feed(20)
    deployment.run_until_killed(
        "early", at="published"
    )  # pre is deleted before anyone has read these records
    recreate(deployment, admin, "pre", 2)
    relay.resume()
    assert deployment.topic("pre") in relay.stopped_by("RecreatedTopic")
    admin.delete_group(f"{deployment.name}-early")  # it starts over, too
    deployment.run_once("early")
    begun = [notice["text"] for notice in deployment.run_once("relay").all("notice")]
    assert any("has no commit for [0] from 0, [1] from 0" in str(text) for text in begun)
    assert "recreated='skip'" in deployment.start("totals").stopped_by("RecreatedTopic")
    deployment.options["totals"] = {"recreated": "skip"}
    deployment.run_until_killed("totals", at="recovered,sealed")
    deployment.run_once("totals")
    deployment.check()


# --- transactions and compaction ------------------------------------------------------------------


def transactional(kafka: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "transactional.id": uuid4().hex,
            "transaction.timeout.ms": 900_000,  # the broker's own limit: an open one stays open meanwhile
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def begin(producer: Producer, deployment: TotalsDeployment) -> list[Fastening]:
    """A transaction with records in every partition of raw and mid; what they are worth."""
    producer.begin_transaction()
    units: list[Fastening] = []
    for number in range(12):
        fastening = deployment.fastening(gateway=number % 4)
        producer.produce(deployment.topic("raw"), deployment.wrap_fastening(fastening), partition=number % 2)
        units += split(fastening)
        fastening = deployment.fastening(gateway=4, robot=number % ROBOTS)  # they lie in all partitions
        place = partition_of(fastening.robot.encode(), 3)
        producer.produce(deployment.topic("mid"), deployment.wrap_fastening(fastening), partition=place)
        units.append(fastening)
    producer.flush(PATIENCE_S)
    return units


def test_only_committed_transactions_are_counted_and_open_ones_are_waited_for(
    deploy: Deploy, kafka: str
) -> None:
    """Aborted records are never counted; records after an open transaction only once it has ended; through kills."""
    deployment = deploy("sqlite")
    one, other = transactional(kafka), transactional(kafka)
    deployment.expect(begin(one, deployment))
    one.commit_transaction(PATIENCE_S)
    begin(one, deployment)
    one.abort_transaction(PATIENCE_S)
    held = begin(other, deployment)
    deployment.republish_and_die()
    deployment.run_once("standard")  # its own records are after the open transaction, in mid
    deployment.run_until_killed("totals", at="recovered,sealed")
    deployment.run_once("totals")
    assert set(deployment.states("per-robot")) == {
        r for r in deployment.expected.robots if r.startswith("robot-4-")
    }
    deployment.feed(10)
    before = deployment.stored_contents()
    deployment.run_once("standard")
    deployment.run_once("totals")
    assert deployment.stored_contents()[3:] == before[3:]  # except the claim and its timestamps
    deployment.expect(held)
    other.commit_transaction(PATIENCE_S)
    deployment.run_once("standard")
    deployment.run_until_killed("totals", at="recovered,sealed,published")
    deployment.run_once("totals")
    deployment.check(ordered=False)  # held records are added late to the expected ones, and arrive in order
    deployment.check_no_lag("standard", "raw")


def test_a_compacted_input_is_refused_unless_allowed(deployment: TotalsDeployment, admin: Admin) -> None:
    """Records vanish from a compacted topic: a service stops, running or started, until its flow allows it."""
    republish(deployment)
    run = deployment.start("totals")
    deployment.wait_for_no_lag(run)
    admin.configure(deployment.topic("mid"), cleanup_policy="compact")
    run.stopped_by("CompactedInput")
    deployment.start("totals").stopped_by("CompactedInput")
    deployment.options["totals"] = {"allow_compacted": True}
    republish(deployment)
    deployment.run_once("totals")
    deployment.check()


# --- growth ---------------------------------------------------------------------------------------


def test_partitions_grow_while_the_republisher_is_dead_before_its_commit(
    deployment: TotalsDeployment, admin: Admin
) -> None:
    """Root, intermediate and output topic grow, each between a publication and its repetition.

    At the end the republisher is rewound behind all of that: nothing counts twice.
    """
    deployment.feed(20)
    for topic, partitions in (("raw", 3), ("mid", 5), ("deltas", 4)):
        deployment.republish_and_die(again=topic != "raw")
        deployment.run_until_killed("totals", at="recovered,sealed")
        admin.add_partitions(deployment.topic(topic), partitions)
        deployment.feed(20)
        deployment.feed(5, gateways=[5], partitions=3)  # a new gateway reports into the new partition of raw
    deployment.republish_and_die(again=True)
    deployment.run_once("totals")
    admin.delete_group(f"{deployment.name}-standard")
    deployment.run_once("standard")
    last = deployment.run_once("totals").all("committed")
    assert sum(line["replays"] for line in last) == sum(line["inputs"] for line in last) > 80
    deployment.check()
    deployment.check_no_lag("standard", "raw")


def test_partitions_that_are_added_to_inputs_of_running_services_are_taken_up(
    deployment: TotalsDeployment, admin: Admin
) -> None:
    """Root and intermediate topic grow while both services run: they continue, and count the new partitions."""
    standard, totals = deployment.start("standard"), deployment.start("totals")
    deployment.feed(20)
    deployment.wait_until_caught_up(standard, totals)
    admin.add_partitions(deployment.topic("raw"), 3)
    admin.add_partitions(deployment.topic("mid"), 4)
    deployment.feed(20)
    deployment.feed(5, gateways=[5], partitions=3)
    late = deployment.fastening(gateway=6)
    deployment.expect([late])
    deployment.produce("mid", [(3, deployment.wrap_fastening(late))])
    deployment.wait_until_caught_up(standard, totals)
    assert [standard.terminate(), totals.terminate()] == [0, 0]
    deployment.check()


# --- poison ---------------------------------------------------------------------------------------

KILLS = ("recovered,sealed", "claimed,published", "recovered,sealed,persisted")
REFUSALS = (REFUSED_BEFORE, REFUSED_IN_FIRST, REFUSED_IN_SECOND)


def poison(deployment: TotalsDeployment, refusals: Iterable[int] = REFUSALS) -> None:
    """Among good messages: values that are not envelopes, and inputs that a user function refuses before and in each stage."""
    for refusal in refusals:
        deployment.feed(5)
        deployment.produce(
            "raw", [(0, deployment.wrap_fastening(deployment.fastening(gateway=0, failed=refusal)))]
        )
        deployment.produce("raw", [(1, b"no envelope at all")])
        deployment.produce("mid", [(2, b"neither is this")])
    deployment.feed(5)


def skipped_records(
    deployment: TotalsDeployment, flow: str
) -> dict[tuple[str, int, int], tuple[str, bytes | None]]:
    """Coordinates of skipped inputs -> error and value; all copies of a dead-letter record must be equal."""
    found: dict[tuple[str, int, int], tuple[str, bytes | None]] = {}
    for message in deployment.records(f"{deployment.name}-{flow}.dead-letters"):
        reasons = {name: (value or b"").decode() for name, value in message.headers() or []}
        assert reasons["sqe-flow"] == f"{deployment.name}-{flow}"
        place = (reasons["sqe-topic"], int(reasons["sqe-partition"]), int(reasons["sqe-offset"]))
        record = (reasons["sqe-error"], message.value())
        assert found.setdefault(place, record) == record
    return found


def poisoned(deployment: TotalsDeployment, policy: str) -> int:
    """Poison, with kills after seal, publication and the first persist, and in a finished run; how often."""
    deployment.options |= {"standard": {"poison": policy}, "totals": {"poison": policy}}
    kills = some(f"kills and poison, {policy}", KILLS, 2)
    for number, at in enumerate(kills):
        poison(deployment)
        deployment.republish_and_die(again=number > 0)
        deployment.run_until_killed("totals", at=at)
    deployment.run_once("standard")
    deployment.run_once("totals")
    deployment.check()
    deployment.check_no_lag("standard", "raw")
    return len(kills)


def test_poison_is_skipped_in_all_stages_and_outputs_through_kills(deploy: Deploy) -> None:
    """Policy skip: everything else is counted exactly, once."""
    poisoned(deploy("sqlite"), "skip")


def test_dead_letter_records_keep_what_was_skipped_through_kills(deployment: TotalsDeployment) -> None:
    """Policy dead_letter: each skipped message is there, with unchanged bytes, once for its coordinates."""
    for flow in ("standard", "totals"):
        deployment.log.create_topic(f"{deployment.name}-{flow}.dead-letters", 1)
    times = poisoned(deployment, "dead_letter")
    values = {
        (message.topic(), message.partition(), message.offset()): message.value()
        for topic in ("raw", "mid")
        for message in deployment.records(topic)
    }
    skipped = {flow: skipped_records(deployment, flow) for flow in ("standard", "totals")}
    for found in skipped.values():
        assert {place: value for place, (_, value) in found.items()} == {p: values[p] for p in found}
    errors = {flow: Counter(error for error, _ in found.values()) for flow, found in skipped.items()}
    assert errors == {
        "standard": {"NotAnEnvelope": times * len(REFUSALS)},
        "totals": {"NotAnEnvelope": times * len(REFUSALS), "RefusedError": times * len(REFUSALS)},
    }


def test_poison_stops_a_service_by_name_and_changes_nothing(deployment: TotalsDeployment) -> None:
    """Policy stop: republisher and aggregator stop at it, again after a restart; the bad batch leaves no trace."""
    republish(deployment)
    deployment.run_once("totals")
    before = deployment.stored_contents()
    deployment.produce("mid", [(2, b"neither is this")])
    deployment.produce("raw", [(1, b"no envelope at all")])
    for _ in range(2):
        for flow, topic in (("standard", "raw"), ("totals", "mid")):
            assert deployment.topic(topic) in deployment.start(flow).stopped_by("PoisonError", POISONED)
    assert deployment.stored_contents()[3:] == before[3:]
