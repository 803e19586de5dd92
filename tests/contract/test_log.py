"""The contract of `ports.Log`, tested with every log: memory and a real Kafka."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import confluent_kafka.admin
import pytest
from confluent_kafka import Producer

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import ConfigurationError, OutputRefused, OutputTooLarge, TruncatedInput
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ports import Bounds, Commit, Log, Output, Range
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqe_chain.ports import Message


driver: Any = confluent_kafka.admin
HOUR = 3_600_000


@pytest.fixture(params=["memory", "kafka"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    if request.param == "memory":
        memory = MemoryLog(uuid.uuid4().hex)
        yield memory
        memory.clear()
    else:
        kafka = KafkaLog(request.getfixturevalue("kafka"), timeout_s=20)
        yield kafka
        kafka.close()


@pytest.fixture
def topic(log: Log) -> str:
    name = f"t-{uuid.uuid4().hex}"
    log.create_topic(name, 2)
    return name


def outputs(topic: str, count: int, *, partition: int = 0, first: int = 0) -> list[Output]:
    return [(topic, partition, b"k", b"%d" % n, None, 1_000 + n) for n in range(first, first + count)]


def publish(log: Log, records: Sequence[Output]) -> None:
    writer = log.writer()
    writer.write(records)
    writer.flush()
    writer.close()


def wanted(
    log: Log, topic: str, start: int, stop: int, *, partition: int = 0, leader_epoch: int = 0
) -> Range:
    return Range(topic, log.describe([topic])[topic].topic_id, partition, start, stop, leader_epoch)


def read(log: Log, read_range: Range) -> list[Message]:
    return [message for block in log.read(read_range) for message in block]


def values(log: Log, read_range: Range) -> list[int]:
    return [int(message.value() or b"-1") for message in read(log, read_range)]


def test_a_topic_is_described_and_an_unknown_one_is_absent(log: Log, topic: str) -> None:
    found = log.describe([topic, "t-unknown"])
    assert set(found) == {topic}
    about = found[topic]
    assert (about.name, about.partitions, about.compacted, len(about.topic_id)) == (topic, 2, False, 16)
    assert about.max_message_bytes == 1_048_588
    assert (about.replicas, about.min_insync_replicas) == (1, 1)
    assert log.describe([]) == {}


def test_two_topics_have_two_ids_and_a_topic_keeps_its_own(log: Log, topic: str) -> None:
    log.create_topic(topic + "-b", 1)
    found = log.describe([topic, topic + "-b"])
    assert found[topic].topic_id != found[topic + "-b"].topic_id
    assert log.describe([topic]) == {topic: found[topic]}


def test_a_topic_that_exists_is_left_as_it_is(log: Log, topic: str) -> None:
    before = log.describe([topic])
    log.create_topic(topic, 5)
    assert log.describe([topic]) == before


def test_a_topic_without_partitions_is_refused(log: Log) -> None:
    with pytest.raises(ConfigurationError):
        log.create_topic(f"t-{uuid.uuid4().hex}", 0)


def test_a_deleted_topic_is_gone_and_another_one_when_it_is_created_again(log: Log, topic: str) -> None:
    """Deleting twice is no error. Brokers learn of a deletion one after another. Commits go with the topic."""
    before = log.describe([topic])[topic].topic_id
    publish(log, outputs(topic, 5))
    group = f"g-{uuid.uuid4().hex}"
    log.commit(group, {(topic, 0): Commit(5, "here")})
    log.delete_topic(topic)
    assert wait_until(lambda: not log.describe([topic]), PATIENCE_S)
    log.delete_topic(topic)
    log.create_topic(topic, 1)
    after = log.describe([topic])[topic]
    assert after.topic_id != before
    assert log.bounds([(topic, 0)])[topic, 0].stable_end == 0
    eventually(lambda: log.committed(group, [(topic, 0)]) == {}, "its commits are gone")


def test_a_deleted_group_has_no_commits_and_others_keep_theirs(log: Log, topic: str) -> None:
    groups = [f"g-{uuid.uuid4().hex}" for _ in range(2)]
    for group in groups:
        log.commit(group, {(topic, 0): Commit(0, "here")})
    log.delete_group(groups[0])
    log.delete_group(groups[0])
    log.delete_group("g-that-never-was")
    assert log.committed(groups[0], [(topic, 0)]) == {}
    assert log.committed(groups[1], [(topic, 0)]) == {(topic, 0): Commit(0, "here")}
    log.commit(groups[0], {(topic, 0): Commit(0, "again")})
    assert log.committed(groups[0], [(topic, 0)]) == {(topic, 0): Commit(0, "again")}


def test_what_was_written_is_read_with_everything(log: Log, topic: str) -> None:
    headers = [("a", b"1"), ("a", None), ("ü", b"\xff")]
    records: list[Output] = [
        (topic, 1, b"key", b"value", headers, 1_700_000_000_123),
        (topic, 1, None, None, None, 1_700_000_000_124),
        (topic, 1, b"", b"", [], 1_700_000_000_125),
    ]
    publish(log, records)
    first, second, third = read(log, wanted(log, topic, 0, 3, partition=1))
    assert (first.topic(), first.partition(), first.offset()) == (topic, 1, 0)
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", headers)
    assert first.timestamp() == (1, 1_700_000_000_123)
    assert first.leader_epoch() == 0
    assert (second.key(), second.value(), second.headers()) == (None, None, None)
    assert (third.key(), third.value(), third.headers()) == (b"", b"", None)


def test_a_range_is_read_exactly_in_order_and_in_bounded_blocks(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 3_500))
    blocks = list(log.read(wanted(log, topic, 200, 3_300)))
    assert all(0 < len(block) <= 1_000 for block in blocks)
    assert [int(m.value() or b"") for block in blocks for m in block] == list(range(200, 3_300))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 5), (4, 5), (3, 3), (5, 5), (0, 0)])
def test_small_and_empty_ranges(log: Log, topic: str, start: int, stop: int) -> None:
    publish(log, outputs(topic, 5))
    assert values(log, wanted(log, topic, start, stop)) == list(range(start, stop))


def test_several_writes_land_in_order_in_each_partition(log: Log, topic: str) -> None:
    writer = log.writer()
    for first in range(0, 300, 10):
        writer.write(outputs(topic, 10, first=first) + outputs(topic, 10, partition=1, first=first))
    writer.flush()
    writer.close()
    for partition in (0, 1):
        assert values(log, wanted(log, topic, 0, 300, partition=partition)) == list(range(300))


def test_bounds_follow_what_is_written(log: Log, topic: str) -> None:
    places = [(topic, 0), (topic, 1)]
    assert log.bounds(places) == dict.fromkeys(places, Bounds(0, 0))
    publish(log, outputs(topic, 7))
    assert log.bounds(places) == {(topic, 0): Bounds(0, 7), (topic, 1): Bounds(0, 0)}
    assert log.bounds([]) == {}


def test_many_short_ranges_are_read_at_the_same_time(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 40) + outputs(topic, 40, partition=1, first=100))
    ranges = [wanted(log, topic, at, at + 1 + at % 2, partition=at % 2) for at in range(38)]
    found = log.read_all(ranges)
    assert [[int(message.value() or b"") for message in records] for records in found] == [
        [100 * (at % 2) + offset for offset in range(at, at + 1 + at % 2)] for at in range(38)
    ]
    assert list(log.read_all([])) == []
    with pytest.raises(TruncatedInput, match=rf"{topic}\[1\]"):
        log.read_all([*ranges, wanted(log, topic, 2, 5, partition=1, leader_epoch=8)])


def test_short_ranges_of_many_partitions_are_exact(log: Log, topic: str) -> None:
    """More is there, before and behind, in each partition; and a partition may be asked for twice, or for nothing."""
    publish(log, outputs(topic, 60) + outputs(topic, 60, partition=1, first=100))
    for epoch in (0, 1):  # the epoch of the records, if it is known
        ranges = [
            wanted(log, topic, 20, 30, leader_epoch=epoch),
            wanted(log, topic, 0, 60, partition=1),
            wanted(log, topic, 59, 60, leader_epoch=epoch),
            wanted(log, topic, 7, 7, partition=1),
        ]
        found = log.read_all(ranges)
        assert [[int(message.value() or b"") for message in records] for records in found] == [
            list(range(20, 30)),
            list(range(100, 160)),
            [59],
            [],
        ]


def test_of_many_ranges_the_one_that_was_truncated_is_named(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 5) + outputs(topic, 5, partition=1))
    whole = wanted(log, topic, 0, 5)
    broken = wanted(log, topic, 2, 5, partition=1, leader_epoch=8)
    with pytest.raises(TruncatedInput, match=rf"{topic}\[1\] from 2 to 5"):
        log.read_all([whole, broken])
    assert len(log.read_all([whole])[0]) == 5


def test_a_log_that_ends_before_the_range_does_is_truncated(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 5))
    with pytest.raises(TruncatedInput, match=rf"{topic}\[0\] from 2 to 6"):
        read(log, wanted(log, topic, 2, 6))
    with pytest.raises(TruncatedInput):
        read(log, wanted(log, topic, 7, 9))


def test_a_leader_epoch_the_log_never_had_is_a_truncation(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 5))
    assert values(log, wanted(log, topic, 2, 5, leader_epoch=1)) == [2, 3, 4]
    with pytest.raises(TruncatedInput):
        read(log, wanted(log, topic, 2, 5, leader_epoch=8))
    assert values(log, wanted(log, topic, 2, 5, leader_epoch=1)) == [2, 3, 4]


def test_two_ranges_are_read_at_once(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 2_500) + outputs(topic, 2_500, partition=1))
    readers = [log.read(wanted(log, topic, 0, 2_500, partition=n)) for n in (0, 1)]
    found: dict[int, list[int]] = {0: [], 1: []}
    for pair in zip_longest(*readers, fillvalue=[]):
        for partition, block in enumerate(pair):
            assert {m.partition() for m in block} <= {partition}
            found[partition] += [int(m.value() or b"") for m in block]
    assert found == {0: list(range(2_500)), 1: list(range(2_500))}


def test_a_range_left_in_the_middle_does_not_spoil_the_next(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 5_000) + outputs(topic, 10, partition=1))
    for _ in range(3):
        for block in log.read(wanted(log, topic, 0, 5_000)):
            assert block[0].offset() == 0
            break
        assert values(log, wanted(log, topic, 3, 10, partition=1)) == list(range(3, 10))
        assert values(log, wanted(log, topic, 10, 12)) == [10, 11]


def test_commits_keep_their_metadata(log: Log, topic: str) -> None:
    group, places = f"g-{uuid.uuid4().hex}", [(topic, 0), (topic, 1)]
    assert log.committed(group, places) == {}
    log.commit(group, {(topic, 0): Commit(3, '{"plan": "ä"}')})
    assert log.committed(group, places) == {(topic, 0): Commit(3, '{"plan": "ä"}')}
    log.commit(group, {(topic, 0): Commit(2, "back"), (topic, 1): Commit(0)})
    assert log.committed(group, places) == {(topic, 0): Commit(2, "back"), (topic, 1): Commit(0)}
    assert log.committed(group, [(topic, 1)]) == {(topic, 1): Commit(0)}
    assert log.committed(group + "-other", places) == {}
    log.commit(group, {})


def test_metadata_may_have_4095_characters(log: Log, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex}"
    log.commit(group, {(topic, 0): Commit(1, "x" * 4095)})
    assert log.committed(group, [(topic, 0)])[topic, 0] == Commit(1, "x" * 4095)
    with pytest.raises(ConfigurationError):
        log.commit(group, {(topic, 0): Commit(1, "x" * 4097)})


def test_an_output_that_is_too_large_is_refused_and_the_writer_goes_on(log: Log, topic: str) -> None:
    largest = 1_048_588 - 97
    writer = log.writer()
    writer.write([(topic, 0, None, bytes(largest), None, 0)])
    with pytest.raises(OutputTooLarge, match=rf"{topic}\[0\]"):
        writer.write([(topic, 0, None, bytes(largest + 1), None, 0)])
    writer.write([(topic, 0, None, b"1", None, 0)])
    writer.flush()
    writer.close()
    assert [len(m.value() or b"") for m in read(log, wanted(log, topic, 0, 2))] == [largest, 1]


LIMITED = {
    "cleanup.policy": "compact",
    "message.timestamp.before.max.ms": "7200000",
    "message.timestamp.after.max.ms": "3600000",
    "max.message.bytes": "2000",
}


@pytest.fixture
def limited(log: Log, topic: str) -> str:
    """A topic with every limit for which a broker refuses records."""
    if isinstance(log, MemoryLog):
        log.configure(
            topic, compacted=True, before_max_ms=2 * HOUR, after_max_ms=HOUR, max_message_bytes=2_000
        )
    else:
        set_config(log, topic, LIMITED)
    return topic


def set_config(log: Log, topic: str, config: dict[str, str]) -> None:
    """Change settings of a topic, and wait until they are in effect."""
    assert isinstance(log, KafkaLog)
    asker = driver.AdminClient({"bootstrap.servers": log._settings.bootstrap})
    change = driver.AlterConfigOpType.SET
    entries = [
        driver.ConfigEntry(name, value, incremental_operation=change) for name, value in config.items()
    ]
    resource = driver.ConfigResource(driver.ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    asker.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    eventually(lambda: config.items() <= read_config(asker, topic).items(), "the settings are in effect")


def read_config(asker: Any, topic: str) -> dict[str, str]:
    resource = driver.ConfigResource(driver.ConfigResource.Type.TOPIC, topic)
    return {
        name: entry.value
        for name, entry in asker.describe_configs([resource])[resource].result(PATIENCE_S).items()
    }


def refused(log: Log, record: Output) -> str:
    """The broker's own refusal of a record, without the checks of a writer; empty: it was accepted."""
    topic, partition, key, value, _, timestamp_ms = record
    if isinstance(log, MemoryLog):
        try:
            log.append(topic, partition, value, key, None, timestamp_ms)
        except (OutputRefused, OutputTooLarge) as error:
            return str(error)
        return ""
    assert isinstance(log, KafkaLog)
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": log._settings.bootstrap, "message.max.bytes": 1_000_000})
    producer.produce(
        topic,
        value,
        key,
        partition,
        timestamp=timestamp_ms,
        on_delivery=lambda error, _: errors.append(error),
    )
    assert producer.flush(20) == 0
    return str(errors[0] or "")


