"""What a log must do with records that its topics refuse, and with their times."""

from __future__ import annotations

import os
import time

import pytest

from sqe_chain.errors import ConfigurationError, OutputRefused, OutputTooLarge
from sqe_chain.ports import Log
from sqe_chain.testing.contracts.log_harness import (
    APPEND_TIME,
    HOUR,
    LogHarness,
    outputs,
    publish,
    read,
    values,
    wanted,
)


class LimitRules(LogHarness):
    """Sizes, times and keys that topics refuse."""

    def test_an_output_that_is_too_large_is_refused_and_the_writer_goes_on(
        self, log: Log, topic: str
    ) -> None:
        largest = 1_048_588 - 97
        writer = log.writer()
        writer.write([(topic, 0, None, bytes(largest), None, 0)])
        with pytest.raises(OutputTooLarge, match=rf"{topic}\[0\]"):
            writer.write([(topic, 0, None, bytes(largest + 1), None, 0)])
        writer.write([(topic, 0, None, b"1", None, 0)])
        writer.flush()
        writer.close()
        assert [len(m.value() or b"") for m in read(log, wanted(log, topic, 0, 2))] == [largest, 1]

    def test_topics_name_the_cluster_that_they_are_in(self, log: Log, topic: str) -> None:
        log.create_topic(f"{topic}-2", 1)
        first, second = log.describe([topic, f"{topic}-2"]).values()
        assert first.cluster
        assert second.cluster == first.cluster

    def test_what_a_topic_refuses_is_described(self, log: Log, limited: str) -> None:
        about = log.describe([limited])[limited]
        assert (about.compacted, about.max_message_bytes) == (True, 2_000)
        assert (about.before_max_ms, about.after_max_ms, about.append_time) == (2 * HOUR, HOUR, False)

    def test_a_record_that_its_topic_would_delete_at_once_gets_the_time_of_sending(
        self, log: Log, topic: str
    ) -> None:
        self.configure(log, topic, {"retention.ms": str(7 * 24 * HOUR)})
        now_ms, writer = time.time_ns() // 1_000_000, log.writer()
        ages = [HOUR, 5 * 24 * HOUR, 6 * 24 * HOUR + HOUR, 365 * 24 * HOUR]
        writer.write([(topic, 0, b"k", b"v", None, now_ms - age) for age in ages])
        writer.flush()
        writer.close()
        times = [message.timestamp()[1] for message in read(log, wanted(log, topic, 0, len(ages)))]
        assert times[:2] == [now_ms - age for age in ages[:2]]
        assert all(now_ms <= at <= now_ms + HOUR for at in times[2:])

    def test_brokers_refuse_the_same(self, log: Log, limited: str) -> None:
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
            refusal = self.refused(log, (limited, 0, key, os.urandom(size), None, now + ahead_ms))
            assert (refusal == "") == accepted, (key, size, ahead_ms, refusal)

    @pytest.mark.parametrize("ahead_ms", [2 * 3_600_000, -3 * 3_600_000, 366 * 24 * 3_600_000])
    def test_a_time_that_is_not_accepted_becomes_the_time_of_sending(
        self, log: Log, limited: str, ahead_ms: int
    ) -> None:
        now = time.time_ns() // 1_000_000
        publish(
            log, [(limited, 0, b"a", b"1", None, now + ahead_ms), (limited, 0, b"b", b"2", None, now - 5_000)]
        )
        first, second = read(log, wanted(log, limited, 0, 2))
        assert abs(first.timestamp()[1] - now) < HOUR / 2
        assert second.timestamp()[1] == now - 5_000

    @pytest.mark.parametrize("timestamp_ms", [0, -1])
    def test_a_record_without_a_time_gets_the_time_of_sending(
        self, log: Log, topic: str, timestamp_ms: int
    ) -> None:
        publish(log, [(topic, 0, b"k", b"v", None, timestamp_ms)])
        (record,) = read(log, wanted(log, topic, 0, 1))
        assert abs(record.timestamp()[1] - time.time() * 1_000) < HOUR / 2

    def test_where_the_broker_sets_the_time_every_time_is_accepted(self, log: Log, topic: str) -> None:
        self.configure(log, topic, APPEND_TIME)
        now = time.time_ns() // 1_000_000
        assert log.describe([topic])[topic].append_time
        publish(log, [(topic, 0, b"a", b"1", None, now + 9 * HOUR)])
        (record,) = read(log, wanted(log, topic, 0, 1))
        assert abs(record.timestamp()[1] - now) < HOUR / 2

    def test_a_refusal_is_named_with_its_topic_and_what_to_do_and_another_writer_works(
        self, log: Log, limited: str
    ) -> None:
        with pytest.raises(OutputRefused, match=rf"{limited}.*without a key"):
            publish(log, [(limited, 0, None, b"v", None, 0)])
        publish(log, [(limited, 0, b"k", b"v", None, 0)])
        assert len(read(log, wanted(log, limited, 0, 1))) == 1

    def test_an_output_to_an_unknown_topic_is_a_configuration_error(self, log: Log, topic: str) -> None:
        for place in (("t-unknown", 0), (topic, 2)):
            with pytest.raises(ConfigurationError, match=place[0]):
                publish(log, [(*place, None, b"1", None, 0)])
        publish(log, outputs(topic, 1))
        assert values(log, wanted(log, topic, 0, 1)) == [0]
