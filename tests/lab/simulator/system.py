"""The simulated system: broker, stores and services of a world, and the steps that act on the broker."""

from __future__ import annotations

import atexit
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from sqe_chain.adapters.memory import MemoryLog, MemoryMessage
from sqe_chain.adapters.memory import MemoryTransaction as Transaction
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.message import is_enveloped, wrap
from sqe_chain.errors import ChainError, RecreatedTopic
from sqe_chain.plans.settings import Settings
from sqe_chain.testing.clock import SteppingClock
from sqe_chain.testing.faults import Crash, PortCall
from sqe_chain.testing.rehearsal import Rehearsal, Zombie
from tests.lab.reference import facts
from tests.lab.reference.model import Model
from tests.lab.reference.world import COMPACTED, FOLDER, World
from tests.lab.simulator import malformed
from tests.lab.simulator.flows import flows_of, text_type
from tests.lab.simulator.invariants import WriteChecks

if TYPE_CHECKING:
    from tests.lab.simulator.table_audit import TableAudit

NAME = "simulation"
MOST_WAITS = 60
MOST_ROWS = 5_000
BETWEEN = {"write": "states", "publish": "outputs", "table": "steps of the table"}
"""Writes between which a service may crash: methods of the store and of a writer, and all calls of a table."""
LIMIT_MS = 3_600_000
"""How far a record's time may be from the broker's clock, in worlds with limits."""


class RecordArchive(dict[tuple[str, int], Mapping[int, MemoryMessage]]):
    """All records by (topic id, partition), including those of deleted topics."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__()
        self._log = log
        self._topics: set[str] = set()

    def add_topic(self, topic: str) -> None:
        """Add a topic's records, after it was created or changed."""
        info = self._log.describe([topic])[topic]
        for partition in range(info.partitions):
            self[info.topic_id.hex(), partition] = self._log.kept(topic, partition)
        self._topics.add(topic)

    def refresh(self) -> None:
        """Look at the present topics again, after the log was put back to a snapshot."""
        for topic in sorted(self._topics):
            self.add_topic(topic)


