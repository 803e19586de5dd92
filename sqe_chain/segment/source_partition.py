"""One input partition: decode, drop replays, push payloads into the operators before any stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqe_chain.chain import read_lane, root_position, stored_epoch
from sqe_chain.envelope.carrier import CHAIN_HEADER, envelopes_of, find_head
from sqe_chain.envelope.message import EnvelopeHead, check_timestamp, is_enveloped, parse_chain, payloads_of
from sqe_chain.errors import (
    EmptyValue,
    EnvelopeError,
    OutputTooLarge,
    PoisonError,
    ServiceStopped,
    WrongPayloadType,
)
from sqe_chain.flow import Flow
from sqe_chain.flow.context import Context, Origin, TopicIdPartition, new_origin
from sqe_chain.flow.event_time import event_ms
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.nodes import Node
from sqe_chain.flow.units import Push, number
from sqe_chain.ports import Message, Output
from sqe_chain.segment.compiler import Collector, Compiler
from sqe_chain.segment.event_times import ORIGIN, Hop, guard_of
from sqe_chain.segment.exclusion import Exclusion, record_crc
from sqe_chain.segment.outputs import RECORD_OVERHEAD, Gatherer, headers_size
from sqe_chain.segment.poison import dead_letter, exclusion_of, no_letter
from sqe_chain.segment.results import Job, PartitionEnd, Portion

if TYPE_CHECKING:
    from sqe_chain.envelope.columns import Columns

WORTHWHILE = 20
"""Messages of a block; for fewer of them columns cost more than they save."""
_LETTERS_HELD: Final = 10_000
_FIRST: Final = number(0)
_parse_head: Final = EnvelopeHead.FromString


class SourcePartition:
    """The records of one range, on their way into the flow.

    Attributes:
        flow: the flow.
        node: its source.
        tp: topic, topic id and partition.
        marks: the partition's marks; they move.
        lanes: lane as envelopes state it -> the lane that marks use; those seen so far.
        times: event time; None: nobody asks for it.
        writers: lane as envelopes state it -> name of the writer on it; those seen so far.
        skipped: offset -> why it is left out, known before this attempt.
        collector: where units and payloads arrive.
        excluded: inputs newly left out.
        outputs: records to publish so far; whoever takes them clears the list. Dead letters come last, when
            their number is known.
    """

    def __init__(
        self,
        flow: Flow,
        job: Job,
        portion: Portion,
        compiler: Compiler,
        collector: Collector,
        gatherer: Gatherer,
        columns: type[Columns] | None = None,
    ) -> None:
        read = portion.read
        self.flow = flow
        self.node = next(node for node in flow.sources() if read.topic in node.topics)
        self.tp = TopicIdPartition(read.topic, read.topic_id, read.partition)
        push = compiler.after(self.node)
        if push is None:
            raise AssertionError(f"{self.node.declared_at}: checked before a flow runs")
        self._push: Push = push
        self.collector = collector
        self._gather = gatherer.gather
        self._now_ms = job.clock_ms
        self._topics = job.topics
        self._stateful = bool(flow.stages())
        self._wants_key = wants_message_key(flow, self.node)
        self._columns = columns
        self._trial = bool(job.suspects)
        self._brake = job.brake
        self._letters: list[Output] = []
        self.skipped = {one.offset: one for one in portion.exclusions}
        self.lanes: dict[int, int] = {}
        self.excluded: list[Exclusion] = []
        self.outputs: list[Output] = []
        self.times = portion.times and portion.times.copy(clock_ms=job.clock_ms, guard=guard_of(flow))
        self.writers = {0: ORIGIN}
        self.marks = marks = (
            portion.marks.copy()
        )  # an attempt that fails must leave the plan's marks as they are
        marks.compacted, marks.max_lanes = read.topic in job.compacted, flow.max_lanes
        marks.recreated = flow.recreated
        self._end = PartitionEnd(read.topic, read.partition, portion.marks)

    def feed(self, messages: Sequence[Message]) -> None:
        """Take a block of records: units and payloads are collected, outputs gathered by input."""
        self.count(messages, self.take(messages), sum(len(message.value() or b"") for message in messages))

    def take(self, messages: Sequence[Message]) -> int:
        """`feed` without the counting. Returns how many of the records were replays."""
        codec = self.node.codec if not self.node.raw and self.node.timestamp is None else None
        if codec is None or self.skipped or self._columns is None or len(messages) < WORTHWHILE:
            return sum(self._extraordinary(message) for message in messages)
        envelopes, carried = envelopes_of(messages)
        columns = self._columns(envelopes, codec.type_name.encode(), carried=carried)
        return self._feed_ordinary(messages, envelopes, columns, codec.decode, carried=carried)

    def count(self, messages: Sequence[Message], replays: int, size: int) -> None:
        """Count a block that was read.

        Args:
            messages: the block.
            replays: how many of them were replays.
            size: bytes of their values.
        """
        # They wait until the brake has looked at the whole partition, unless that takes too much memory.
        if len(self._letters) > _LETTERS_HELD:
            self._release_letters()
        end, last = self._end, messages[-1]
        end.records += len(messages)
        end.replays += replays
        end.size += size
        end.last_offset, end.last_epoch = last.offset(), stored_epoch(last.leader_epoch())
        end.last_timestamp_ms = last.timestamp()[1]
        end.last_crc = record_crc(last.key(), last.value())

    def letters(self, messages: Sequence[Message]) -> list[Output]:
        """The dead letters of inputs that were read in an earlier batch, waited, and are left out only now.

        Args:
            messages: their records, as far as they are still there.

        Raises:
            PoisonError: one is not there any more.
            OutputTooLarge: a letter is larger than its topic accepts.
        """
        found = {message.offset(): message for message in messages}
        for offset, exclusion in self.skipped.items():
            message = found.get(offset)
            if message is None:
                raise no_letter(self.flow, exclusion)
            epoch, headers = stored_epoch(message.leader_epoch()), message.headers()
            head = find_head(message.value(), headers) if _is_chained(message) else None
            lane, position = (head.lane, head.position) if head is not None else (0, b"")
            position = position or root_position(epoch, offset)
            self._leave_out(
                Origin(self.tp, offset, epoch, self.read_lane(lane), position, head, message), exclusion
            )
        return self._letters

    def finish(self) -> PartitionEnd:
        """The end of the partition, after its last record; the dead letters are among the outputs now.

        Raises:
            TooManyExcluded: the poison policy would leave out more than it may.
        """
        self._release_letters()
        self._end.marks = self.marks.copy()
        self._end.times = self.times
        return self._end

    def _release_letters(self) -> None:
        if self._brake is not None:
            self._brake.check(self.flow.name, self.excluded, self._end.records - self._end.replays)
        self.outputs += self._letters
        self._letters.clear()

    def _feed_ordinary(
        self,
        messages: Sequence[Message],
        envelopes: Sequence[bytes | None],
        columns: Columns,
        decode: Callable[[bytes], Any],
        *,
        carried: bool,
    ) -> int:
        """Enveloped records of a declared type: the hottest loop of all.

        Columns have said of each whether it is a sound envelope with one payload of that type; the others are taken
        one by one.

        Returns:
            How many were replays.
        """
        tp, lanes, made, outputs = self.tp, self.lanes, self.collector.made, self.outputs
        accept, push, gather = self.marks.accept, self._push, self._gather
        now, wants_key, drop_replays = self._extraordinary, self._wants_key, self._stateful
        by_time, order_ms, observed = self.flow.by_time, -1, list[int]()
        replays = 0
        for index, (message, envelope, plain) in enumerate(
            zip(messages, envelopes, columns.ordinary.tolist(), strict=True)
        ):
            if not plain or envelope is None:
                replays += now(message)
                continue
            head, offset, epoch = (
                _parse_head(envelope),
                message.offset(),
                stored_epoch(message.leader_epoch()),
            )
            try:
                fresh = accept(head, offset, epoch)
            except EnvelopeError as error:
                self._undecodable(message, offset, epoch, error)
                continue
            if not fresh:
                replays += 1
                # A republisher passes replays on, and its readers ignore them: its marks serve to notice gaps only.
                if drop_replays:
                    continue
            lane, position = head.lane, head.position or root_position(epoch, offset)
            if by_time:
                order_ms = self._observe(head, head.timestamp_ms)
            own = lanes.get(lane) or self.read_lane(lane)
            origin = new_origin((tp, offset, epoch, own, position, head, message, None, order_ms))
            try:
                payload: Any = message.value() if carried else head.payload
                push(decode(payload), self._key(head, message) if wants_key else None, _FIRST, origin)
                if made:
                    gather(made, origin, outputs)
                observed.append(index)
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                self._exclude(origin, error)
        if not by_time:
            self.observe_run(columns, observed, envelopes)
        return replays

    def _extraordinary(self, message: Message) -> int:
        """One record of a raw source, a decoder's, a null one, or one in a range with exclusions.

        Returns:
            1 for a replay, else 0.
        """
        node, value, offset = self.node, message.value(), message.offset()
        if self.times is not None:
            self.times.begin()
        epoch = stored_epoch(message.leader_epoch())
        headers, chained = message.headers(), _is_chained(message)
        if value is None and not chained and node.nulls == "skip":
            return 0
        if node.raw or (value is None and not chained and node.nulls == "decode"):
            if chained:
                raise ServiceStopped(
                    f"{self.tp.topic}[{self.tp.partition}]@{offset}: an envelope, or a chain in headers, on a topic "
                    "that was declared raw: its chain would be lost; declare the source without raw=True"
                )
            head, stated, position = None, 0, root_position(epoch, offset)
            fresh = self.marks.accept_raw(offset, epoch)
        else:
            try:
                head = find_head(value, headers)
                fresh = self.marks.accept(head, offset, epoch)
            except EnvelopeError as error:
                self._undecodable(message, offset, epoch, error)
                return 0
            stated, position = head.lane, head.position or root_position(epoch, offset)
        if not fresh and self._stateful:
            return 1
        origin = Origin(self.tp, offset, epoch, self.read_lane(stated), position, head, message)
        known = self.skipped.get(offset)
        if known is not None and not self._trial:
            self._leave_out(origin, known)
            return int(not fresh)
        self._process(origin, known)
        return int(not fresh)

    def _process(self, origin: Origin, known: Exclusion | None) -> None:
        """Push the values of one input, and gather what they give.

        Args:
            origin: the input.
            known: why it is on trial; None: it is not.
        """
        made = self.collector.made
        try:
            values: Iterable[tuple[int, bytes | None, object]] = self._decoded(origin)
            if self.node.timestamp is not None:
                values = list(values)
                origin = self._timed(origin, self.node.timestamp, values)
            if self.flow.by_time:
                origin = origin._replace(order_ms=self._observe(origin.head, origin.timestamp_ms))
            for index, own, value in values:
                self._push(value, own, number(index), origin)
            if known is not None:  # stages try it and take it back, nothing of it is published
                made.clear()
                self._forget_time()
                self._leave_out(origin, known)
            elif made:
                self._gather(made, origin, self.outputs)
            if known is None and not self.flow.by_time:
                self._note_time(origin.head, origin.timestamp_ms)
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
            self._exclude(origin, error)

    def _decoded(self, origin: Origin) -> Iterator[tuple[int, bytes | None, object]]:
        """Every payload of an input, decoded: its index, key and value."""
        node, head, message = self.node, origin.head, origin.message
        if message is None:
            raise AssertionError("a message read has its record")
        if head is None and (node.timestamp is None or node.no_timestamp == "record"):
            check_timestamp(message.timestamp()[1])  # of an envelope it is checked with all the rest
        payloads: Sequence[bytes | None] = [message.value()]
        key = message.key()
        if head is not None:
            payloads, key = payloads_of(head), self._key(head, message)
            if node.codec is not None and not node.codec.reads(head.type):
                raise WrongPayloadType(
                    f"the payload is a {head.type}, the source at {node.declared_at} takes {node.codec.type_name}"
                )
        for index, payload in enumerate(payloads):
            if payload is None and node.nulls != "decode":
                if node.nulls == "skip":
                    continue
                raise EmptyValue(
                    "a null value; declare the source with nulls='skip', or a decoder and nulls='decode'"
                )
            yield index, key, self._decode(payload, key, origin)

    def _timed(
        self, origin: Origin, function: DeclaredFunction, values: Sequence[tuple[int, bytes | None, object]]
    ) -> Origin:
        """The input, with the event time that the user's function gives for its values.

        Raises:
            PoisonError: it gives none, and the source does not allow that; or several values have several times.
            Exception: whatever the function raises.
        """
        times: set[int] = set()
        call = function.function
        for _, own, value in values:
            given = call(value, Context(origin, own, self._now_ms)) if function.takes_context else call(value)
            try:
                times.add(event_ms(given))
            except PoisonError:
                if self.node.no_timestamp == "poison":
                    raise
                times.add(origin.timestamp_ms)
        if len(times) > 1:
            raise PoisonError(
                f"its {len(values)} payloads have several event times, {min(times)} to {max(times)} ms: an input has one"
            )
        return origin.at(times.pop()) if times else origin

    def _decode(self, payload: bytes | None, key: bytes | None, origin: Origin) -> object:
        node = self.node
        if node.codec is not None:
            return node.codec.decode(payload or b"")
        decoder: Any = node.decoder
        return (
            decoder(payload, Context(origin, key, self._now_ms)) if node.takes_context else decoder(payload)
        )

    def _key(self, head: EnvelopeHead, message: Message) -> bytes | None:
        return head.key if head.HasField("key") else message.key()

    def _observe(self, head: EnvelopeHead | None, timestamp_ms: int) -> int:
        """Move event time by an input, and say where it belongs in the order of times; see `EventTimes.observe`."""
        if self.times is None:
            raise AssertionError("asked for where there are times")
        if head is None:
            return self.times.observe(ORIGIN, 0, timestamp_ms)
        return self.times.observe(self.writer(head), head.lane, timestamp_ms, head.watermark_ms or None)

    def _note_time(self, head: EnvelopeHead | None, timestamp_ms: int) -> None:
        """Move event time by an input, where no stage asks for its place."""
        if self.times is None:
            return
        if head is None:
            self.times.observe_all(ORIGIN, (timestamp_ms,))
        else:
            self.times.observe_all(self.writer(head), (timestamp_ms,), head.watermark_ms or None)

    def observe_run(
        self, columns: Columns, indexes: Sequence[int], envelopes: Sequence[bytes | None]
    ) -> None:
        """Move event time by ordinary messages, where no stage asks for their order.

        Args:
            columns: of their block.
            indexes: which of the block.
            envelopes: of the block.
        """
        if self.times is None or not indexes:
            return
        times, stated = columns.timestamp_ms[indexes], columns.watermark_ms[indexes]
        lanes = columns.lane[indexes].tolist()
        for lane in dict.fromkeys(lanes):
            if lane not in self.writers:
                self.writer(_parse_head(envelopes[indexes[lanes.index(lane)]] or b""))
        by_writer: dict[str, list[int]] = {}
        for lane in dict.fromkeys(lanes):
            by_writer.setdefault(self.writers[lane], []).append(lane)
        for name, own in by_writer.items():
            chosen: list[int] | slice = slice(None)
            if len(by_writer) > 1:
                chosen = [number for number, lane in enumerate(lanes) if lane in own]
            self.times.observe_all(name, times[chosen].tolist(), int(stated[chosen].max()))

    def writer(self, head: EnvelopeHead) -> str:
        """The name of the writer on an envelope's lane, which may be met for the first time."""
        known = self.writers.get(head.lane)
        if known is not None:
            return known
        name, hops = writer_of(head)
        self.writers[head.lane] = name
        if self.times is not None:
            self.times.introduce(name, hops)
        return name

    def _forget_time(self) -> None:
        """An input that is left out moves no time, for a redo does not look into it."""
        if self.times is not None:
            self.times.undo()

    def read_lane(self, stated: int) -> int:
        """The lane that marks use, for one as an envelope states it."""
        lane = self.lanes.get(stated)
        if lane is None:
            lane = self.lanes[stated] = read_lane(stated, *self.tp)
        return lane

    def _undecodable(self, message: Message, offset: int, epoch: int, error: EnvelopeError) -> None:
        origin = Origin(self.tp, offset, epoch, 0, b"", None, message)
        # It may have been any lane's: a gap that the next message of one shows is excused by it.
        self.marks.undecodable(offset)
        if offset in self.skipped:
            self._leave_out(origin, self.skipped[offset])
        else:
            self._exclude(origin, error)

    def _exclude(self, origin: Origin, error: Exception) -> None:
        """Leave out, at once, an input that failed before the first stage."""
        self.collector.made.clear()
        self._forget_time()
        for units in self.collector.units.values():
            # What it has put in before it failed is last: a stage has not seen any of it yet.
            while units and units[-1][4] is origin:
                units.pop()
        exclusion = exclusion_of(self.flow, origin, error)
        self.excluded.append(exclusion)
        self._leave_out(origin, exclusion)

    def _leave_out(self, origin: Origin, exclusion: Exclusion) -> None:
        if exclusion.policy != "dead_letter" or origin.message is None:
            return
        letter = dead_letter(self.flow, origin, exclusion)
        topic, _, key, value, headers, _ = letter
        size = len(key or b"") + len(value or b"") + headers_size(headers or [])
        info = self._topics.get(topic)
        limit = info.max_message_bytes if info else 1 << 62
        if size > limit - RECORD_OVERHEAD:
            raise OutputTooLarge(
                f"{origin} cannot be processed ({exclusion.error}), and as a dead letter it has {size} bytes with the "
                f"headers that say why: topic {topic!r} accepts {limit} (max.message.bytes); raise that"
            )
        self._letters.append(letter)


def writer_of(head: EnvelopeHead) -> tuple[str, tuple[Hop, ...]]:
    """The name of the writer of a republished message, and the republishers that it has passed."""
    links = parse_chain(head.chain).links
    # What is announced has a name of its own at the end of the output's; it is the same writer.
    name = "/".join(links[-1].output.split("/")[:2])
    return name, tuple((link.output.partition("/")[0], link.topic) for link in links)


def _is_chained(message: Message) -> bool:
    """Whether a record is an envelope, or has its chain in headers."""
    headers = message.headers()
    return is_enveloped(message.value()) or (
        headers is not None and any(name == CHAIN_HEADER for name, _ in headers)
    )


def wants_message_key(flow: Flow, source: Node) -> bool:
    """Whether any node after a source looks at the message's own key."""
    pending = [*flow.children(source.index)]
    while pending:
        node = pending.pop()
        if node.needs_key:
            return True
        if node.keeps_key:
            pending += flow.children(node.index)
    return False
