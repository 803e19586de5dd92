"""Asks a real store, or a real broker, what a schedule asked in memory, and compares the answers.

What may differ is made the same here, and nothing else. Names get a prefix, ids of topics and of the cluster are those of the
broker, records without a time get one by its clock. A heartbeat counter counts from where it is, and a scan gives its rows in any
order. An answer that differs is asked for again until it is the same or patience ends, because brokers report changes one after
another.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from confluent_kafka import Producer

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ports import NO_LIMIT, Locations, Range, StateStore
from tests.support.brokers import Admin
from tests.support.waiting import PATIENCE_S
from tests.traces.recording import READS, Call, Failure, Recording, Trace, content_of

AGAIN_S: Final = 20.0
"""How long an answer that differs is asked for again."""


@dataclass(slots=True)
class Replay:
    """What came of a replay.

    Attributes:
        calls: asked.
        differences: what was answered otherwise, in words.
    """

    calls: int = 0
    differences: list[str] = field(default_factory=list)

    def compare(self, call: Call, ask: Callable[[], Any], *, again: bool) -> None:
        """Ask, and note an answer that differs.

        Args:
            call: with the answer in memory.
            ask: asks for the other one.
            again: it may be asked for again.
        """
        self.calls += 1
        answer = answer_of(ask)

        def is_the_same() -> bool:
            nonlocal answer
            answer = answer_of(ask)
            return bool(answer == call.answer)

        if answer == call.answer or (again and wait_until(is_the_same, AGAIN_S)):
            return
        asked = f"{call.name}{call.arguments!r}"[:600]
        self.differences.append(f"{asked}: {answer!r}"[:2_000] + f"; in memory {call.answer!r}"[:2_000])


def answer_of(ask: Callable[[], Any]) -> Any:
    """The answer, or the error in its place."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - any error is an answer
        return Failure(type(error).__name__, str(error))


def replay_store(trace: Trace, store: StateStore, prefix: str) -> Replay:
    """Ask a store what was asked in memory.

    Args:
        trace: the calls.
        store: has no flow whose name begins with the prefix.
        prefix: of the names of flows.
    """
    found, beats = Replay(), dict[str, int]()

    def called(call: Call) -> Any:
        arguments = [*call.arguments]
        if call.name == "flows":
            return [name.removeprefix(prefix) for name in store.flows() if name.startswith(prefix)]
        flow = arguments[0] = prefix + arguments[0]
        if call.name in {"set_locations", "forget_locations"}:
            arguments[1] = _elsewhere(arguments[1], lambda name: prefix + name)
        answer = getattr(store, call.name)(*arguments)
        if call.name == "scan":
            return sorted(answer)
        if isinstance(answer, Locations):
            return _elsewhere(answer, lambda name: name.removeprefix(prefix))
        if call.name == "home":
            home, counted = answer
            return home, counted - beats.setdefault(flow, counted - call.answer[1])
        return answer

    for call in trace.asked():
        found.compare(call, partial(called, call), again=False)
    return found


def _elsewhere(locations: Locations, renamed: Callable[[str], str]) -> Locations:
    return replace(
        locations,
        stages={name: replace(stage, flow=renamed(stage.flow)) for name, stage in locations.stages.items()},
    )