def test_topics_name_the_cluster_that_they_are_in(log: Log, topic: str) -> None:
    log.create_topic(f"{topic}-2", 1)
    one, two = log.describe([topic, f"{topic}-2"]).values()
    assert one.cluster
    assert two.cluster == one.cluster


def test_what_a_topic_refuses_is_described(log: Log, limited: str) -> None:
    about = log.describe([limited])[limited]
    assert (about.compacted, about.max_message_bytes) == (True, 2_000)
    assert (about.before_max_ms, about.after_max_ms, about.append_time) == (2 * HOUR, HOUR, False)


def test_a_record_that_its_topic_would_delete_at_once_gets_the_time_of_sending(log: Log, topic: str) -> None:
    if isinstance(log, MemoryLog):
        log.configure(topic, retention_ms=7 * 24 * HOUR)
    else:
        set_config(log, topic, {"retention.ms": str(7 * 24 * HOUR)})
    now_ms, writer = time.time_ns() // 1_000_000, log.writer()
    ages = [HOUR, 5 * 24 * HOUR, 6 * 24 * HOUR + HOUR, 365 * 24 * HOUR]
    writer.write([(topic, 0, b"k", b"v", None, now_ms - age) for age in ages])
    writer.flush()
    writer.close()
    times = [message.timestamp()[1] for message in read(log, wanted(log, topic, 0, len(ages)))]
    assert times[:2] == [now_ms - age for age in ages[:2]]
    assert all(now_ms <= at <= now_ms + HOUR for at in times[2:])


