"""What a real broker can do to readers and writers: transactions, retention, truncation, silence, logins.

Tests that pause, kill or restart a broker share one of their own; the others use the session's.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import confluent_kafka.admin
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.adapters.kafka._transactions import KafkaTransactionalWriter
from sqe_chain.errors import (
    ConfigurationError,
    LostOffsets,
    OutputTooLarge,
    RecreatedTopic,
    TruncatedInput,
    Unavailable,
)
from sqe_chain.ext.dev import KafkaServer
from sqe_chain.ports import Bounds, Commit, Message, Output, Range
from tests.support.brokers import second_broker
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

driver: Any = confluent_kafka.admin


@pytest.fixture
def log(kafka: str) -> Iterator[KafkaLog]:
    made = KafkaLog(kafka, timeout_s=20)
    yield made
    made.close()


@pytest.fixture(scope="module")
def own() -> Iterator[KafkaServer]:
    """A broker that a test may pause, kill and restart; it must run again at the test's end."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
            f'{module} required unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    with KafkaServer(sasl=("ann", "hush-hush"), fast_boot=True, properties=properties) as server:
        yield server


@pytest.fixture
def own_log(own: KafkaServer) -> Iterator[KafkaLog]:
    made = KafkaLog(own.bootstrap, timeout_s=15, flush_s=10)
    yield made
    made.close()


def created(bootstrap: str, **config: str) -> str:
    """A new topic with its own settings."""
    name = f"t-{uuid.uuid4().hex}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    topic = driver.NewTopic(name, 1, config=settings)
    asker = driver.AdminClient(
        {"bootstrap.servers": bootstrap}
    )  # keep it: its answers are lost when it is collected
    asker.create_topics([topic])[name].result(PATIENCE_S)
    KafkaLog(bootstrap).create_topic(name, 1)  # waits for its leaders
    return name


def outputs(topic: str, *values: int) -> list[Output]:
    return [(topic, 0, None, b"%d" % value, None, 0) for value in values]


def publish(log: KafkaLog, records: list[Output]) -> None:
    writer = log.writer()
    writer.write(records)
    writer.flush()
    writer.close()


def wanted(log: KafkaLog, topic: str, start: int, stop: int, leader_epoch: int = 0) -> Range:
    return Range(topic, log.topic_ids([topic])[topic], 0, start, stop, leader_epoch)


def read(log: KafkaLog, read_range: Range) -> list[tuple[int, int]]:
    """Offset and value of each record, read in both ways."""
    found = one_after_the_other(log, read_range)
    (together,) = log.read_all([read_range])
    assert offsets_and_values(together) == found
    return found


def one_after_the_other(log: KafkaLog, read_range: Range) -> list[tuple[int, int]]:
    return offsets_and_values(m for block in log.read(read_range) for m in block)


def offsets_and_values(messages: Iterable[Message]) -> list[tuple[int, int]]:
    return [(m.offset(), int(m.value() or b"-1")) for m in messages]


def bounds(log: KafkaLog, topic: str) -> Bounds:
    return log.bounds([(topic, 0)])[topic, 0]


