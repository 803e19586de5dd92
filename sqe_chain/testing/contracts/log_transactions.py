"""The rules of a log's transactions: records that become visible together, or never."""

from __future__ import annotations

import uuid

import pytest

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ports import Log, TransactionalWriter
from sqe_chain.testing.contracts.log_harness import LogHarness, becomes_true, outputs, publish, values, wanted


class TransactionRules(LogHarness):
    """What readers of committed records see of transactions, and how a newer writer ends those of an older one."""

    def test_records_become_visible_together(self, log: Log, topic: str) -> None:
        writer = log.transactional_writer(uuid.uuid4().hex, [topic])
        writer.write(outputs(topic, 3))
        writer.write([*outputs(topic, 2, partition=1), *outputs(topic, 2, first=3)])
        assert [_stable_end(log, topic, partition) for partition in (0, 1)] == [0, 0]
        writer.commit()
        assert becomes_true(lambda: _committed(log, topic) == ([0, 1, 2, 3, 4], [0, 1]))
        writer.write(outputs(topic, 1, first=5))
        writer.commit()
        writer.close()
        assert becomes_true(lambda: _committed(log, topic) == ([0, 1, 2, 3, 4, 5], [0, 1]))

    def test_a_commit_of_nothing(self, log: Log, topic: str) -> None:
        writer = log.transactional_writer(uuid.uuid4().hex, [topic])
        writer.commit()
        writer.close()
        assert _committed(log, topic) == ([], [])

    def test_what_is_not_committed_never_becomes_visible(self, log: Log, topic: str) -> None:
        writer = log.transactional_writer(uuid.uuid4().hex, [topic])
        writer.write(outputs(topic, 3))
        writer.close()
        publish(log, outputs(topic, 1, first=7))
        assert becomes_true(lambda: _committed(log, topic)[0] == [7])

    def test_a_newer_writer_ends_the_transaction_of_an_older_one_and_fences_it(
        self, log: Log, topic: str
    ) -> None:
        name = uuid.uuid4().hex
        older = log.transactional_writer(name, [topic])
        older.write(outputs(topic, 3))
        newer = log.transactional_writer(name, [topic])
        publish(log, outputs(topic, 1, first=7))
        assert _committed(log, topic)[0] == [7], "nothing holds readers up"
        with pytest.raises(Unavailable):
            _go_on(older, topic)
        older.close()
        newer.write(outputs(topic, 1, first=8))
        newer.commit()
        newer.close()
        assert becomes_true(lambda: _committed(log, topic) == ([7, 8], []))

    def test_a_newer_writer_leaves_what_is_committed(self, log: Log, topic: str) -> None:
        name = uuid.uuid4().hex
        older = log.transactional_writer(name, [topic])
        older.write(outputs(topic, 3))
        older.commit()
        log.transactional_writer(name, [topic]).close()
        assert _committed(log, topic)[0] == [0, 1, 2], "at once: a run decides by what it finds then"
        older.close()

    def test_writers_of_other_ids_are_left_alone(self, log: Log, topic: str) -> None:
        first = log.transactional_writer(uuid.uuid4().hex, [topic])
        first.write(outputs(topic, 2))
        second = log.transactional_writer(uuid.uuid4().hex, [topic])
        second.write(outputs(topic, 2, first=2))
        second.commit()
        assert _stable_end(log, topic, 0) == 0, "an open transaction hides what follows it"
        first.commit()
        first.close()
        second.close()
        assert becomes_true(lambda: _committed(log, topic)[0] == [0, 1, 2, 3])

    def test_its_topics_must_exist(self, log: Log) -> None:
        with pytest.raises(ConfigurationError):
            log.transactional_writer(uuid.uuid4().hex, [uuid.uuid4().hex])

    def test_a_compacted_topic_can_be_made(self, log: Log) -> None:
        name = f"t-{uuid.uuid4().hex}"
        log.create_topic(name, 1, compacted=True)
        assert log.describe([name])[name].compacted


def _go_on(writer: TransactionalWriter, topic: str) -> None:
    """Write into the second partition, and commit: a log may refuse either."""
    writer.write(outputs(topic, 3, partition=1))
    writer.commit()


def _stable_end(log: Log, topic: str, partition: int) -> int:
    return log.bounds([(topic, partition)])[topic, partition].stable_end


def _committed(log: Log, topic: str) -> tuple[list[int], list[int]]:
    """The numbers in the two partitions that a reader of committed records sees."""
    first, second = (
        values(log, wanted(log, topic, 0, _stable_end(log, topic, partition), partition=partition))
        for partition in (0, 1)
    )
    return first, second