class SimulatedSystem:
    """Broker, stores and services of a world, and the steps that act on the broker.

    Args:
        world: describes them.

    Attributes:
        fired: fault -> how often it happened.
        invariants: the checks after every write.
        store: of `totals`, and of republishers that need one.
        other_stores: of the reader, and of a republisher of files.
        writes_left: a key of `BETWEEN` -> how many more of these writes take effect before the service crashes.
        text: the type of payloads.
        origins: topic -> facts written to it, each with whether the topic's present incarnation has it.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.fired: Counter[str] = Counter()
        self.clock = SteppingClock(stop_after=MOST_WAITS)
        self.log = self.new_log(NAME)
        self.log.clear()
        self.log.set_clock(self.clock.now_ms if world.limits else lambda: self.clock.now)
        self.log.set_block(world.block)
        self.store = self.new_store(NAME, world.rows)
        self.other_stores = others = {
            name: self.new_store(f"{NAME}.{name}", MOST_ROWS) for name in ("reader", "files")
        }
        for one in (self.store, *others.values()):
            one.restore_all()
        self.origins: dict[str, list[tuple[str, bool]]] = {topic: [] for topic in world.origins()}
        self.malformed: set[bytes] = set()
        self._odd_times: set[bytes] = set()
        self.writes_left: dict[str, int] = {}
        self.services: dict[str, Rehearsal] = {}
        self.zombies: dict[str, list[Zombie]] = {}
        self._fed = 0
        self.text = text_type(world)
        self.table = _empty_table() if world.table else None
        if world.files:
            _empty_folder()
        settings = Settings(max_records=world.records, keep_plans=world.keep_plans)
        partitions = dict.fromkeys(("origin", "other", "mid", "far", "extra"), world.partitions)
        for topic in ("origin", "other", "mid", "far"):
            self.log.create_topic(topic, world.partitions)
        for name, flow in flows_of(world).items():
            store = others.get("files" if flow.file_sources else name, self.store)
            found = Rehearsal(flow, partitions=partitions, log=self.log, store=store, settings=settings)
            found.clock = self.clock
            self.services[name] = found
            self.zombies[name] = []
        if world.limits:
            for topic in self._output_topics():
                self.log.configure(
                    topic, compacted=topic == COMPACTED, before_max_ms=LIMIT_MS, after_max_ms=LIMIT_MS
                )
        self._archive = RecordArchive(self.log)
        for topic in ("origin", "other", "mid", "far"):
            self._archive.add_topic(topic)
        totals = self.services["totals"]
        self.model = Model(world, self._archive, self.malformed)
        self.invariants = WriteChecks(world, self.log, totals.flow, self.model, self.table)
        for found in self.services.values():
            found.script.watch = self.see
        self.invariants.ordered = True
        self._transactions: list[Transaction] = []
        self._expected_errors: dict[type[ChainError], Callable[[], None]] = {}

    def new_log(self, name: str) -> MemoryLog:
        """The broker; another class may record what is asked of it."""
        return MemoryLog(name)

    def new_store(self, name: str, rows: int) -> MemoryStore:
        """A store that takes `rows` rows at once; another class may record what is asked of it."""
        return MemoryStore(name, rows)

    # ------------------------------------------------------------------ writes

    def _do_feed(self, topic: str, fed: Sequence[tuple[int, str]]) -> None:
        if self.world.files and topic == "origin":
            self._write_file([fact for _, fact in fed])
            return
        count = self.log.describe([topic])[topic].partitions
        for partition, fact in fed:
            kind = fact.split(" ")[3]
            self._fed += 1
            now = self.clock.now_ms() + facts.AHEAD_MS * (kind == facts.AHEAD)
            key = fact.split(" ")[2].encode()
            if self.world.raw:
                value = fact.encode()
            else:
                identity = self._fed.to_bytes(16, "big")
                value = wrap(self.text(value=fact), key=key, timestamp_ms=now, event_id=identity)
                if kind in facts.ODD_TIMES:
                    value = malformed.with_event_time(value, facts.ODD_TIMES[kind])
                    self._odd_times.add(value)
            self.log.append(topic, partition % count, value, key, timestamp_ms=now)
            self.origins[topic].append((fact, True))

    def _write_file(self, facts_of_it: Sequence[str]) -> None:
        """One more file; written under another name first, as the documentation asks for."""
        self._fed += 1
        draft, name = FOLDER / "draft", FOLDER / f"{self._fed:04}.jsonl"
        draft.write_text("".join(json.dumps({"fact": fact}) + "\n" for fact in facts_of_it))
        draft.rename(name)
        self.origins["origin"] += [(fact, True) for fact in facts_of_it]

    def _do_file(self, what: str, index: int) -> None:
        """A file is renamed, or is there under another name as well: neither is another content."""
        known = sorted(FOLDER.glob("*.jsonl"))
        if not known:
            return
        self._fed += 1
        file, name = known[index % len(known)], FOLDER / f"{self._fed:04}.jsonl"
        if what == "rename":
            file.rename(name)
        else:
            name.write_bytes(file.read_bytes())
        self.fired[f"file: {what}"] += 1

    def _do_rubbish(self, topic: str, partition: int, kind: str) -> None:
        self._fed += 1
        values = [message.value() for message in self.log.records(topic)]
        strange = self.malformed | self._odd_times
        sound = [value for value in values if is_enveloped(value) and value not in strange][-1:]
        value = malformed.malformed_message(kind, sound[0] if sound else None, self._fed)
        self.malformed.add(value)
        count = self.log.describe([topic])[topic].partitions
        self.log.append(topic, partition % count, value, b"a", timestamp_ms=self.clock.now_ms())
        self.fired["rubbish" if kind == "rubbish" else "malformed"] += 1

    def _do_open(self, topic: str, partition: int) -> None:
        count = self.log.describe([topic])[topic].partitions
        transaction = self.log.transaction()
        transaction.append(topic, partition % count, b"never seen", b"a")
        self._transactions.append(transaction)
        self.fired["transaction"] += 1

    def _do_abort(self) -> None:
        while self._transactions:
            self._transactions.pop().abort()

    def forget_facts(self, numbers: set[str]) -> None:
        """Facts with these numbers need not arrive: they are lost."""
        for topic, fed in self.origins.items():
            self.origins[topic] = [
                (fact, present and fact.partition(" ")[0] not in numbers) for fact, present in fed
            ]

    def restore_log(self, snapshot: object) -> None:
        """Put the broker back to a snapshot."""
        self.log.restore(snapshot)
        self._archive.refresh()

    def see(self, call: PortCall, answer: Any) -> None:
        """Check a write that took effect; the service may crash after it."""
        if not call.write:
            return
        kind = "table" if call.of == "table" else call.name
        known = self.invariants.last_header(call.args[:3]) if kind == "write" else None
        self.invariants.on_write(call, answer)
        if kind in self.writes_left and call.name != "create":
            if kind == "write" and known and (answer.number, answer.cursor) == (known.number, known.cursor):
                return  # this write only claimed the cell
            self.writes_left[kind] -= 1
            if self.writes_left[kind] < 0:
                self.writes_left.clear()
                self.fired[f"crash between {BETWEEN[kind]}"] += 1
                raise Crash

    def digest(self) -> str:
        """A digest of all present records, commits and states: equal schedules give equal digests."""
        found = blake2b(digest_size=16)
        for topic in sorted({"origin", "other", "mid", "far", "extra", *self._output_topics()}):
            for message in self.log.records(topic):
                found.update(
                    repr((message.coordinates, message.content, message.timestamp_ms, message.epoch)).encode()
                )
        for name, service in self.services.items():
            found.update(repr((name, sorted(service.commits().items()))).encode())
        if self.table is not None:
            copy = self.table.table.copy_all()
            found.update(repr((copy.newest, sorted(copy.files))).encode())
        stored = self.store.copy_all()
        for cell, part in sorted(stored.parts.items()):
            found.update(repr((cell, part.header, sorted(part.states.items()))).encode())
        for flow, home in sorted(stored.homes.items()):
            found.update(repr((flow, home.home, sorted(home.plans.items()))).encode())
        return found.hexdigest()

    def _output_topics(self) -> set[str]:
        """Topics that services write."""
        flows = [service.flow for service in self.services.values()]
        letters = {flow.dead_letter_topic for flow in flows if flow.dead_letters}
        return letters | {node.topic for flow in flows for node in flow.outputs}

    # ------------------------------------------------------------------ brokers

    def _do_elect(self, topic: str, partition: int) -> None:
        self.log.elect(topic, partition % self.log.describe([topic])[topic].partitions)
        self.fired["leader election"] += 1

    def _do_forget(self, group: str) -> None:
        """A group's offsets are deleted; its service starts from the beginning again."""
        self.log.forget(group)
        self.invariants.members.pop(group, None)
        self.fired["offsets forgotten"] += 1
        self.services[group].service = None

    def _do_grow(self, topic: str, more: int) -> None:
        self.log.grow(topic, self.log.describe([topic])[topic].partitions + more)
        self._archive.add_topic(topic)
        self.fired["topic grown"] += 1

    def _do_recreate(self, topic: str, partitions: int, commits: str) -> None:
        """A topic is deleted and created again; Kafka deletes commits with it, if the coordinator learns of it."""
        self._archive.add_topic(topic)
        self.log.recreate(topic, partitions, keep_commits=commits == "commits kept")
        self._archive.add_topic(topic)
        self.fired["topic recreated"] += 1
        if topic in self.origins:
            self.origins[topic] = [(fact, False) for fact, _ in self.origins[topic]]
            self._expected_errors.setdefault(RecreatedTopic, lambda: None)
        else:
            for group in ("hop1", "hop2"):
                self.log.forget(group)
                self.invariants.members.pop(group, None)
                self.services[group].service = None
                self.zombies[group].clear()

    def _do_jump(self, milliseconds: int) -> None:
        self.clock.jump(milliseconds)
        self.fired["clock jumped"] += 1


def _empty_table() -> TableAudit:
    from tests.lab.simulator.table_audit import TableAudit  # noqa: PLC0415 - needs pyarrow

    found = TableAudit()
    found.table.restore_all()
    return found


def _empty_folder() -> None:
    if not FOLDER.exists():
        FOLDER.mkdir()
        atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
    for file in FOLDER.iterdir():
        file.unlink()
