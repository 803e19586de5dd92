"""Two clusters in memory: a republisher and totals of words in the first one, and mirrors in the second one that repeat and lag."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.message import read
from sqe_chain.flow import Flow
from sqe_chain.operations.failover import FailedOver, Failover
from sqe_chain.plans.mirrors import follow_mirrors
from sqe_chain.plans.settings import Settings
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.ports import Log, Message
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.typed_results import payloads_of
from tests.support.word_flows import (
    append_word,
    first_letter,
    same_key,
    stored_words,
    word,
    words_by_first_letter,
)

_names = itertools.count()
PARTITIONS = 2
INPUT = "words"
OUTPUT = "letters"


def totals_of_words(name: str = "notes") -> Flow:
    """A flow that keeps the words of each first letter, and publishes nothing."""
    flow = Flow(name, state_partitions=2)
    words_by_first_letter(flow, INPUT)
    return flow


def published_totals(name: str = "notes", output: str = OUTPUT, *, state_partitions: int = 2) -> Flow:
    """The same flow, which publishes each word that it has counted, too."""
    flow = Flow(name, state_partitions=state_partitions)
    words_by_first_letter(flow, INPUT).to(output, key=first_letter, partitions=PARTITIONS)
    return flow


def chained_totals() -> Flow:
    """A flow of two stages: the second one keeps all words, and publishes each of them."""
    flow = Flow("chain", state_partitions=2)
    letters = words_by_first_letter(flow, INPUT)
    everything = letters.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    everything.to(OUTPUT, key=first_letter, partitions=PARTITIONS)
    return flow


def changed_totals() -> Flow:
    """A flow that publishes all words of a key once for each batch in which there are more."""
    flow = Flow("changes", state_partitions=2)
    words_by_first_letter(flow, INPUT).changes().to(OUTPUT, partitions=PARTITIONS)
    return flow


def republished_words() -> Flow:
    """A flow from raw to the input of the totals."""
    flow = Flow("standard")
    flow.source("raw", StringValue).to(INPUT, key=first_letter, partitions=PARTITIONS)
    return flow


class Following(Rehearsal):
    """A rehearsal whose service reads where the last failover has noted, as each start does."""

    def _log(self) -> Log:
        return follow_mirrors(super()._log(), read_last_plan(self.stores[""], self.flow.name))


@dataclass
class Mirror:
    """Copies a topic from one cluster to another, in the order of each partition, as MirrorMaker does; it keeps no offsets."""

    source: MemoryLog
    target: MemoryLog
    name: str
    topic: str = INPUT
    _next: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def copy(self, most: int = 1_000, *, again: int = 0) -> None:
        """Copy records that are not there yet.

        Args:
            most: how many of each partition.
            again: how many of those before are copied again first.
        """
        for partition in range(PARTITIONS):
            records = [
                record for record in self.source.records(self.topic) if record.partition() == partition
            ]
            known = self._next[partition]
            self._next[partition] = min(known + most, len(records))
            for record in records[max(0, known - again) : self._next[partition]]:
                self.target.append(
                    self.name,
                    partition,
                    record.value(),
                    record.key(),
                    headers=record.headers(),
                    timestamp_ms=record.timestamp()[1],
                )

    def skip(self, count: int) -> None:
        """Never copy the next records of each partition."""
        for partition in range(PARTITIONS):
            self._next[partition] += count


class Clusters:
    """The first cluster with its services, and the second one with a mirror under a name.

    Args:
        name: of the mirrored topic.
        flow: what is failed over.
        settings: of its service.
    """

    def __init__(
        self, name: str = "first.words", flow: Flow | None = None, settings: Settings | None = None
    ) -> None:
        number = next(_names)
        self.first, self.second = MemoryLog(f"first-{number}"), MemoryLog(f"second-{number}")
        self.store = MemoryStore(f"mirrored-{number}", max_rows=2)
        for kept in (self.first, self.second, self.store):
            getattr(kept, "clear", getattr(kept, "restore_all", None))()  # type: ignore[misc]
        self.name, self.flow, self.settings = name, flow or totals_of_words(), settings
        self.standard = Rehearsal(republished_words(), partitions={"raw": 2}, log=self.first)
        self.totals = self.service(self.first)
        self.second.create_topic("padding", 1)
        self.second.create_topic(name, PARTITIONS)
        if name == INPUT:
            self.second.recreate(name)  # in memory the first topic of a name has the same id everywhere
        for partition in range(PARTITIONS):  # so that offsets differ
            for _ in range(3 * (1 + partition)):
                self.second.append(name, partition, None)
            self.second.truncate_before(name, partition, 3 * (1 + partition))
        self.mirror = Mirror(self.first, self.second, name)
        self.outputs: Mirror | None = None
        if self.flow.compile().outputs:
            self.outputs = Mirror(self.first, self.second, f"first.{OUTPUT}", OUTPUT)
            self.second.create_topic(self.outputs.name, PARTITIONS)
        self.fed: list[str] = []

    def service(self, log: MemoryLog) -> Following:
        """The service, started in a cluster."""
        return Following(
            self.flow, partitions={INPUT: PARTITIONS}, log=log, store=self.store, settings=self.settings
        )

    def feed(self, words: str) -> None:
        """Publish words in the first cluster; they are not read yet."""
        for text in words.split():
            self.standard.feed("raw", word(text), partition=ord(text[0]) % 2)
        self.fed += words.split()
        self.standard.run_until_caught_up()

    def operation(
        self,
        to: MemoryLog | None = None,
        names: Mapping[str, str] | None = None,
        accepted: tuple[str, ...] = (),
    ) -> tuple[Following, Callable[[], FailedOver]]:
        """What fails over to a cluster, by default to the second one, and what runs it."""
        found, work = self.work(to, names, accepted)
        return found, work.run

    def work(
        self,
        to: MemoryLog | None = None,
        names: Mapping[str, str] | None = None,
        accepted: tuple[str, ...] = (),
    ) -> tuple[Following, Failover]:
        """The same, not run yet."""
        found = self.service(to or self.second)
        found._log = lambda: found.log  # type: ignore[method-assign] # as the command opens it
        env = environment_of(found)
        if names is None:
            names = {INPUT: self.name} | ({OUTPUT: self.outputs.name} if self.outputs else {})
        return found, Failover(env, names, accepted=accepted)

    def fail_over(
        self,
        to: MemoryLog | None = None,
        names: Mapping[str, str] | None = None,
        accepted: tuple[str, ...] = (),
    ) -> FailedOver:
        """Fail over, and go on in that cluster."""
        done = self.operation(to, names, accepted)[1]()
        self.totals = self.service(to or self.second)
        return done

    def check(self) -> None:
        """Each word counts once, in the order in which it was published."""
        assert stored_words(self.totals) == {key: " ".join(words) for key, words in self.expected().items()}

    def expected(self) -> dict[str, list[str]]:
        """Words by first letter, as they were published."""
        expected = defaultdict[str, list[str]](list)
        for text in self.fed:
            expected[text[0]].append(text)
        return dict(expected)


def read_by_lanes(records: Iterable[Message]) -> dict[str, list[str]]:
    """The words by first letter that a reader of a topic counts. What is not beyond the last one on its lane is a replay to it.

    Lanes and positions are what the page of concepts names, and not what envelopes state of them.
    """
    found, marks = defaultdict[str, list[str]](list), dict[tuple[object, ...], tuple[int, ...]]()
    for record in records:
        envelope = read(record.value())
        links = envelope.chain.links
        lane = record.partition(), *((link.topic, link.partition, link.output, link.shard) for link in links)
        position = links[0].offset, *(link.ordinal for link in links)
        if position > marks.get(lane, ()):
            marks[lane] = position
            for payload in payloads_of(StringValue, envelope):
                found[payload.value[0]].append(payload.value)
    return dict(found)
