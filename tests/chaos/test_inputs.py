"""What may become of inputs on a real broker: retention, topics created again, transactions, growth, poison.

Goal: each is counted exactly, or stops the service by name; through kills as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from services._proto.fastening_pb2 import Fastening
from sqe_chain.dev import KafkaServer
from sqe_chain.partitioner import partition_of
from tests.support.brokers import Admin
from tests.support.chaos_flows import REFUSED_BEFORE, REFUSED_IN_FIRST, REFUSED_IN_SECOND, ROBOTS, split
from tests.support.service_processes import TIMEOUT_S
from tests.support.totals_deployment import TOPICS, Plant

pytestmark = pytest.mark.timeout(600)
Plants = Callable[..., Plant]
POISONED = 1
"""Exit status of a failure in the flow."""


@pytest.fixture
def admin(broker: KafkaServer) -> Admin:
    return Admin(broker.bootstrap)


def republish(plant: Plant, count: int = 20) -> None:
    """New messages, through the republisher."""
    plant.feed(count)
    plant.once("standard")


# --- lost and recreated ---------------------------------------------------------------------------


def test_retention_that_passed_the_position_stops_by_name(plant: Plant, admin: Admin) -> None:
    """Records are deleted before they were counted: the service stops, running or started again."""
    republish(plant)
    run = plant.start("totals")
    plant.wait_for_no_lag(run)
    run.pause()
    republish(plant)
    lags = plant.lags("totals", "mid")
    assert lags != {}
    admin.delete_records({place: end for place, (_, end) in lags.items()})
    run.resume()
    assert "retention" in run.stopped_by("LostOffsets")
    assert "retention" in plant.start("totals").stopped_by("LostOffsets")


def recreate(plant: Plant, admin: Admin, topic: str, partitions: int) -> None:
    admin.delete(plant.topic(topic))
    plant.log.create_topic(plant.topic(topic), partitions)


def test_a_recreated_input_stops_by_name(plant: Plant, admin: Admin) -> None:
    """Offsets of another topic with the same name prove nothing: an aggregator stops, running or started again."""
    republish(plant)
    run = plant.start("totals")
    plant.wait_for_no_lag(run)
    run.pause()
    recreate(plant, admin, "mid", 3)
    run.resume()
    assert plant.topic("mid") in run.stopped_by("RecreatedTopic")
    assert plant.topic("mid") in plant.start("totals").stopped_by("RecreatedTopic")


def test_a_topic_recreated_in_between_brings_nothing_twice(plants: Plants, admin: Admin) -> None:
    """From raw by pre and mid to totals: pre is created again and filled anew, old roots come on new lanes.

    The republisher that runs stops by name. Started again it begins anew, for with a topic Kafka forgets its
    commits; then the totals stop by name, and with recreated='skip' count what they never counted, and no more.
    """
    plant = plants(topics={**TOPICS, "pre": 2})
    plant.feed(20)
    plant.once("early")
    relay = plant.start("relay")
    plant.wait_for_no_lag(relay, "relay", "pre")
    plant.once("totals")
    relay.pause()
    plant.feed(20)
    plant.dies("early", at="published")  # pre goes before anyone has read that
    recreate(plant, admin, "pre", 2)
    relay.resume()
    assert plant.topic("pre") in relay.stopped_by("RecreatedTopic")
    admin.forget_group(f"{plant.name}-early")  # it begins anew, too
    plant.once("early")
    begun = [told["text"] for told in plant.once("relay").all("notice")]
    assert any("has no commit for [0] from 0, [1] from 0" in str(text) for text in begun)
    assert "recreated='skip'" in plant.start("totals").stopped_by("RecreatedTopic")
    plant.options["totals"] = {"recreated": "skip"}
    plant.dies("totals", at="recovered,sealed")
    plant.once("totals")
    plant.check()


# --- transactions and compaction ------------------------------------------------------------------


def transactional(broker: KafkaServer) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": uuid4().hex})
    producer.init_transactions(TIMEOUT_S)
    return producer


def begin(producer: Producer, plant: Plant) -> list[Fastening]:
    """A transaction with records in every partition of raw and mid; what they are worth."""
    producer.begin_transaction()
    units: list[Fastening] = []
    for number in range(12):
        fastening = plant.fastening(gateway=number % 4)
        producer.produce(plant.topic("raw"), plant.wrapped(fastening), partition=number % 2)
        units += split(fastening)
        fastening = plant.fastening(gateway=4, robot=number % ROBOTS)  # they lie in all partitions
        place = partition_of(fastening.robot.encode(), 3)
        producer.produce(plant.topic("mid"), plant.wrapped(fastening), partition=place)
        units.append(fastening)
    producer.flush(TIMEOUT_S)
    return units


def test_only_committed_transactions_are_counted_and_open_ones_are_waited_for(
    plants: Plants, broker: KafkaServer
) -> None:
    """Aborted records are never counted; those behind an open transaction when it has ended; through kills."""
    plant = plants("sqlite")
    one, other = transactional(broker), transactional(broker)
    plant.expect(begin(one, plant))
    one.commit_transaction(TIMEOUT_S)
    begin(one, plant)
    one.abort_transaction(TIMEOUT_S)
    held = begin(other, plant)
    plant.republish_and_die()
    plant.once("standard")  # its own records stand behind the open transaction, in mid
    plant.dies("totals", at="recovered,sealed")
    plant.once("totals")
    assert set(plant.states("per-robot")) == {r for r in plant.expected.robots if r.startswith("robot-4-")}
    plant.feed(10)
    before = plant.everything()
    plant.once("standard")
    plant.once("totals")
    assert plant.everything()[3:] == before[3:]  # but for the claim and its stamps
    plant.expect(held)
    other.commit_transaction(TIMEOUT_S)
    plant.once("standard")
    plant.dies("totals", at="recovered,sealed,published")
    plant.once("totals")
    plant.check(ordered=False)  # what was held is added late to what is expected, and comes in order
    plant.check_no_lag("standard", "raw")


def test_a_compacted_input_is_refused_unless_allowed(plant: Plant, admin: Admin) -> None:
    """Records vanish from a compacted topic: a service stops, running or started, until its flow allows it."""
    republish(plant)
    run = plant.start("totals")
    plant.wait_for_no_lag(run)
    admin.configure(plant.topic("mid"), cleanup_policy="compact")
    run.stopped_by("CompactedInput")
    plant.start("totals").stopped_by("CompactedInput")
    plant.options["totals"] = {"allow_compacted": True}
    republish(plant)
    plant.once("totals")
    plant.check()


# --- growth ---------------------------------------------------------------------------------------


def test_partitions_grow_while_the_republisher_is_dead_before_its_commit(plant: Plant, admin: Admin) -> None:
    """Root, intermediate and output topic grow, each between a publication and its repetition.

    At the end the republisher is rewound behind all of that: nothing counts twice.
    """
    plant.feed(20)
    for topic, partitions in (("raw", 3), ("mid", 5), ("deltas", 4)):
        plant.republish_and_die()
        plant.dies("totals", at="recovered,sealed")
        admin.grow(plant.topic(topic), partitions)
        plant.feed(20)
        plant.feed(5, gateways=[5], partitions=3)  # a new gateway reports into the new partition of raw
    plant.republish_and_die()
    plant.once("totals")
    admin.forget_group(f"{plant.name}-standard")
    plant.once("standard")
    last = plant.once("totals").all("committed")
    assert sum(line["replays"] for line in last) == sum(line["inputs"] for line in last) > 80
    plant.check()
    plant.check_no_lag("standard", "raw")


def test_partitions_that_are_added_to_inputs_of_running_services_are_taken_up(
    plant: Plant, admin: Admin
) -> None:
    """Root and intermediate topic grow under both services: they go on, and what is in the new partitions counts."""
    standard, totals = plant.start("standard"), plant.start("totals")
    plant.feed(20)
    plant.settle(standard, totals)
    admin.grow(plant.topic("raw"), 3)
    admin.grow(plant.topic("mid"), 4)
    plant.feed(20)
    plant.feed(5, gateways=[5], partitions=3)
    late = plant.fastening(gateway=6)
    plant.expect([late])
    plant.produce("mid", [(3, plant.wrapped(late))])
    plant.settle(standard, totals)
    assert [standard.terminate(), totals.terminate()] == [0, 0]
    plant.check()


# --- poison ---------------------------------------------------------------------------------------

REFUSALS = (REFUSED_BEFORE, REFUSED_IN_FIRST, REFUSED_IN_SECOND)


def poison(plant: Plant, refusals: Iterable[int] = REFUSALS) -> None:
    """Among good messages: what is no envelope, and what a user's function refuses before and in each stage."""
    for refusal in refusals:
        plant.feed(5)
        plant.produce("raw", [(0, plant.wrapped(plant.fastening(gateway=0, failed=refusal)))])
        plant.produce("raw", [(1, b"no envelope at all")])
        plant.produce("mid", [(2, b"neither is this")])
    plant.feed(5)


