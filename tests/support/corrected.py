"""A chain of republishers whose code is corrected, and a reader that folds what they publish by the rules alone.

raw -> clean -> good -> keyed -> fine. The reader shares no code with what publishes: it reads the records of revisions as JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.chain import Link
from sqe_chain.envelope.message import read
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Message
from sqe_chain.protocol.revising import Corrected
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of

_NAMES = itertools.count()

Function = Callable[[int], object]


class Chain:
    """Two republishers on one broker, whose code changes.

    Attributes:
        log: the broker.
        clean: raw -> good.
        keyed: good -> fine.
    """

    def __init__(self, *, partitions: int = 2, poison: PoisonPolicy = "dead_letter") -> None:
        self.log = MemoryLog(f"corrections-{next(_NAMES)}")
        self.partitions, self.poison, self.fed = partitions, poison, 0
        self.clean = self.deploy("clean", lambda number: number)
        self.keyed = self.deploy("keyed", lambda number: number)

    def deploy(self, name: str, function: Function, revision: int = 1) -> Rehearsal:
        """One of the flows with other code."""
        flow = Flow(name, poison=self.poison)
        topic, output = ("raw", "good") if name == "clean" else ("good", "fine")
        source = flow.source(topic, int, raw=name == "clean")
        # An output with an odd number goes to another partition than an even one, so other code moves lanes.
        source.map(function).to(output, key=str, partitions=self.partitions, revision=revision)
        found = Rehearsal(
            flow,
            log=self.log,
            partitions={"raw": self.partitions, "good": self.partitions},
            settings=Settings(max_excluded_share=1.0, max_records=3),
        )
        setattr(self, name, found)
        return found

    def feed(self, *numbers: int, at_ms: int = 0) -> None:
        """Records of raw, dealt to its partitions, whose time is that of the correction's clock."""
        for number in numbers:
            self.clean.feed("raw", number, partition=self.fed % self.partitions, timestamp_ms=at_ms)
            self.fed += 1

    def run(self) -> None:
        """Both until they have caught up."""
        self.clean.run_until_caught_up()
        self.keyed.run_until_caught_up()

    def counted(self, topic: str, *families: str) -> list[int]:
        """What a reader counts that knows all revisions of these outputs."""
        return sorted(self._effective(topic, families))

    def numbers(self, topic: str) -> list[str]:
        """The names of the outputs that published there, in the order of the log."""
        return [self.links(record)[-1].output for record in self.log.records(topic)]

    def seams(self, family: str) -> list[tuple[int, dict[tuple[str, int], tuple[int, int]] | None]]:
        """The revisions of an output: the number, and the first place of each root partition."""
        topic = {"clean/good": "good", "keyed/fine": "fine"}[family] + ".revisions"
        if topic not in self.log.describe([topic]):
            return []
        first: dict[int, dict[tuple[str, int], tuple[int, int]] | None] = {}
        for record in self.log.records(topic):
            if record.key() != family.encode():
                continue
            raw = json.loads(record.value() or b"")
            since = raw["since"]
            places = since and {
                (own["id"], int(at)): tuple(place) for own in since for at, place in own["from"].items()
            }
            first.setdefault(raw["revision"], places)
        return sorted(first.items())

    def _effective(self, topic: str, families: Iterable[str]) -> Iterable[int]:
        known = {family: self.seams(family) for family in families}
        marks: dict[object, bytes] = {}
        for record in self.log.records(topic):
            envelope, links = read(record.value()), self.links(record)
            root = links[0]
            at = root.leader_epoch, root.offset
            replaced = False
            for link in links:
                name, _, number = link.output.partition("/released.")[0].partition("@")
                for newer, places in known.get(name, ()):
                    if newer <= int(number or 1):
                        continue
                    # A topic that is not named stays with the revision before.
                    place = (0, 0) if places is None else places.get((root.topic_id.hex(), root.partition))
                    replaced = replaced or (place is not None and place <= at)
            lane = record.partition(), envelope.lane
            if replaced or envelope.position <= marks.get(lane, b""):
                continue
            marks[lane] = envelope.position
            yield from (int(payload or b"") for payload in envelope.payloads)

    @staticmethod
    def links(record: Message) -> tuple[Link, ...]:
        return read(record.value()).chain.links


def correct(run: Rehearsal, time_ms: int | None, *, dry: bool = False) -> Corrected:
    """What the command does."""
    run.service = None
    service = Republisher(environment_of(run))
    try:
        return service.correct(time_ms, dry=dry)
    finally:
        service.leave()
