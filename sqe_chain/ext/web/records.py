"""What the page shows of topics: single records, replays by writer, dead-letter records. Plain objects for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from sqe_chain.cli.console import as_json, key_as_json
from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.head import parse_chain
from sqe_chain.errors import EnvelopeError
from sqe_chain.errors.safe_text import shown
from sqe_chain.ext.web.replays import ReplayWatch
from sqe_chain.ext.web.site import MOST_KEY, Json, NotFound
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Bounds, Log, Message, Range, TopicInfo
from sqe_chain.ports.log import shown_place
from sqe_chain.task.dead_letters import DeadLetter, parse_dead_letter

_MOST_VALUE = 64 << 10
"""Bytes of a value that are shown."""


@dataclass(slots=True)
class TopicRecords:
    """What can be seen of the records of some brokers.

    Args:
        log: the brokers; None: none were given.
        show_payloads: whether values of records are shown.
    """

    log: Log | None
    flows: Mapping[str, CompiledFlow] = field(default_factory=dict)
    show_payloads: bool = False
    _watch: ReplayWatch | None = None

    def record_at(self, topic: str, partition: int, offset: int) -> Json:
        """One record: its coordinates, its chain, and whether it repeats a recent one."""
        message = next(self._messages(topic, partition, offset, offset + 1), None)
        if message is None:
            raise NotFound(f"{topic}[{partition}] has no record at offset {offset}")
        return self._record(message)

    def _record(self, message: Message) -> Json:
        value = message.value()
        record: Json = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": message.timestamp()[1],
            "key": _beginning_of_key(message.key()),
            "bytes": 0 if value is None else len(value),
        }
        try:
            head = find_head(value, message.headers())
            record["chain"] = [link.to_json() for link in parse_chain(head.chain)]
        except EnvelopeError as error:
            record["chain"], record["unreadable"] = [], shown(error)
        if self.show_payloads:
            record["value"] = _beginning(value, _MOST_VALUE)
        return record

    def _messages(self, topic: str, partition: int, begin: int, end: int) -> Iterator[Message]:
        if self.log is None:
            raise NotFound("no brokers were given")
        info = self.log.describe([topic]).get(topic)
        if info is None or not 0 <= partition < info.partitions:
            raise NotFound(f"there is no partition {topic}[{partition}]")
        bounds = self.log.bounds([(topic, partition)])[topic, partition]
        yield from self._read(info, partition, bounds, begin, end)

    def _read(
        self, info: TopicInfo, partition: int, bounds: Bounds, begin: int, end: int
    ) -> Iterator[Message]:
        """The messages of a partition that lie within its bounds."""
        start, stop = max(begin, bounds.begin), min(end, bounds.stable_end)
        if self.log is not None and start < stop:
            for block in self.log.read(Range(info.name, info.topic_id, partition, start, stop)):
                yield from block

    def replays_in(self, topic: str) -> Json:
        """Which writers have repeated records of a topic, as far as it was read, and how many records were not compared."""
        if self.log is None:
            return {"replays": [], "unread": None}
        if self._watch is None:
            self._watch = ReplayWatch(self.log)
        writers, unread = self._watch.look(topic)
        replays = [
            {"writer": name, "records": writer.records, "newest_ms": writer.newest_ms, "first": writer.first}
            for name, writer in sorted(writers.items())
        ]
        return {"replays": replays, "unread": unread}

    def dead_letters(self, flow: str, limit: int) -> Json:
        """The newest dead-letter records of a flow that was loaded, and how many of these have each error.

        `unread` is how many older records the topic has. Records of decisions are not among them.
        """
        loaded = self.flows.get(flow)
        if loaded is None or not loaded.dead_letters or self.log is None:
            raise NotFound(f"flow {flow!r} was not loaded, or has no dead-letter records")
        topic = loaded.dead_letter_topic
        info = self.log.describe([topic]).get(topic)
        if info is None:
            raise NotFound(f"there is no topic {topic!r}")
        bounds = self.log.bounds([(topic, partition) for partition in range(info.partitions)])
        records = [
            _letter(message, letter)
            for partition in range(info.partitions)
            for message in self._newest(info, partition, bounds[topic, partition], limit)
            if (letter := parse_dead_letter(message)) is not None
        ]
        records.sort(key=itemgetter("timestamp_ms"))
        reasons = Counter(str(record["error"]) for record in records)
        unread = sum(max(0, bound.stable_end - limit - bound.begin) for bound in bounds.values())
        return {"records": records[-limit:], "reasons": dict(reasons.most_common()), "unread": unread}

    def _newest(self, info: TopicInfo, partition: int, bounds: Bounds, limit: int) -> Iterator[Message]:
        return self._read(info, partition, bounds, bounds.stable_end - limit, bounds.stable_end)


def _beginning(data: bytes | None, most: int) -> object:
    return as_json(data if data is None else data[:most])


def _beginning_of_key(key: bytes | None) -> object:
    """The beginning of a key, for JSON."""
    return key_as_json(key if key is None else key[:MOST_KEY])


def _letter(message: Message, letter: DeadLetter) -> Json:
    return {
        "at": shown_place(message),
        "timestamp_ms": message.timestamp()[1],
        "key": _beginning_of_key(message.key()),
        "record": str(letter),
        "error": letter.error,
        "text": shown(letter.text),
    }