def test_brokers_refuse_the_same(log: Log, limited: str) -> None:
    """A minute inside each limit and a minute outside; exact, because there is only one clock on this machine."""
    now, minute = time.time_ns() // 1_000_000, 60_000
    for key, size, ahead_ms, accepted in [
        (b"k", 1, 0, True),
        (b"", 1, 0, True),
        (None, 1, 0, False),
        (b"k", 1_500, 0, True),
        (b"k", 2_500, 0, False),
        (b"k", 1, HOUR - minute, True),
        (b"k", 1, HOUR + minute, False),
        (b"k", 1, -2 * HOUR + minute, True),
        (b"k", 1, -2 * HOUR - minute, False),
    ]:
        found = refused(log, (limited, 0, key, os.urandom(size), None, now + ahead_ms))
        assert (found == "") == accepted, (key, size, ahead_ms, found)


@pytest.mark.parametrize("ahead_ms", [2 * 3_600_000, -3 * 3_600_000, 366 * 24 * 3_600_000])
def test_a_time_that_is_not_accepted_becomes_the_time_of_sending(
    log: Log, limited: str, ahead_ms: int
) -> None:
    now = time.time_ns() // 1_000_000
    publish(
        log, [(limited, 0, b"a", b"1", None, now + ahead_ms), (limited, 0, b"b", b"2", None, now - 5_000)]
    )
    first, second = read(log, wanted(log, limited, 0, 2))
    assert abs(first.timestamp()[1] - now) < HOUR / 2
    assert second.timestamp()[1] == now - 5_000


