"""Of two runs that join a group, the newer one commits, and the older one no longer does: in memory, and at a real Kafka."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from subprocess import PIPE, Popen

import pytest
from confluent_kafka import Consumer

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import GroupInUse, Superseded
from sqe_chain.ports import Commit, Log, TopicPartition
from tests.support.brokers import Admin
from tests.support.waiting import eventually


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
def name(log: Log) -> str:
    """Of a topic with two partitions, and of a group."""
    name = f"t-{uuid.uuid4().hex}"
    log.create_topic(name, 2)
    return name


def commits(topic: str, offset: int) -> dict[TopicPartition, Commit]:
    return {(topic, partition): Commit(offset, f"up to {offset}") for partition in (0, 1)}


def stored(log: Log, name: str) -> set[int]:
    return {commit.offset for commit in log.committed(name, [(name, 0), (name, 1)]).values()}


def test_a_newer_member_fences_an_older_one(log: Log, name: str) -> None:
    one = log.join(name, [name])
    one.commit(commits(name, 1))
    two = log.join(name, [name])
    assert two.committed([(name, 0)]) == {(name, 0): Commit(1, "up to 1")}
    for _ in range(2):
        with pytest.raises(Superseded, match="newer run"):
            one.commit(commits(name, 2))
        assert stored(log, name) == {1}
    two.commit(commits(name, 3))
    one.leave()
    two.commit(commits(name, 4))
    assert stored(log, name) == {4}
    two.leave()


def test_nobody_else_commits_while_there_is_a_member(log: Log, name: str) -> None:
    member = log.join(name, [name])
    member.commit(commits(name, 1))
    with pytest.raises(GroupInUse, match="has members"):
        log.commit(name, commits(name, 9))
    assert stored(log, name) == {1}
    member.leave()
    log.commit(name, commits(name, 2))
    assert stored(log, name) == {2}


@pytest.mark.parametrize("committed", [False, True])
def test_a_member_whose_session_has_ended_goes_on_if_nobody_has_committed(
    log: Log, name: str, *, committed: bool
) -> None:
    one = log.join(name, [name])
    one.committed([(name, 0), (name, 1)])
    one.commit(commits(name, 1))
    two = log.join(name, [name])  # it takes the place, and gives it back
    if committed:
        two.commit({(name, 1): Commit(5)})
    two.leave()
    if committed:
        with pytest.raises(Superseded):
            one.commit(commits(name, 2))
        assert stored(log, name) == {1, 5}
    else:
        one.commit(commits(name, 2))
        assert stored(log, name) == {2}
    one.leave()


def test_new_partitions_and_other_members_do_not_stop_its_commits(kafka: str) -> None:
    """The broker asks it to join again, as the same member. It commits partitions that another one was given."""
    log, name = KafkaLog(kafka, timeout_s=20), f"t-{uuid.uuid4().hex}"
    log.create_topic(name, 2)
    member = log.join(name, [name])
    member.commit(commits(name, 1))
    Admin(kafka).add_partitions(name, 3)
    member.commit(commits(name, 2))
    assert log.members(name) == []
    other = Consumer({"bootstrap.servers": kafka, "group.id": name, "client.id": "foreign"})
    assigned = list[int]()
    other.subscribe([name], on_assign=lambda _, tps: assigned.append(len(tps)))

    def has_joined() -> bool:
        other.poll(0.1)
        member.commit(commits(name, 3))
        return bool(assigned)

    eventually(has_joined, "another member is admitted")
    assert [text.split()[0] for text in log.members(name)] == ["foreign"]
    member.commit({**commits(name, 4), (name, 2): Commit(4)})
    assert stored(log, name) == {4}
    other.close()
    member.leave()
    log.close()


SLEEPER = """
import os, signal, sys
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.errors import Superseded
from sqe_chain.ports import Commit
address, name = sys.argv[1:]
member = KafkaLog(address, {"session.timeout.ms": "6000"}).join(name, [name])
member.committed([(name, 0)])
member.commit({(name, 0): Commit(1)})
print("joined", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
try:
    member.commit({(name, 0): Commit(2)})
    print("committed")
except Superseded:
    print("superseded")
"""


@pytest.mark.parametrize("came", ["nobody", "and left", "and stays"])
def test_a_process_that_slept_longer_than_its_session(kafka: str, came: str) -> None:
    log, name = KafkaLog(kafka, timeout_s=20), f"t-{uuid.uuid4().hex}"
    log.create_topic(name, 2)
    with Popen([sys.executable, "-c", SLEEPER, kafka, name], stdout=PIPE, text=True) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "joined\n"

        def has_ended() -> bool:
            try:
                log.commit(name, log.committed(name, [(name, 0)]))
            except GroupInUse:
                return False
            return True

        eventually(has_ended, "its session has ended")
        newer = None if came == "nobody" else log.join(name, [name])
        if newer is not None:
            newer.commit({(name, 0): Commit(7)})
            if came == "and left":
                newer.leave()
        os.kill(sleeper.pid, signal.SIGCONT)
        answer = sleeper.stdout.read().split()
    expected = "committed" if came == "nobody" else "superseded"
    assert answer == [expected]
    assert log.committed(name, [(name, 0)])[name, 0].offset == (2 if expected == "committed" else 7)
    if newer is not None:
        newer.leave()
    log.close()