def letters(plant: Plant, flow: str) -> dict[tuple[str, int, int], tuple[str, bytes | None]]:
    """Coordinates of what a flow left out -> error and value; each with the same in all its copies."""
    found: dict[tuple[str, int, int], tuple[str, bytes | None]] = {}
    for message in plant.records(f"{plant.name}-{flow}.dead-letters"):
        reasons = {name: (value or b"").decode() for name, value in message.headers() or []}
        assert reasons["sqe-flow"] == f"{plant.name}-{flow}"
        place = (reasons["sqe-topic"], int(reasons["sqe-partition"]), int(reasons["sqe-offset"]))
        letter = (reasons["sqe-error"], message.value())
        assert found.setdefault(place, letter) == letter
    return found


def poisoned(plant: Plant, policy: str) -> None:
    """Poison goes through kills behind seal, publication and the first persist, and through a finished run."""
    plant.options |= {"standard": {"poison": policy}, "totals": {"poison": policy}}
    for at in ("recovered,sealed", "claimed,published", "recovered,sealed,persisted"):
        poison(plant)
        plant.republish_and_die()
        plant.dies("totals", at=at)
    plant.once("standard")
    plant.once("totals")
    plant.check()
    plant.check_no_lag("standard", "raw")


def test_skipped_poison_is_left_out_of_all_stages_and_outputs_through_kills(plants: Plants) -> None:
    """Policy skip: everything else is counted exactly, once."""
    poisoned(plants("sqlite"), "skip")


