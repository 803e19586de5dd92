"""Level 0: read inputs, drop replays, run the steps before any stage; in place, level 1 too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sqe_chain.chain import read_lane, root_position, stored_epoch
from sqe_chain.context import Context, Origin, Place
from sqe_chain.envelope import (
    EnvelopeHead,
    check_head,
    is_enveloped,
    open_head,
    parse_head,
    payloads_of,
)
from sqe_chain.errors import EmptyValue, EnvelopeError, OutputTooLarge, ServiceStopped, WrongPayloadType
from sqe_chain.flow import Flow, Node
from sqe_chain.marks import PartitionMarks
from sqe_chain.outputs import RECORD_OVERHEAD, Gatherer, headers_size
from sqe_chain.plan import Exclusion
from sqe_chain.ports import Message, Output
from sqe_chain.segment.level import Level, Shuffle, exclusion_of, stages_at
from sqe_chain.segment.results import Block, Job, Outputs, PartitionEnd, Portion, Report, Stores, Units
from sqe_chain.steps import Collector, Compiler, Push, number

_FIRST = number(0)


class Reading:
    """Level 0 of one task: its input partitions, one after the other; level 1 too when in place.

    Args:
        flow: the flow.
        job: what all tasks of the attempt have in common.
        stores: the store of a stage.
    """

    def __init__(self, flow: Flow, job: Job, stores: Stores) -> None:
        self.report = Report()
        self._flow = flow
        self._job = job
        self._stores = stores
        self._collector = Collector(flow)
        self._gatherer = Gatherer(flow, None, job.max_bytes)
        self._shuffle = Shuffle(flow)
        self._first = [stage.index for stage in stages_at(flow, 1)]
        shuffled = frozenset[int]() if job.in_place else frozenset(self._first)
        self._compiler = Compiler(flow, self._collector, job.clock_ms, shuffled)
        self._level: Level | None = None
        self._ready: list[Output] = []

    def read(self, portion: Portion, messages: Iterable[Sequence[Message]]) -> Iterator[Block]:
        """Work on one input partition. Portions come in the order of their topics' names.

        Args:
            portion: the range, its marks, what is left out.
            messages: the range's records in blocks, in offset order.

        Raises:
            PoisonError: an input cannot be processed and the policy is `stop`.
            ServiceStopped: a witness says that something is missing or has changed.
        """
        if self._job.in_place and self._level is None:
            part = portion.read.partition
            self._level = Level(self._flow, self._job, 1, part, self._stores, self.report)
        inputs = _Inputs(self._flow, self._job, portion, self._compiler, self._collector, self._gather)
        for block in messages:
            if block:
                inputs.feed(block)
                yield from self._drain(inputs)
        self.report.ends.append(inputs.finish())
        self.report.excluded += inputs.excluded
        self.report.notices += inputs.marks.notices

    def finish(self) -> Iterator[Block]:
        """After the last portion: changed states when in place, and the report, last of all."""
        if self._level is not None:
            yield from self._level.finish()
        yield self.report

    def _gather(self, origin: Origin) -> None:
        made = self._collector.made
        self._ready += self._gatherer.gather(made, origin)
        made.clear()

    def _drain(self, inputs: _Inputs) -> Iterator[Block]:
        if inputs.dead_letters:
            self._ready += inputs.dead_letters
            inputs.dead_letters.clear()
        if self._ready:
            ready, self._ready = self._ready, []
            self.report.outputs += len(ready)
            self.report.output_size += sum(len(record[3] or b"") for record in ready)
            yield Outputs(ready)
        for stage in self._first:
            units = self._collector.units[stage]
            if not units:
                continue
            if self._level is not None:
                self._level.fold(stage, units)
            elif self._job.top_level >= 1:
                yield Units(1, self._shuffle.rows(stage, units))
            units.clear()
        if self._level is not None:
            yield from self._level.blocks()


class _Inputs:
    """One input partition: decode, drop replays, push payloads into the steps."""

    def __init__(
        self,
        flow: Flow,
        job: Job,
        portion: Portion,
        compiler: Compiler,
        collector: Collector,
        gather: Callable[[Origin], None],
    ) -> None:
        read = portion.read
        self._flow = flow
        self._node = next(node for node in flow.sources() if read.topic in node.topics)
        self._place = Place(read.topic, read.topic_id, read.partition)
        push = compiler.behind(self._node)
        if push is None:
            raise AssertionError(f"{self._node.place}: checked before a flow runs")
        self._push: Push = push
        self._collector = collector
        self._gather = gather
        self._now_ms = job.clock_ms
        self._max_bytes = job.max_bytes
        self._stateful = bool(flow.stages())
        self._wants_key = wants_message_key(flow, self._node)
        self._skipped = {one.offset: one for one in portion.exclusions}
        self._lanes: dict[int, int] = {}
        self.excluded: list[Exclusion] = []
        self.dead_letters: list[Output] = []
        self.marks = PartitionMarks.from_json(
            portion.marks,
            compacted=read.topic in job.compacted,
            max_lanes=flow.max_lanes,
            recreated=flow.recreated,
        )
        self._end = PartitionEnd(read.topic, read.partition, portion.marks)

    def feed(self, messages: Sequence[Message]) -> None:
        """Take a block of records: units and payloads are collected, outputs gathered by input."""
        message_type: Any = self._node.payload if not self._node.raw else None
        if message_type is None or self._skipped:
            replays = sum(self._extraordinary(message) for message in messages)
        else:
            replays = self._feed_ordinary(messages, message_type)
        end, last = self._end, messages[-1]
        end.records += len(messages)
        end.replays += replays
        end.size += sum(len(message.value() or b"") for message in messages)
        end.last_offset, end.last_epoch = last.offset(), stored_epoch(last.leader_epoch())
        end.last_timestamp_ms = last.timestamp()[1]

    def _feed_ordinary(self, messages: Sequence[Message], message_type: Any) -> int:  # noqa: ANN401 - a class
        """Enveloped records of a declared type: the hottest loop of all.

        Returns:
            How many were replays.
        """
        place, lanes, made = self._place, self._lanes, self._collector.made
        accept, push, gather, parse = self.marks.accept, self._push, self._gather, message_type.FromString
        type_name, wants_key, drop_replays = (
            message_type.DESCRIPTOR.full_name,
            self._wants_key,
            self._stateful,
        )
        replays = 0
        for message in messages:
            value, offset = message.value(), message.offset()
            if value is None:
                replays += self._extraordinary(message)
                continue
            epoch = message.leader_epoch()
            epoch = 0 if epoch is None or epoch < 0 else epoch + 1
            try:
                head = open_head(value)
                ordinary = head.type == type_name and not head.size and not head.more
                if not ordinary:
                    check_head(head)
                fresh = accept(head, offset, epoch)
            except EnvelopeError as error:
                self._undecodable(message, offset, epoch, error)
                continue
            if not fresh:
                replays += 1
                if drop_replays:
                    continue
            lane = lanes.get(head.lane) or self._read_lane(head.lane)
            position = head.position or root_position(epoch, offset)
            origin = Origin(place, offset, epoch, lane, position, head, message)
            try:
                payload = head.payload
                if payload and ordinary:
                    push(parse(payload), self._key(head, message) if wants_key else None, _FIRST, origin)
                else:
                    self._push_all(origin)
                if made:
                    gather(origin)
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                self._exclude(origin, error)
        return replays

    def finish(self) -> PartitionEnd:
        """What became of the partition."""
        self._end.marks = self.marks.to_json()
        return self._end

    def _extraordinary(self, message: Message) -> int:
        """One record of a raw source, a decoder's, a null one, or one in a range with exclusions.

        Returns:
            1 for a replay, else 0.
        """
        node, value, offset = self._node, message.value(), message.offset()
        epoch = stored_epoch(message.leader_epoch())
        if value is None and node.nulls == "skip":
            return 0
        if node.raw or (value is None and node.nulls == "decode"):
            if is_enveloped(value):
                raise ServiceStopped(
                    f"{self._place.topic}[{self._place.partition}]@{offset}: an envelope on a topic that was declared "
                    "raw: its chain would be lost; declare the source without raw=True"
                )
            head, stated, position = None, 0, root_position(epoch, offset)
            fresh = self.marks.accept_raw(offset, epoch)
        else:
            try:
                head = parse_head(value)
                fresh = self.marks.accept(head, offset, epoch)
            except EnvelopeError as error:
                self._undecodable(message, offset, epoch, error)
                return 0
            stated, position = head.lane, head.position or root_position(epoch, offset)
        if not fresh and self._stateful:
            return 1
        origin = Origin(self._place, offset, epoch, self._read_lane(stated), position, head, message)
        if offset in self._skipped:
            self._leave_out(origin, self._skipped[offset])
            return int(not fresh)
        try:
            self._push_all(origin)
            if self._collector.made:
                self._gather(origin)
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
            self._exclude(origin, error)
        return int(not fresh)

    def _push_all(self, origin: Origin) -> None:
        """Decode every payload of an input and push it."""
        node, head, message = self._node, origin.head, origin.message
        if message is None:
            raise AssertionError("a message read has its record")
        payloads: Sequence[bytes | None] = [message.value()]
        key = message.key()
        if head is not None:
            payloads, key = payloads_of(head), self._key(head, message)
            if node.payload is not None and head.type != node.payload.DESCRIPTOR.full_name:
                raise WrongPayloadType(
                    f"the payload is a {head.type}, the source at {node.place} takes "
                    f"{node.payload.DESCRIPTOR.full_name}"
                )
        for index, payload in enumerate(payloads):
            if payload is None and node.nulls != "decode":
                if node.nulls == "skip":
                    continue
                raise EmptyValue(
                    "a null value; declare the source with nulls='skip', or a decoder and nulls='decode'"
                )
            self._push(self._decode(payload, key, origin), key, number(index), origin)

    def _decode(self, payload: bytes | None, key: bytes | None, origin: Origin) -> object:
        node = self._node
        if node.payload is not None:
            return node.payload.FromString(payload or b"")
        decoder: Any = node.function
        return (
            decoder(payload, Context(origin, key, self._now_ms)) if node.takes_context else decoder(payload)
        )

    def _key(self, head: EnvelopeHead, message: Message) -> bytes | None:
        return head.key if head.HasField("key") else message.key()

    def _read_lane(self, stated: int) -> int:
        lane = self._lanes.get(stated)
        if lane is None:
            lane = self._lanes[stated] = read_lane(stated, *self._place)
        return lane

    def _undecodable(self, message: Message, offset: int, epoch: int, error: EnvelopeError) -> None:
        origin = Origin(self._place, offset, epoch, 0, b"", None, message)
        self.marks.undecodable(offset)
        if offset in self._skipped:
            self._leave_out(origin, self._skipped[offset])
        else:
            self._exclude(origin, error)

    def _exclude(self, origin: Origin, error: Exception) -> None:
        """Leave out, at once, an input that failed before the first stage."""
        self._collector.made.clear()
        for units in self._collector.units.values():
            while units and units[-1][4] is origin:
                units.pop()
        exclusion = exclusion_of(self._flow, origin, error)
        self.excluded.append(exclusion)
        self._leave_out(origin, exclusion)

    def _leave_out(self, origin: Origin, exclusion: Exclusion) -> None:
        if exclusion.policy != "dead_letter" or origin.message is None:
            return
        letter = dead_letter(self._flow, origin, exclusion)
        topic, _, key, value, headers, _ = letter
        size = len(key or b"") + len(value or b"") + headers_size(headers or [])
        limit = self._max_bytes.get(topic, 1 << 62)
        if size > limit - RECORD_OVERHEAD:
            raise OutputTooLarge(
                f"{origin} cannot be processed ({exclusion.error}), and as a dead letter it has {size} bytes with the "
                f"headers that say why: topic {topic!r} accepts {limit} (max.message.bytes); raise that"
            )
        self.dead_letters.append(letter)


def wants_message_key(flow: Flow, source: Node) -> bool:
    """Whether any step behind a source looks at the message's own key."""
    pending = flow.children(source.index)
    while pending:
        node = pending.pop()
        if node.takes_context or node.key_takes_context:
            return True
        if node.key is None and node.kind in ("aggregate", "output"):
            return True
        if node.kind not in ("aggregate", "output", "key_by"):
            pending += flow.children(node.index)
    return False


def dead_letter(flow: Flow, origin: Origin, exclusion: Exclusion) -> Output:
    """The record that keeps an excluded input: key and value unchanged, the reason in headers.

    Args:
        flow: the flow that leaves it out.
        origin: the input.
        exclusion: why.
    """
    message = origin.message
    if message is None:
        raise AssertionError("a dead letter is made where its message was read")
    place = origin.place
    reasons = {
        "sqe-flow": flow.name,
        "sqe-topic": place.topic,
        "sqe-topic-id": place.topic_id.hex(),
        "sqe-partition": str(place.partition),
        "sqe-offset": str(origin.offset),
        "sqe-lane": f"{origin.lane:016x}",
        "sqe-position": origin.position.hex(),
        "sqe-error": exclusion.error,
        "sqe-text": exclusion.text,
    }
    headers = [*(message.headers() or []), *((name, text.encode()) for name, text in reasons.items())]
    partition = place.partition % flow.dead_letter_partitions
    timestamp_ms = message.timestamp()[1]
    return flow.dead_letter_topic, partition, message.key(), message.value(), headers, timestamp_ms
