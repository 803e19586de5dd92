"""A writer deals the partitions of a broker to several producers, and each partition keeps its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import ceil
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sqe_chain.adapters.kafka import _writer
from sqe_chain.adapters.kafka._settings import settings
from sqe_chain.errors import OutputRefused, Unavailable
from sqe_chain.ports import Output, TopicInfo

_ports = count(1)


class Producers:
    """Producers that acknowledge everything, and what each was given; the topics that a broker answers about.

    Args:
        leaders: topic -> which broker leads each partition.
    """

    def __init__(self, leaders: Mapping[str, Sequence[int]]) -> None:
        self._leaders = leaders
        self.made = 0
        self.silent, self.refused = 0, 0
        """Which producer's records are never acknowledged, and which one's are refused; 0: none."""
        self.sent = defaultdict[tuple[str, int], list[tuple[int, bytes]]](list)
        """Of each partition, in order: which producer sent what."""

    def describe(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name, bytes(16), len(self._leaders[name])) for name in names}

    def leaders(self, topic: str) -> Sequence[int]:
        return self._leaders[topic]

    def make(self, _: Mapping[str, object]) -> Producer:
        self.made += 1
        return Producer(self, self.made)


class Producer:
    """One of them."""

    def __init__(self, all_: Producers, number: int) -> None:
        self._all, self._number = all_, number

    def produce(self, topic: str, value: bytes, _: object, partition: int, *__: object) -> None:
        self._all.sent[topic, partition].append((self._number, value))

    def flush(self, _: float) -> int:
        if self._number == self._all.refused:
            raise KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, "it was refused", fatal=True))
        return len(self)

    def __len__(self) -> int:
        return int(self._number == self._all.silent)

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: 0


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writers for topics with these leaders."""
    writers = list[_writer.KafkaWriter]()

    def make(leaders: Mapping[str, Sequence[int]]) -> tuple[_writer.KafkaWriter, Producers]:
        producers = Producers(leaders)
        monkeypatch.setattr(_writer, "Producer", producers.make)
        monkeypatch.setattr(_writer, "admin", lambda _: producers)
        writers.append(_writer.KafkaWriter(settings(f"127.0.0.1:{next(_ports)}", {}, 1, 0.1)))
        return writers[-1], producers

    yield make
    for writer in writers:
        writer.close()


def records(topic: str, partitions: int, number: int) -> list[Output]:
    return [(topic, n % partitions, None, b"%d" % n, None, 0) for n in range(number)]


@pytest.mark.parametrize("brokers", [1, 2, 3, 4, 5, 6, 10])
@pytest.mark.parametrize("partitions", [1, 4, 8, 12, 64, 100])
def test_one_producer_waits_at_most_one_round_trip_longer_than_with_five_requests_in_flight(
    writing: Any, brokers: int, partitions: int
) -> None:
    """It sends one request for each partition, one after the other. Two topics share the producers."""
    leaders = {
        topic: [(shift + 7 * n) % brokers for n in range(partitions)]
        for shift, topic in enumerate(("many", "more"))
    }
    writer, producers = writing(leaders)
    for topic in leaders:
        writer.write(records(topic, partitions, partitions))
    writer.flush()
    led, waiting = Counter[int](), Counter[tuple[int, int]]()
    for (topic, partition), ((producer, _),) in producers.sent.items():
        led[leaders[topic][partition]] += 1
        waiting[leaders[topic][partition], producer] += 1
    assert led.total() == 2 * partitions
    for (leader, _), waits in waiting.items():
        assert waits <= ceil(led[leader] / 5) + 1
    assert producers.made <= min(5, ceil(max(led.values()) / 2)), "none without need"


def test_a_partition_keeps_its_producer(writing: Any) -> None:
    """Also one that the topic did not have when its leaders were looked up, and whatever else is asked in between."""
    writer, producers = writing({"t": [1] * 12, "u": [1, 2]})
    sent = records("t", 15, 150)
    writer.write(sent[:70])
    writer.connect(["u", "t"])
    writer.write(sent[70:])
    writer.flush()
    assert producers.made == 5
    assert len(producers.sent) == 15
    for (_, partition), found in producers.sent.items():
        assert len({producer for producer, _ in found}) == 1
        assert [value for _, value in found] == [b"%d" % n for n in range(partition, 150, 15)]


@pytest.mark.parametrize(("silent", "refused"), [(1, 2), (2, 1)])
def test_a_refusal_is_raised_while_another_producer_waits(writing: Any, silent: int, refused: int) -> None:
    writer, producers = writing({"t": [1] * 4})
    writer.write(records("t", 4, 4))
    producers.silent = silent
    with pytest.raises(Unavailable, match="1 records were not acknowledged"):
        writer.flush()
    producers.refused = refused
    with pytest.raises(OutputRefused):
        writer.flush()