@pytest.mark.parametrize("timestamp_ms", [0, -1])
def test_a_record_without_a_time_gets_the_time_of_sending(log: Log, topic: str, timestamp_ms: int) -> None:
    publish(log, [(topic, 0, b"k", b"v", None, timestamp_ms)])
    (record,) = read(log, wanted(log, topic, 0, 1))
    assert abs(record.timestamp()[1] - time.time() * 1_000) < HOUR / 2


def test_where_the_broker_sets_the_time_every_time_is_accepted(log: Log, topic: str) -> None:
    if isinstance(log, MemoryLog):
        log.configure(topic, append_time=True, after_max_ms=HOUR)
    else:
        set_config(
            log,
            topic,
            {"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "3600000"},
        )
    now = time.time_ns() // 1_000_000
    assert log.describe([topic])[topic].append_time
    publish(log, [(topic, 0, b"a", b"1", None, now + 9 * HOUR)])
    (record,) = read(log, wanted(log, topic, 0, 1))
    assert abs(record.timestamp()[1] - now) < HOUR / 2


def test_a_refusal_is_named_with_its_topic_and_what_to_do_and_another_writer_works(
    log: Log, limited: str
) -> None:
    with pytest.raises(OutputRefused, match=rf"{limited}.*without a key"):
        publish(log, [(limited, 0, None, b"v", None, 0)])
    publish(log, [(limited, 0, b"k", b"v", None, 0)])
    assert len(read(log, wanted(log, limited, 0, 1))) == 1


def test_an_output_to_an_unknown_topic_is_a_configuration_error(log: Log, topic: str) -> None:
    for place in (("t-unknown", 0), (topic, 2)):
        with pytest.raises(ConfigurationError, match=place[0]):
            publish(log, [(*place, None, b"1", None, 0)])
    publish(log, outputs(topic, 1))
    assert values(log, wanted(log, topic, 0, 1)) == [0]


def test_offsets_are_found_by_time(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 5))  # at 1,000, 1,001 ...
    places = [(topic, 0), (topic, 1)]
    assert log.offsets_at(places, 1_003) == {(topic, 0): 3, (topic, 1): 0}
    assert log.offsets_at(places, 999) == {(topic, 0): 0, (topic, 1): 0}
    assert log.offsets_at(places, 2_000) == {(topic, 0): 5, (topic, 1): 0}
    assert log.offsets_at([], 0) == {}


def test_a_pickled_log_is_the_same_log(log: Log, topic: str) -> None:
    publish(log, outputs(topic, 3))
    again = pickle.loads(pickle.dumps(log))  # noqa: S301 - our own bytes
    assert again == log
    assert hash(again) == hash(log)
    assert again.describe([topic]) == log.describe([topic])
    assert values(again, wanted(again, topic, 0, 3)) == [0, 1, 2]


def test_two_writers_at_once(log: Log, topic: str) -> None:
    one, two = log.writer(), log.writer()
    one.write(outputs(topic, 100))
    two.write(outputs(topic, 100, partition=1))
    two.flush()
    one.flush()
    one.close()
    two.close()
    assert values(log, wanted(log, topic, 0, 100)) == values(log, wanted(log, topic, 0, 100, partition=1))