class BrokerReplay:
    """Asks a real broker what was asked in memory.

    Args:
        bootstrap: address of the broker.
        prefix: of the names of topics and groups, which it does not have yet.
    """

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._admin = Admin(bootstrap)
        self._ids: dict[bytes, bytes] = {}
        self._transactions: dict[int, Producer] = {}
        self._members: dict[int, tuple[str, Any]] = {}
        self._topics: set[str] = set()
        self._cluster = ""

    def run(self, trace: Trace) -> Replay:
        """Ask for everything in a trace."""
        found = Replay()
        self._timeless, self._began_ms = trace.timeless, time.time_ns() // 1_000_000 - 1_000
        with self._opened():
            for call in trace.asked():
                again = call.name in READS or call.name == "read range"
                ask = getattr(self, "_" + call.name.replace(" ", "_"))
                found.compare(call, partial(ask, call, *call.arguments), again=again)
        return found

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._log = KafkaLog(self._bootstrap, timeout_s=20)
        self._writer = self._log.writer()
        self._producer = Producer({"bootstrap.servers": self._bootstrap})
        try:
            yield
        finally:
            for _, member in self._members.values():
                member.leave()
            for producer in self._transactions.values():
                producer.abort_transaction(PATIENCE_S)
            self._writer.close()
            self._log.close()

    # ------------------------------------------------------------------ topics and groups

    def _create_topic(self, _: Call, topic: str, partitions: int) -> None:
        if topic not in self._topics and partitions > 0:
            self._topics.add(topic)
            self._create_without_limits(topic, partitions)
        self._log.create_topic(self._prefix + topic, partitions)

    def _create_without_limits(self, topic: str, partitions: int) -> None:
        """The clock of a schedule is far from the broker's, and a topic in memory takes any time."""
        limits = {f"message_timestamp_{which}_max_ms": str(NO_LIMIT) for which in ("before", "after")}
        self._admin.create(self._prefix + topic, [[1]] * partitions, **limits)

    def _recreate(self, _: Call, topic: str, partitions: int | None) -> None:
        count = partitions or self._log.describe([self._prefix + topic])[self._prefix + topic].partitions
        self._admin.delete(self._prefix + topic)
        self._create_without_limits(topic, count)
        self._log.create_topic(self._prefix + topic, count)

    def _delete_topic(self, _: Call, topic: str) -> None:
        self._log.delete_topic(self._prefix + topic)

    def _grow(self, _: Call, topic: str, partitions: int) -> None:
        self._admin.add_partitions(self._prefix + topic, partitions)

    def _delete_group(self, _: Call, group: str) -> None:
        """In memory the session of its member ends with it."""
        for name, member in self._members.values():
            if name == self._prefix + group:
                member.driver.unsubscribe()
        deleted = partial(self._log.delete_group, self._prefix + group)
        wait_until(lambda: answer_of(deleted) is None, PATIENCE_S)

    def _describe(self, call: Call, topics: tuple[str, ...]) -> dict[str, Any]:
        found = self._log.describe([self._prefix + topic for topic in topics])
        infos = {name.removeprefix(self._prefix): info for name, info in found.items()}
        return {
            name: replace(
                info,
                name=name,
                topic_id=self._known(call, name, info.topic_id),
                cluster=self._known_cluster(call, name, info.cluster),
            )
            for name, info in infos.items()
        }

    def _known_cluster(self, call: Call, topic: str, cluster: str) -> str:
        """The id in memory of the broker's cluster, which is always the same one."""
        self._cluster = self._cluster or cluster
        wanted = call.answer.get(topic) if isinstance(call.answer, dict) else None
        return wanted.cluster if wanted is not None and cluster == self._cluster else cluster

    def _topic_ids(self, call: Call, topics: tuple[str, ...]) -> dict[str, bytes]:
        found = self._log.topic_ids([self._prefix + topic for topic in topics])
        names = {name.removeprefix(self._prefix): topic_id for name, topic_id in found.items()}
        return {name: self._known(call, name, topic_id) for name, topic_id in names.items()}

    def _known(self, call: Call, topic: str, topic_id: bytes) -> bytes:
        """The id in memory of what has this id at the broker; the first answer decides."""
        wanted = call.answer.get(topic) if isinstance(call.answer, dict) else None
        expected: bytes | None = getattr(wanted, "topic_id", wanted)
        taken = {real: known for known, real in self._ids.items()}
        if topic_id in taken:
            return taken[topic_id]
        if expected is None or expected in self._ids:
            return topic_id
        self._ids[expected] = topic_id
        return expected

    # ------------------------------------------------------------------ records

    def _bounds(self, _: Call, tps: tuple[tuple[str, int], ...]) -> dict[Any, Any]:
        return self._unprefixed(self._log.bounds(self._prefixed(tps)))

    def _read_range(self, _: Call, wanted: Range) -> list[tuple[Any, ...]]:
        topic_id = self._ids.get(wanted.topic_id, wanted.topic_id)
        asked = replace(wanted, topic=self._prefix + wanted.topic, topic_id=topic_id)
        return [
            content_of(message, self._timeless, self._prefix, self._began_ms)
            for block in self._log.read(asked)
            for message in block
        ]

    def _committed(self, _: Call, group: str, tps: tuple[tuple[str, int], ...]) -> dict[Any, Any]:
        return self._unprefixed(self._log.committed(self._prefix + group, self._prefixed(tps)))

    def _commit(self, _: Call, group: str, commits: dict[tuple[str, int], Any]) -> None:
        named = {(self._prefix + topic, partition): commit for (topic, partition), commit in commits.items()}
        self._log.commit(self._prefix + group, named)

    def _join(self, _: Call, number: int, group: str, topics: tuple[str, ...]) -> None:
        name = self._prefix + group
        self._members[number] = name, self._log.join(name, [self._prefix + topic for topic in topics])

    def _committed_to_member(self, _: Call, number: int, tps: tuple[tuple[str, int], ...]) -> dict[Any, Any]:
        return self._unprefixed(self._members[number][1].committed(self._prefixed(tps)))

    def _commit_of_member(self, _: Call, number: int, commits: dict[tuple[str, int], Any]) -> None:
        named = {(self._prefix + topic, partition): commit for (topic, partition), commit in commits.items()}
        self._members[number][1].commit(named)

    def _leave(self, _: Call, number: int) -> None:
        self._members[number][1].leave()

    def _connect(self, _: Call, topics: tuple[str, ...]) -> None:
        self._writer.connect([self._prefix + topic for topic in topics])

    def _write_outputs(self, _: Call, outputs: tuple[Any, ...]) -> None:
        """In memory a record is there at once, so each is waited for."""
        self._writer.write([(self._prefix + topic, *rest) for topic, *rest in outputs])
        self._writer.flush()

    def _append(
        self,
        _: Call,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None,
        headers: Any,
        timestamp_ms: int,
    ) -> int:
        return self._produced(
            self._producer, topic, partition, value, key, headers=headers, timestamp=timestamp_ms
        )

    def _append_in_transaction(
        self, _: Call, number: int, topic: str, partition: int, value: bytes | None, key: bytes | None
    ) -> int:
        if number not in self._transactions:
            config = {"bootstrap.servers": self._bootstrap, "transactional.id": f"{self._prefix}{number}"}
            producer = self._transactions[number] = Producer(config)
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        return self._produced(self._transactions[number], topic, partition, value, key)

    def _abort(self, _: Call, number: int) -> None:
        self._transactions.pop(number).abort_transaction(PATIENCE_S)

    def _produced(
        self, producer: Producer, topic: str, partition: int, value: Any, key: Any, **more: Any
    ) -> int:
        offsets: list[Any] = []
        producer.produce(
            self._prefix + topic,
            value,
            key,
            partition,
            lambda error, message: offsets.append(error or message.offset()),
            **{name: given for name, given in more.items() if given is not None},
        )
        producer.flush(PATIENCE_S)
        found: int = offsets[0]
        return found

    def _prefixed(self, tps: tuple[tuple[str, int], ...]) -> list[tuple[str, int]]:
        return [(self._prefix + topic, partition) for topic, partition in tps]

    def _unprefixed(self, found: dict[Any, Any]) -> dict[Any, Any]:
        return {
            (topic.removeprefix(self._prefix), partition): one for (topic, partition), one in found.items()
        }


PORTS: Final = ("sqlite", "redis", "cassandra", "kafka")


@dataclass(slots=True)
class Replayed:
    """What came of many replays.

    Attributes:
        calls: asked.
        differences: each with the seed of its schedule.
    """

    calls: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, seed: int, replay: Replay) -> None:
        """Add one."""
        self.calls += replay.calls
        self.differences += [f"seed {seed}: {difference}" for difference in replay.differences]


def replayed_stores(recordings: Mapping[int, Recording], address: str) -> Replayed:
    """Ask the store at an address what schedules asked, each of flows of its own."""
    found, store, own = Replayed(), open_store(address), uuid.uuid4().hex[:8]
    try:
        for seed, recording in recordings.items():
            for number, trace in enumerate(recording.stores):
                found.add(seed, replay_store(trace, store, f"{own}-{seed}-{number}-"))
    finally:
        store.close()
    return found


def replayed_broker(recordings: Mapping[int, Recording], bootstrap: str) -> Replayed:
    """Ask a broker what schedules asked, each of topics and groups of its own."""
    found, own = Replayed(), uuid.uuid4().hex[:8]
    for seed, recording in recordings.items():
        found.add(seed, BrokerReplay(bootstrap, f"{own}-{seed}-").run(recording.log))
    return found
