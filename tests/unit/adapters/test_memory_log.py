"""What tests can do to a broker in memory; the contract of all logs is tested in tests/contract."""

from __future__ import annotations

import copy
import uuid
from dataclasses import replace

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import (
    LostOffsets,
    RecreatedTopic,
    TruncatedInput,
    Unavailable,
)
from sqe_chain.ports import Bounds, Commit, Range


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog(uuid.uuid4().hex)
    made.create_topic("t", 1)
    return made


def fill(log: MemoryLog, count: int) -> None:
    for n in range(count):
        log.append("t", 0, b"%d" % n, key=b"%d" % (n % 2))


def wanted(log: MemoryLog, start: int, stop: int, leader_epoch: int = 0) -> Range:
    return Range("t", log.describe(["t"])["t"].topic_id, 0, start, stop, leader_epoch)


def offsets(log: MemoryLog, start: int, stop: int, leader_epoch: int = 0) -> list[int]:
    return [m.offset() for block in log.read(wanted(log, start, stop, leader_epoch)) for m in block]


def bounds(log: MemoryLog) -> Bounds:
    return log.bounds([("t", 0)])["t", 0]


def test_offsets_may_be_sparse(log: MemoryLog) -> None:
    fill(log, 2)
    log.append("t", 0, b"x", offset=10)
    assert offsets(log, 0, 11) == [0, 1, 10]
    assert bounds(log) == Bounds(0, 11)
    with pytest.raises(ValueError, match="ends at 11"):
        log.append("t", 0, b"x", offset=10)


def test_an_open_transaction_holds_back_what_comes_after_it(log: MemoryLog) -> None:
    fill(log, 2)
    kept, dropped = log.transaction(), log.transaction()
    kept.append("t", 0, b"kept")
    dropped.append("t", 0, b"dropped")
    fill(log, 1)
    assert bounds(log) == Bounds(0, 2)
    with pytest.raises(TruncatedInput):
        offsets(log, 0, 3)
    kept.commit()
    assert bounds(log) == Bounds(0, 3)
    dropped.abort()
    assert bounds(log) == Bounds(0, 7)
    assert offsets(log, 0, 7) == [0, 1, 2, 4]


def test_compaction_leaves_the_last_of_each_key(log: MemoryLog) -> None:
    fill(log, 6)
    log.compact("t", 0)
    log.configure("t", compacted=True)
    assert offsets(log, 0, 6) == [4, 5]
    assert log.describe(["t"])["t"].compacted


def test_retention_past_the_start_loses_offsets(log: MemoryLog) -> None:
    fill(log, 6)
    log.truncate_before("t", 0, 4)
    assert bounds(log) == Bounds(4, 6)
    assert offsets(log, 4, 6) == [4, 5]
    with pytest.raises(LostOffsets):
        offsets(log, 3, 6)


def test_a_truncation_is_noticed_by_its_leader_epoch(log: MemoryLog) -> None:
    fill(log, 6)
    log.truncate_after("t", 0, 4)
    fill(log, 5)
    assert bounds(log) == Bounds(0, 9)
    with pytest.raises(TruncatedInput):
        offsets(log, 6, 9, leader_epoch=1)
    assert offsets(log, 4, 9, leader_epoch=1) == [4, 5, 6, 7, 8]
    assert offsets(log, 6, 9, leader_epoch=2) == [6, 7, 8]


def test_a_marker_in_a_later_epoch_is_no_truncation(log: MemoryLog) -> None:
    transaction = log.transaction()
    transaction.append("t", 0, b"x")
    log.elect("t", 0)
    transaction.abort()
    log.append("t", 0, b"y")
    assert offsets(log, 2, 3, leader_epoch=1) == [2]


def test_a_topic_created_again_has_another_id_and_is_empty(log: MemoryLog) -> None:
    fill(log, 2)
    old = wanted(log, 0, 2)
    log.recreate("t")
    assert log.records("t") == []
    with pytest.raises(RecreatedTopic):
        list(log.read(old))
    log.delete("t")
    with pytest.raises(RecreatedTopic):
        list(log.read(old))
    assert log.describe(["t"]) == {}
    assert log.records("t") == []


def test_a_topic_created_again_gives_its_new_records_where_it_has_enough(log: MemoryLog) -> None:
    """Fetches carry no topic ids, at Kafka neither: a service compares ids before it seals."""
    fill(log, 2)
    old = wanted(log, 0, 2)
    log.recreate("t")
    fill(log, 3)
    assert [message.offset() for block in log.read(old) for message in block] == [0, 1]


@pytest.mark.parametrize("kept", [True, False])
def test_commits_of_a_deleted_topic_go_with_it_unless_they_are_kept(log: MemoryLog, kept: bool) -> None:
    log.create_topic("other", 1)
    commits = {(topic, 0): Commit(1, "here") for topic in ("t", "other")}
    log.commit("g", commits)
    log.recreate("t", keep_commits=kept)
    assert log.committed("g", commits) == (commits if kept else {("other", 0): commits["other", 0]})


def test_partitions_can_be_added(log: MemoryLog) -> None:
    fill(log, 1)
    before = log.describe(["t"])["t"].topic_id
    log.grow("t", 3)
    about = log.describe(["t"])["t"]
    assert (about.partitions, about.topic_id) == (3, before)
    assert log.append("t", 2, b"x") == 0


def test_a_snapshot_can_be_restored_again_and_again(log: MemoryLog) -> None:
    fill(log, 2)
    then = log.snapshot()
    for _ in range(2):
        fill(log, 3)
        log.restore(then)
        assert bounds(log) == Bounds(0, 2)
    with pytest.raises(TypeError):
        log.restore("something else")


def test_a_copy_is_the_same_broker(log: MemoryLog) -> None:
    fill(log, 2)
    assert len(copy.deepcopy(log).records("t")) == 2
    assert MemoryLog(uuid.uuid4().hex).records("t") == []


def test_a_broker_that_is_down_answers_nothing(log: MemoryLog) -> None:
    fill(log, 2)
    log.set_down(down=True)
    for ask in (lambda: log.describe(["t"]), lambda: bounds(log), log.writer().flush):
        with pytest.raises(Unavailable):
            ask()
    log.set_down(down=False)
    assert bounds(log) == Bounds(0, 2)


def test_a_topic_that_grows_keeps_its_limits(log: MemoryLog) -> None:
    log.configure("t", compacted=True, after_max_ms=500, min_insync_replicas=2)
    before = log.describe(["t"])["t"]
    log.grow("t", 7)
    assert log.describe(["t"])["t"] == replace(before, partitions=7)