def transactional(bootstrap: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": uuid.uuid4().hex,
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def transact(producer: Producer, topic: str, *values: int, commit: bool | None) -> None:
    """One transaction; `commit=None` leaves it open."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, b"%d" % value, partition=0)
    producer.flush(PATIENCE_S)
    if commit is True:
        producer.commit_transaction(PATIENCE_S)
    elif commit is False:
        producer.abort_transaction(PATIENCE_S)


def wait_until_stable(log: KafkaLog, topic: str, end: int) -> None:
    eventually(lambda: bounds(log, topic).stable_end >= end, f"{topic} is stable up to {end}")
    assert bounds(log, topic) == Bounds(0, end)


def test_a_topic_created_again_has_its_own_settings(kafka: str, log: KafkaLog) -> None:
    """Settings are read once a second; they are those of a topic, not of a name."""
    topic = created(kafka, max_message_bytes="5000")
    assert log.describe([topic])[topic].max_message_bytes == 5_000
    log.delete_topic(topic)
    eventually(lambda: not log.topic_ids([topic]), f"{topic} is gone")
    asker = driver.AdminClient({"bootstrap.servers": kafka})
    again = driver.NewTopic(topic, 2, config={"max.message.bytes": "7000"})
    asker.create_topics([again])[topic].result(PATIENCE_S)
    log.create_topic(topic, 2)
    found = log.describe([topic])[topic]
    assert (found.max_message_bytes, found.partitions) == (7_000, 2)


def test_settings_that_change_are_seen_within_seconds(kafka: str, log: KafkaLog) -> None:
    topic, other = created(kafka), created(kafka)
    assert log.describe([topic, other])[topic].max_message_bytes == 1_048_588
    asker = driver.AdminClient({"bootstrap.servers": kafka})
    entry = driver.ConfigEntry(
        "max.message.bytes", "9000", incremental_operation=driver.AlterConfigOpType.SET
    )
    resource = driver.ConfigResource(driver.ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    asker.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    eventually(
        lambda: log.describe([topic, other])[topic].max_message_bytes == 9_000, "the new limit is seen"
    )


def test_aborted_records_are_not_read_and_open_ones_hold_the_rest_back(kafka: str, log: KafkaLog) -> None:
    topic = created(kafka)
    one, two = transactional(kafka), transactional(kafka)
    transact(one, topic, 0, 1, commit=True)  # 0, 1, marker 2
    transact(one, topic, 3, 4, commit=False)  # 3, 4, marker 5
    publish(log, outputs(topic, 6))
    transact(two, topic, 7, commit=None)
    publish(log, outputs(topic, 8))
    assert bounds(log, topic) == Bounds(0, 7)
    assert read(log, wanted(log, topic, 0, 7)) == [(0, 0), (1, 1), (6, 6)]
    with pytest.raises(TruncatedInput):
        read(log, wanted(log, topic, 0, 8))
    two.abort_transaction(PATIENCE_S)
    wait_until_stable(log, topic, 10)  # the marker is written a little later
    assert read(log, wanted(log, topic, 0, 10)) == [(0, 0), (1, 1), (6, 6), (8, 8)]
    assert read(log, wanted(log, topic, 2, 6)) == []
    assert read(log, wanted(log, topic, 5, 7)) == [(6, 6)]


def test_a_range_may_end_with_offsets_nobody_can_see(kafka: str, log: KafkaLog) -> None:
    """The end of the log is a marker: only an end-of-partition event shows that everything was read."""
    topic, producer = created(kafka), transactional(kafka)
    transact(producer, topic, 0, commit=True)
    begun = time.monotonic()
    for _ in range(20):
        assert read(log, wanted(log, topic, 0, 2, leader_epoch=1)) == [(0, 0)]
    assert time.monotonic() - begun < PATIENCE_S / 3  # else each waits for `timeout_s`


def test_a_compacted_log_is_read_to_its_end(kafka: str, log: KafkaLog) -> None:
    config = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    topic = created(kafka, **config, max_compaction_lag_ms="100")
    assert log.describe([topic])[topic].compacted
    deadline = time.monotonic() + PATIENCE_S
    count = 0
    found: list[tuple[int, int]] = []
    while len(found) == count and time.monotonic() < deadline:  # the broker decides when the cleaner runs
        publish(log, [(topic, 0, b"k", b"%d" % count, None, 0)])
        count += 1
        time.sleep(0.3)
        found = one_after_the_other(log, wanted(log, topic, 0, count))
    assert len(found) < count
    assert found[-1] == (count - 1, count - 1)
    everything = wanted(log, topic, 0, count)
    while True:  # what was read around a run of the cleaner cannot be compared
        before = one_after_the_other(log, everything)
        (together,) = log.read_all([everything])
        if one_after_the_other(log, everything) == before:
            break
        assert time.monotonic() < deadline
    assert offsets_and_values(together) == before


def test_retention_past_the_start_loses_offsets(kafka: str, log: KafkaLog) -> None:
    topic = created(kafka)
    publish(log, outputs(topic, *range(10)))
    asker = driver.AdminClient({"bootstrap.servers": kafka})
    for answer in asker.delete_records([DriverPartition(topic, 0, 6)]).values():
        answer.result(PATIENCE_S)
    assert bounds(log, topic) == Bounds(6, 10)
    assert [offset for offset, _ in read(log, wanted(log, topic, 6, 10, leader_epoch=1))] == [6, 7, 8, 9]
    with pytest.raises(LostOffsets, match=r"now begins at 6; offsets 5 to 5"):
        read(log, wanted(log, topic, 5, 10, leader_epoch=1))


def test_a_topic_created_again_has_another_id(kafka: str, log: KafkaLog) -> None:
    topic = created(kafka)
    publish(log, outputs(topic, 0, 1))
    old = wanted(log, topic, 2, 3, leader_epoch=1)
    asker = driver.AdminClient({"bootstrap.servers": kafka})
    asker.delete_topics([topic])[topic].result(PATIENCE_S)
    eventually(lambda: not log.topic_ids([topic]), f"{topic} is gone")
    assert log.describe([topic]) == {}
    with pytest.raises(RecreatedTopic, match="does not exist"):
        list(log.read(old))
    log.create_topic(topic, 1)
    assert log.topic_ids([topic])[topic] != old.topic_id
    with pytest.raises(RecreatedTopic, match=r"is now .*, expected"):
        list(log.read(old))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[KafkaServer, KafkaServer]]:
    """Two brokers of one cluster."""
    with KafkaServer(fast_boot=True) as first, second_broker(first, tmp_path) as second:
        yield first, second
        second.kill()


def test_too_few_replicas_in_sync_is_unavailable_and_not_a_loss(
    pair: tuple[KafkaServer, KafkaServer],
) -> None:
    """Two brokers, because a single replica always counts as enough, whatever the topic requires (Kafka 4)."""
    first, second = pair
    log = KafkaLog(first.bootstrap, flush_s=2)
    asker = driver.AdminClient({"bootstrap.servers": first.bootstrap})
    topic = f"t-{uuid.uuid4().hex}"
    config = {"min.insync.replicas": "2"}
    new = driver.NewTopic(topic, 1, replication_factor=2, config=config)
    asker.create_topics([new])[topic].result(PATIENCE_S)
    log.create_topic(topic, 1)  # waits for its leader
    eventually(lambda: all(log.describe([topic]) for _ in range(10)), "both brokers know the topic")
    assert (log.describe([topic])[topic].replicas, log.describe([topic])[topic].min_insync_replicas) == (2, 2)
    patient = KafkaLog(first.bootstrap)
    publish(patient, outputs(topic, 0))
    second.kill()
    for _ in range(3):
        writer = log.writer()
        writer.write(outputs(topic, 1, 2))
        with pytest.raises(Unavailable, match=r"2 records .*min\.insync"):
            writer.flush()
        writer.close()
    second.start()
    publish(patient, outputs(topic, 1, 2))
    values = [
        value for _, value in read(patient, wanted(patient, topic, 0, bounds(patient, topic).stable_end))
    ]
    assert values[:2] == [0, 1]
    assert values[-2:] == [1, 2]
    log.close()
    patient.close()


@pytest.mark.parametrize("limit", [5_000, 3_000_000])
def test_batches_keep_to_the_limit_of_their_topic(kafka: str, log: KafkaLog, limit: int) -> None:
    """The client fails permanently when a batch is refused as too large, so no batch may be."""
    topic = created(kafka, max_message_bytes=str(limit))
    largest = limit - 97
    sizes = [largest, 1, largest // 3, largest // 3, largest // 3, largest] + [largest // 50] * 200
    publish(log, [(topic, 0, None, os.urandom(size), None, 0) for size in sizes])
    stop = bounds(log, topic).stable_end
    found = [len(m.value() or b"") for block in log.read(wanted(log, topic, 0, stop)) for m in block]
    assert found == sizes
    with pytest.raises(OutputTooLarge):
        publish(log, [(topic, 0, None, os.urandom(largest + 1), None, 0)])
    with pytest.raises(OutputTooLarge):
        publish(log, [(topic, 0, None, os.urandom(largest), [("a", b"")], 0)])


def test_a_broker_paused_while_flushing_is_unavailable_then_a_new_writer_works(
    own: KafkaServer, own_log: KafkaLog
) -> None:
    topic = created(own.bootstrap)
    publish(own_log, outputs(topic, 0))
    writer = own_log.writer()
    own.pause()
    try:
        writer.write(outputs(topic, 1, 2))
        with pytest.raises(Unavailable, match="were not acknowledged within 10 s"):
            writer.flush()
        begun = time.monotonic()
        writer.close()
        assert time.monotonic() - begun < 5, "giving a producer up must not wait for the broker"
        with pytest.raises(Unavailable):
            own_log.describe([topic])
        with pytest.raises(Unavailable):
            own_log.commit("g", {(topic, 0): Commit(1)})
    finally:
        own.resume()
    publish(own_log, outputs(topic, 1, 2))
    values = [
        value for _, value in read(own_log, wanted(own_log, topic, 0, bounds(own_log, topic).stable_end))
    ]
    # The broker may find what the first writer sent when it goes on: before the rest, or after it.
    assert values in ([0, 1, 2], [0, 1, 2, 1, 2])


def test_a_reader_of_a_paused_broker_is_unavailable_within_its_time(
    own: KafkaServer, own_log: KafkaLog
) -> None:
    topic = created(own.bootstrap)
    publish(own_log, outputs(topic, *range(5)))
    read_range = wanted(own_log, topic, 0, 5, leader_epoch=1)
    known = bounds(own_log, topic)
    assert len(read(own_log, read_range)) == 5
    own.pause()
    begun = time.monotonic()
    try:
        with pytest.raises(Unavailable, match="no records since offset 0"):
            read(own_log, read_range)
        assert time.monotonic() - begun < PATIENCE_S / 3
    finally:
        own.resume()
    assert len(read(own_log, read_range)) == 5
    assert bounds(own_log, topic) == known


def test_a_broker_killed_while_flushing_is_unavailable_then_a_new_writer_works(
    own: KafkaServer, own_log: KafkaLog
) -> None:
    topic = created(own.bootstrap)
    publish(own_log, outputs(topic, 0))
    writer = own_log.writer()
    own.kill()
    try:
        writer.write(outputs(topic, 1))
        with pytest.raises(Unavailable, match="refused"):
            writer.flush()
        writer.close()
    finally:
        own.start()
    publish(own_log, outputs(topic, 1))
    assert read(own_log, wanted(own_log, topic, 0, 2)) == [(0, 0), (1, 1)]


def test_a_writer_outlasts_a_broker_that_is_killed_and_returns(own: KafkaServer) -> None:
    """Within the bounds of a flush nothing is lost, doubled or swapped."""
    log = KafkaLog(own.bootstrap)
    topic = created(own.bootstrap)
    writer = log.writer()
    writer.write(outputs(topic, *range(100)))
    own.kill()
    writer.write(outputs(topic, *range(100, 200)))
    own.start()
    writer.write(outputs(topic, *range(200, 300)))
    writer.flush()
    writer.close()
    assert read(log, wanted(log, topic, 0, 300)) == [(n, n) for n in range(300)]
    log.close()


def test_a_later_leader_epoch_below_the_start_is_a_truncation(own: KafkaServer, own_log: KafkaLog) -> None:
    """Offsets 5 to 9 were read in one epoch and now belong to another: the log was truncated and rewritten."""
    topic = created(own.bootstrap)
    publish(own_log, outputs(topic, *range(5)))
    own.restart()
    publish(own_log, outputs(topic, *range(5, 15)))
    epochs = [m.leader_epoch() for block in own_log.read(wanted(own_log, topic, 0, 15)) for m in block]
    first, last = epochs[0], epochs[-1]
    assert first is not None
    assert last is not None
    assert first < last
    assert len(read(own_log, wanted(own_log, topic, 5, 15, leader_epoch=first + 1))) == 10
    assert len(read(own_log, wanted(own_log, topic, 10, 15, leader_epoch=last + 1))) == 5
    with pytest.raises(TruncatedInput, match="offset 5 holds a record that was written later"):
        read(own_log, wanted(own_log, topic, 10, 15, leader_epoch=first + 1))
    with pytest.raises(TruncatedInput):
        read(own_log, wanted(own_log, topic, 10, 15, leader_epoch=last + 2))


def test_a_marker_written_after_a_change_of_leader_is_no_truncation(
    own: KafkaServer, own_log: KafkaLog
) -> None:
    topic, producer = created(own.bootstrap), transactional(own.bootstrap)
    transact(producer, topic, 0, 1, commit=None)
    own.restart()
    producer.commit_transaction(60)  # offset 2, in a later epoch
    publish(own_log, outputs(topic, 3, 4))
    messages = [m for block in own_log.read(wanted(own_log, topic, 0, 5)) for m in block]
    assert [m.offset() for m in messages] == [0, 1, 3, 4]
    before, after = messages[1].leader_epoch(), messages[2].leader_epoch()
    assert before is not None
    assert after is not None
    assert before < after
    assert read(own_log, wanted(own_log, topic, 3, 5, leader_epoch=before + 1)) == [(3, 3), (4, 4)]


def test_a_login_with_tokens(own: KafkaServer) -> None:
    """Of every kind of client; when the function fails, brokers count as away."""
    config = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": "tests.support.login_tokens:token",
    }
    log = KafkaLog(own.sasl_bootstrap, config)
    topic = f"t-{uuid.uuid4().hex}"
    log.create_topic(topic, 1)
    publish(log, outputs(topic, 1, 2))
    log.commit("g-tokens", {(topic, 0): Commit(2, "m")})
    assert read(log, wanted(log, topic, 0, 2)) == [(0, 1), (1, 2)]
    assert log.committed("g-tokens", [(topic, 0)]) == {(topic, 0): Commit(2, "m")}
    log.close()
    expired = KafkaLog(own.sasl_bootstrap, {**config, "sasl.oauthbearer.config": "nobody"}, timeout_s=5)
    with pytest.raises(ConfigurationError, match=r"Logging in"):
        expired.describe([topic])
    expired.close()


def test_a_login_with_scram(own: KafkaServer) -> None:
    config = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": "hush-hush",
    }
    log = KafkaLog(own.sasl_bootstrap, config)
    topic = f"t-{uuid.uuid4().hex}"
    log.create_topic(topic, 1)
    publish(log, outputs(topic, 1, 2))
    log.commit("g-sasl", {(topic, 0): Commit(2, "m")})
    assert read(log, wanted(log, topic, 0, 2)) == [(0, 1), (1, 2)]
    assert log.committed("g-sasl", [(topic, 0)]) == {(topic, 0): Commit(2, "m")}
    log.close()

    wrong = KafkaLog(own.sasl_bootstrap, {**config, "sasl.password": "hush-wrong"}, timeout_s=60)
    begun = time.monotonic()
    for ask in (
        lambda: wrong.describe([topic]),
        lambda: list(wrong.read(Range(topic, b"", 0, 0, 2))),
        lambda: wrong.committed("g-sasl", [(topic, 0)]),
    ):
        with pytest.raises(ConfigurationError, match=r"Logging in.*invalid credentials") as caught:
            ask()
        assert "hush" not in str(caught.value)
    assert time.monotonic() - begun < PATIENCE_S / 3  # else each waits for `timeout_s`
    wrong.close()


def test_a_transaction_that_was_ended_by_others_names_what_may_have_ended_it(kafka: str) -> None:
    """The driver names neither, and it notices when it sends, or not before the commit."""
    log, topic, name = KafkaLog(kafka), created(kafka), uuid.uuid4().hex
    for ends in (KafkaTransactionalWriter.flush, KafkaTransactionalWriter.commit):
        older = KafkaTransactionalWriter(log._settings, name, [topic])
        older.write(outputs(topic, 1))
        older.flush()
        log.transactional_writer(name, [topic]).close()
        with pytest.raises(Unavailable, match=r"transaction\.timeout\.ms"):
            _go_on(older, topic, ends)
        older.close()
    log.close()


def _go_on(
    writer: KafkaTransactionalWriter, topic: str, ends: Callable[[KafkaTransactionalWriter], None]
) -> None:
    writer.write(outputs(topic, 2))
    ends(writer)


def test_the_largest_record_of_a_topic_fits_into_a_transaction(kafka: str) -> None:
    log, topic = KafkaLog(kafka), created(kafka, max_message_bytes="2000")
    writer = log.transactional_writer(uuid.uuid4().hex, [topic])
    writer.write([(topic, 0, None, bytes(2_000 - 97), None, 0)])
    with pytest.raises(OutputTooLarge):
        writer.write([(topic, 0, None, bytes(2_000 - 96), None, 0)])
    writer.commit()
    writer.close()
    log.close()
