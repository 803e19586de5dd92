"""What a log must do with topics, ranges of records, and commits."""

from __future__ import annotations

import pickle
import uuid
from itertools import zip_longest

import pytest

from sqe_chain.errors import ConfigurationError, TruncatedInput
from sqe_chain.ports import Bounds, Commit, Log, Output
from sqe_chain.testing.contracts.log_harness import (
    LogHarness,
    becomes_true,
    outputs,
    publish,
    read,
    values,
    wanted,
)

WIDE = 300
"""Partitions whose longest commits are more than a broker takes at once, which is 1 MiB by default."""


class RecordRules(LogHarness):
    """Topics, ranges and commits."""

    def test_a_topic_is_described_and_an_unknown_one_is_absent(self, log: Log, topic: str) -> None:
        described = log.describe([topic, "t-unknown"])
        assert set(described) == {topic}
        about = described[topic]
        assert (about.name, about.partitions, about.compacted, len(about.topic_id)) == (topic, 2, False, 16)
        assert about.max_message_bytes == 1_048_588
        assert (about.replicas, about.min_insync_replicas) == (1, 1)
        assert log.describe([]) == {}

    def test_two_topics_have_two_ids_and_a_topic_keeps_its_own(self, log: Log, topic: str) -> None:
        log.create_topic(topic + "-b", 1)
        described = log.describe([topic, topic + "-b"])
        assert described[topic].topic_id != described[topic + "-b"].topic_id
        assert log.describe([topic]) == {topic: described[topic]}

    def test_a_topic_that_exists_is_left_as_it_is(self, log: Log, topic: str) -> None:
        before = log.describe([topic])
        log.create_topic(topic, 5)
        assert log.describe([topic]) == before

    def test_a_topic_without_partitions_is_refused(self, log: Log) -> None:
        with pytest.raises(ConfigurationError):
            log.create_topic(f"t-{uuid.uuid4().hex}", 0)

    def test_a_deleted_topic_is_gone_and_another_one_when_it_is_created_again(
        self, log: Log, topic: str
    ) -> None:
        """Deleting twice is no error. Brokers learn of a deletion one after another. Commits go with the topic."""
        before = log.describe([topic])[topic].topic_id
        publish(log, outputs(topic, 5))
        group = f"g-{uuid.uuid4().hex}"
        log.commit(group, {(topic, 0): Commit(5, "here")})
        log.delete_topic(topic)
        assert becomes_true(lambda: not log.describe([topic]))
        log.delete_topic(topic)
        log.create_topic(topic, 1)
        after = log.describe([topic])[topic]
        assert after.topic_id != before
        assert log.bounds([(topic, 0)])[topic, 0].stable_end == 0
        assert becomes_true(lambda: log.committed(group, [(topic, 0)]) == {})

    def test_a_deleted_group_has_no_commits_and_others_keep_theirs(self, log: Log, topic: str) -> None:
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

    def test_what_was_written_is_read_with_everything(self, log: Log, topic: str) -> None:
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

    def test_a_range_is_read_exactly_in_order_and_in_bounded_blocks(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 3_500))
        blocks = list(log.read(wanted(log, topic, 200, 3_300)))
        assert all(0 < len(block) <= 1_000 for block in blocks)
        assert [int(m.value() or b"") for block in blocks for m in block] == list(range(200, 3_300))

    @pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 5), (4, 5), (3, 3), (5, 5), (0, 0)])
    def test_small_and_empty_ranges(self, log: Log, topic: str, start: int, stop: int) -> None:
        publish(log, outputs(topic, 5))
        assert values(log, wanted(log, topic, start, stop)) == list(range(start, stop))

    def test_several_writes_land_in_order_in_each_partition(self, log: Log, topic: str) -> None:
        writer = log.writer()
        for first in range(0, 300, 10):
            writer.write(outputs(topic, 10, first=first) + outputs(topic, 10, partition=1, first=first))
        writer.flush()
        writer.close()
        for partition in (0, 1):
            assert values(log, wanted(log, topic, 0, 300, partition=partition)) == list(range(300))

    def test_bounds_follow_what_is_written(self, log: Log, topic: str) -> None:
        places = [(topic, 0), (topic, 1)]
        assert log.bounds(places) == dict.fromkeys(places, Bounds(0, 0))
        publish(log, outputs(topic, 7))
        assert log.bounds(places) == {(topic, 0): Bounds(0, 7), (topic, 1): Bounds(0, 0)}
        assert log.bounds([]) == {}

    def test_many_short_ranges_are_read_at_the_same_time(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 40) + outputs(topic, 40, partition=1, first=100))
        ranges = [wanted(log, topic, at, at + 1 + at % 2, partition=at % 2) for at in range(38)]
        blocks = log.read_all(ranges)
        assert [[int(message.value() or b"") for message in records] for records in blocks] == [
            [100 * (at % 2) + offset for offset in range(at, at + 1 + at % 2)] for at in range(38)
        ]
        assert list(log.read_all([])) == []
        with pytest.raises(TruncatedInput, match=rf"{topic}\[1\]"):
            log.read_all([*ranges, wanted(log, topic, 2, 5, partition=1, leader_epoch=8)])

    def test_short_ranges_of_many_partitions_are_exact(self, log: Log, topic: str) -> None:
        """More is there, before and behind, in each partition; and a partition may be asked for twice, or for nothing."""
        publish(log, outputs(topic, 60) + outputs(topic, 60, partition=1, first=100))
        for epoch in (0, 1):  # the epoch of the records, if it is known
            ranges = [
                wanted(log, topic, 20, 30, leader_epoch=epoch),
                wanted(log, topic, 0, 60, partition=1),
                wanted(log, topic, 59, 60, leader_epoch=epoch),
                wanted(log, topic, 7, 7, partition=1),
            ]
            blocks = log.read_all(ranges)
            assert [[int(message.value() or b"") for message in records] for records in blocks] == [
                list(range(20, 30)),
                list(range(100, 160)),
                [59],
                [],
            ]

    def test_of_many_ranges_the_one_that_was_truncated_is_named(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 5) + outputs(topic, 5, partition=1))
        whole = wanted(log, topic, 0, 5)
        broken = wanted(log, topic, 2, 5, partition=1, leader_epoch=8)
        with pytest.raises(TruncatedInput, match=rf"{topic}\[1\] from 2 to 5"):
            log.read_all([whole, broken])
        assert len(log.read_all([whole])[0]) == 5

    def test_a_log_that_ends_before_the_range_does_is_truncated(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 5))
        with pytest.raises(TruncatedInput, match=rf"{topic}\[0\] from 2 to 6"):
            read(log, wanted(log, topic, 2, 6))
        with pytest.raises(TruncatedInput):
            read(log, wanted(log, topic, 7, 9))

    def test_a_leader_epoch_the_log_never_had_is_a_truncation(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 5))
        assert values(log, wanted(log, topic, 2, 5, leader_epoch=1)) == [2, 3, 4]
        with pytest.raises(TruncatedInput):
            read(log, wanted(log, topic, 2, 5, leader_epoch=8))
        assert values(log, wanted(log, topic, 2, 5, leader_epoch=1)) == [2, 3, 4]

    def test_two_ranges_are_read_at_once(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 2_500) + outputs(topic, 2_500, partition=1))
        readers = [log.read(wanted(log, topic, 0, 2_500, partition=n)) for n in (0, 1)]
        numbers: dict[int, list[int]] = {0: [], 1: []}
        for pair in zip_longest(*readers, fillvalue=[]):
            for partition, block in enumerate(pair):
                assert {m.partition() for m in block} <= {partition}
                numbers[partition] += [int(m.value() or b"") for m in block]
        assert numbers == {0: list(range(2_500)), 1: list(range(2_500))}

    def test_a_range_left_in_the_middle_does_not_spoil_the_next(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 5_000) + outputs(topic, 10, partition=1))
        for _ in range(3):
            for block in log.read(wanted(log, topic, 0, 5_000)):
                assert block[0].offset() == 0
                break
            assert values(log, wanted(log, topic, 3, 10, partition=1)) == list(range(3, 10))
            assert values(log, wanted(log, topic, 10, 12)) == [10, 11]

    def test_commits_keep_their_metadata(self, log: Log, topic: str) -> None:
        group, places = f"g-{uuid.uuid4().hex}", [(topic, 0), (topic, 1)]
        assert log.committed(group, places) == {}
        log.commit(group, {(topic, 0): Commit(3, '{"plan": "ä"}')})
        assert log.committed(group, places) == {(topic, 0): Commit(3, '{"plan": "ä"}')}
        log.commit(group, {(topic, 0): Commit(2, "back"), (topic, 1): Commit(0)})
        assert log.committed(group, places) == {(topic, 0): Commit(2, "back"), (topic, 1): Commit(0)}
        assert log.committed(group, [(topic, 1)]) == {(topic, 1): Commit(0)}
        assert log.committed(group + "-other", places) == {}
        log.commit(group, {})

    def test_a_commit_may_have_any_number_of_partitions(self, log: Log, topic: str) -> None:
        group, wide = f"wide-{topic}", f"{topic}.wide"
        log.create_topic(wide, WIDE)
        commits = {(wide, partition): Commit(partition, "x" * 4095) for partition in range(WIDE)}
        log.commit(group, commits)
        assert log.committed(group, commits) == commits
        member = log.join(group, [wide])
        later = {tp: Commit(commit.offset + 1, commit.metadata) for tp, commit in commits.items()}
        member.commit(later)
        assert member.committed(later) == later
        member.leave()

    def test_metadata_may_have_4095_characters(self, log: Log, topic: str) -> None:
        group = f"g-{uuid.uuid4().hex}"
        log.commit(group, {(topic, 0): Commit(1, "x" * 4095)})
        assert log.committed(group, [(topic, 0)])[topic, 0] == Commit(1, "x" * 4095)
        with pytest.raises(ConfigurationError):
            log.commit(group, {(topic, 0): Commit(1, "x" * 4097)})

    def test_offsets_are_found_by_time(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 5))  # at 1,000, 1,001 ...
        places = [(topic, 0), (topic, 1)]
        assert log.offsets_at(places, 1_003) == {(topic, 0): 3, (topic, 1): 0}
        assert log.offsets_at(places, 999) == {(topic, 0): 0, (topic, 1): 0}
        assert log.offsets_at(places, 2_000) == {(topic, 0): 5, (topic, 1): 0}
        assert log.offsets_at([], 0) == {}

    def test_a_pickled_log_is_the_same_log(self, log: Log, topic: str) -> None:
        publish(log, outputs(topic, 3))
        again = pickle.loads(pickle.dumps(log))
        assert again == log
        assert hash(again) == hash(log)
        assert again.describe([topic]) == log.describe([topic])
        assert values(again, wanted(again, topic, 0, 3)) == [0, 1, 2]

    def test_two_writers_at_once(self, log: Log, topic: str) -> None:
        first, second = log.writer(), log.writer()
        first.write(outputs(topic, 100))
        second.write(outputs(topic, 100, partition=1))
        second.flush()
        first.flush()
        first.close()
        second.close()
        assert values(log, wanted(log, topic, 0, 100)) == values(log, wanted(log, topic, 0, 100, partition=1))