def test_dead_letters_keep_what_was_left_out_through_kills(plant: Plant) -> None:
    """Policy dead_letter: each message left out stands there, its bytes unchanged, once for its coordinates."""
    for flow in ("standard", "totals"):
        plant.log.create_topic(f"{plant.name}-{flow}.dead-letters", 1)
    poisoned(plant, "dead_letter")
    values = {
        (message.topic(), message.partition(), message.offset()): message.value()
        for topic in ("raw", "mid")
        for message in plant.records(topic)
    }
    left_out = {flow: letters(plant, flow) for flow in ("standard", "totals")}
    for found in left_out.values():
        assert {place: value for place, (_, value) in found.items()} == {p: values[p] for p in found}
    errors = {flow: Counter(error for error, _ in found.values()) for flow, found in left_out.items()}
    assert errors == {
        "standard": {"NotAnEnvelope": 3 * len(REFUSALS)},
        "totals": {"NotAnEnvelope": 3 * len(REFUSALS), "RefusedError": 3 * len(REFUSALS)},
    }


def test_poison_stops_a_service_by_name_and_changes_nothing(plant: Plant) -> None:
    """Policy stop: republisher and aggregator stop at it, again after a restart; the bad batch leaves no trace."""
    republish(plant)
    plant.once("totals")
    before = plant.everything()
    plant.produce("mid", [(2, b"neither is this")])
    plant.produce("raw", [(1, b"no envelope at all")])
    for _ in range(2):
        for flow, topic in (("standard", "raw"), ("totals", "mid")):
            assert plant.topic(topic) in plant.start(flow).stopped_by("PoisonError", POISONED)
    assert plant.everything()[3:] == before[3:]
