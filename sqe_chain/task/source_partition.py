"""One input partition: which records are taken, what the operators before any stage make of them, and event time.

A block of records goes through as a block. Whether a record is taken is decided for runs of ordinary records at once
(`envelope.runs`), for all others one by one, by the same rule. Then payloads are decoded, and the operators run over all of
them (`operator_text`). What has failed is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from sqe_chain.chain import read_lane
from sqe_chain.envelope.revisions import FIRST
from sqe_chain.errors import ChainError, OutputTooLarge, PoisonError, Unavailable
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Context, Origin, TopicIdPartition
from sqe_chain.flow.units import UnitRun
from sqe_chain.ports import Message, Output
from sqe_chain.task.collector import Collector
from sqe_chain.task.compiler import Compiler
from sqe_chain.task.dead_letters import dead_letter
from sqe_chain.task.event_times import Taking, guard_of
from sqe_chain.task.exclusion import Exclusion, SkipLimit
from sqe_chain.task.gate import Gate, SourceTimes, give_times
from sqe_chain.task.inputs import stretches
from sqe_chain.task.outputs import Gatherer
from sqe_chain.task.parking import Discarded, Following, ParkedKeys, ParkedRecord, discarded
from sqe_chain.task.poison import Judged, exclusion_of
from sqe_chain.task.records import Deciding, Records
from sqe_chain.task.results import Job, PartitionEnd, Portion
from sqe_chain.task.revised import Followed, Ignoring
from sqe_chain.task.shuffling import Shuffle, ShuffledUnits
from sqe_chain.task.target import RECORD_OVERHEAD, headers_size


class SourcePartition:
    """The records of one range, on their way into the flow, in one attempt. Another attempt begins with a new one.

    Attributes:
        flow: the flow.
        node: its source.
        tp: topic, topic id and partition.
        marks: the partition's marks, a copy of the portion's; they move with each record that is decided about.
        lanes: lane as envelopes state it -> the lane that marks use; those seen so far.
        skipped: offset -> why it is skipped, known before this attempt; it does not change.
        excluded: inputs newly skipped, in the order of their offsets.
        outputs: records to publish so far; the caller takes them and clears the list. Invariant: once there are dead-letter
            records, the caller takes no more until the partition is finished, because those must be published first.
        letters: dead-letter records of the inputs that are skipped, complete when the partition is finished.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        job: Job,
        portion: Portion,
        compiler: Compiler,
        collector: Collector,
        gatherer: Gatherer,
    ) -> None:
        read = portion.read
        self._portion = portion
        self.flow = flow
        source = flow.source_of[read.topic]
        if source is None:
            raise AssertionError(f"flow {flow.name!r} does not read {read.topic!r}")
        self.node = source
        self.tp = TopicIdPartition(read.topic, read.topic_id, read.partition)
        # The operators know a record by its number in the block, so `_records` is always the block that they work on.
        self._run = compiler.after_source(self.node, self._origin)
        self._records = Records(self.tp, (), None, self.read_lane)
        # Shared by the input partitions of a task, one after the other. Invariant: between two blocks it has no output.
        self._collector = collector
        self._gatherer = gatherer
        self._now_ms = job.clock_ms
        self._topics = job.topics
        # None: the user's decoder alone knows what payloads are.
        self._codec = codec = flow.codec_of[read.topic]
        decode: Any = self.node.maker if codec is None else codec.decode
        self._decode: Callable[..., Any] = decode
        # For flows without stages, which have no later place to look at all inputs; None: `Processor` does.
        self._skip_limit = job.sections.find(SkipLimit)
        self._revisions = job.revisions
        self.letters: list[Output] = []
        self.skipped = {exclusion.offset: exclusion for exclusion in portion.exclusions}
        self.lanes: dict[int, int] = {}
        self.excluded: list[Exclusion] = []
        self.outputs: list[Output] = []
        # Both None: the flow asks for no event time. `_times` alone: it is followed, but nothing waits. `_gate` alone:
        # what was skipped is released, and moves no event time.
        self._times: SourceTimes | None = None
        if portion.times is not None and not portion.parked:
            times = portion.times.copy(clock_ms=job.clock_ms)
            since = read.start if portion.since is None else portion.since
            self._times = SourceTimes(times, self.node, guard_of(flow), since, at_end=portion.at_end)
        self._gate = self._gate_of(job.sections.find(Taking))
        # An attempt that fails must leave the plan's marks as they are.
        self.marks = marks = portion.marks.copy()
        marks.compacted, marks.max_lanes = read.topic in job.compacted, flow.max_lanes
        marks.recreated = flow.recreated
        self._deciding = Deciding(
            flow,
            self.node,
            self.tp,
            marks,
            self.skipped,
            self.read_lane,
            retried_alone=bool(job.candidates),
            released=bool(portion.parked),
        )
        # A flow without stages passes on all revisions: what of them counts, is for the next flow with stages to know.
        self._ignoring: Ignoring | None = None
        if flow.stages and not self.node.raw:
            followed = job.sections.find(Followed) or Followed()
            since = read.start if portion.since is None else portion.since
            self._ignoring = Ignoring(read.topic, followed.known, marks, since)
        # In a release nothing waits from before: it processes the very records that did.
        waiting = ParkedKeys() if portion.parked else job.sections.find(ParkedKeys)
        own, parks = (read.topic, read.partition), flow.poison == "park"
        self._following: Following | None = None
        # Once a flow has released anything its plans always keep where. That alone must cost no record anything.
        if waiting is not None and (parks or waiting.skips(own)):
            self._following = Following(own, waiting, parks=parks, revisions=self._revisions)
        self._end = PartitionEnd(read.topic, read.partition, portion.marks)

    def due(self, messages: Iterable[Sequence[Message]]) -> Iterator[Records]:
        """What the batch takes of its range, block by block; see `sqe_chain.task.gate`."""
        blocks = filter(_has_records, map(self._seen, filter(None, messages)))
        if self._gate is None:
            return blocks
        if self._times is None:
            return map(partial(self._placed_late, self._gate), blocks)
        return self._times.take(list(blocks), self._gate, self._deciding, self._given_times)

    def _gate_of(self, taking: Taking | None) -> Gate | None:
        """The gate; None: no stage takes this source's records in the order of their times."""
        if taking is None or self.node.topics[0] not in self.flow.gated:
            return None
        # What is released is late, whatever its clock was.
        guard = None if self._times is None else self._times.guard
        # A static table has no times: in each batch its changes come before all values.
        before = None if self.node.static else taking.before
        last = None if self.node.static else taking.last
        return Gate(self.tp.topic, self.tp.partition, before, taking.frontier, guard, last)

    def _placed_late(self, gate: Gate, records: Records) -> Records:
        records.place(dict.fromkeys(range(len(records.messages)), gate.late_ms))
        self._end.late = True
        return records

    def _refuse_early(self, gate: Gate, records: Records, values: Sequence[Any]) -> Sequence[Any]:
        """Let those fail again that are released before event time has come to them: they cannot wait in the log any more."""
        for number, at_ms in zip(records.inputs, records.times_of(records.inputs), strict=True):
            if at_ms > gate.limit_ms and number not in records.failures:
                text = f"its event time, {at_ms} ms, lies after what the flow has reached. Expected a release after that"
                self._note(records, number, PoisonError(text))
        return self._drop_failed(records, values) if records.failures else values

    def _seen(self, block: Sequence[Message]) -> Records:
        records = self._deciding.records_of(block)
        if not self._portion.parked:
            self._end.see(block, records.size)
        return records if self._ignoring is None else self._ignoring.drop(records, self._deciding)

    def _given_times(self, records: Records) -> dict[int, int] | None:
        """The times that the source's function gives, before it is known whether the gate lets these records pass.

        Whatever fails is found again when a record is taken.
        """
        function = self.node.timestamp
        if function is None:
            return None
        given_ms: dict[int, int] = {}
        for number in range(len(records.messages)):
            probe = Records(self.tp, records.messages, records.block, self.read_lane)
            try:
                head = None if self.node.raw else self._deciding.head_of(records, number)
                probe.heads[number] = head
                key, given = self._deciding.payloads(records.messages[number], head)
                payloads = [payload for _, payload in given]
                probe.inputs, probe.keys = [number] * len(payloads), [key] * len(payloads)
                probe.payloads, probe.paths = payloads, [b""] * len(payloads)
                failed = partial(self._note, probe)
                values = self._values(probe, failed)
                give_times(self.flow, self.node, function, probe, values, self._now_ms, failed)
            except Unavailable:
                raise
            except Exception:  # noqa: BLE001, S112 - whatever it is, it is found again when the record is taken
                continue
            if number in probe.given_ms:
                given_ms[number] = probe.given_ms[number]
        return given_ms

    def feed(self, records: Records) -> None:
        """Take a block of records: outputs are gathered, and `units_of` gives what stages get."""
        self._records = records
        for columns in self._collector.runs.values():
            columns.clear()
        for units in self._collector.units.values():
            units.clear()
        times, shown = self._times if self._gate is None else None, None
        if times is not None and self.node.timestamp is None:
            shown = times.shown(records, self._deciding)
        try:
            replays = self._deciding.decide(records)
        except ChainError:
            self._work_through(records)  # what lies before it may have failed, and is reported first
            raise
        self._work_through(records)
        if times is not None:
            times.observe(times.shown_by(times.facts(records, records.given_ms)) if shown is None else shown)
        self._end.records += len(records.messages)
        self._end.replays += replays

    def run_of(self, stage: int) -> UnitRun | None:
        """What the last block gives to a stage without a shuffle; taken once."""
        records, columns = self._records, self._collector.runs[stage]
        if not columns.inputs:
            return None
        given = columns.taken()
        count = len(given.inputs)
        times_ms, orders_ms = [0] * count, [-1] * count
        if self._gate is not None:
            times_ms = records.times_of(given.inputs)
            orders_ms = [records.orders_ms[number] for number in given.inputs]
        return UnitRun(
            given.keys, given.values, given.paths, times_ms, orders_ms, [records] * count, given.inputs
        )

    def blocks_of(self, stage: int, shuffle: Shuffle) -> list[ShuffledUnits]:
        """What the last block gives to a stage that comes after a shuffle; taken once."""
        units, blocks = self._collector.units[stage], list[ShuffledUnits]()
        for begin, end, own, inputs in self._records.inputs_of([unit[4] for unit in units]):
            blocks += shuffle.blocks(stage, units[begin:end], own, inputs)
        units.clear()
        return blocks

    def finish(self) -> PartitionEnd:
        """The end of the partition, after its last record.

        Raises:
            TooManyExcluded: the poison policy would skip more than it may.
        """
        if self._skip_limit is not None:
            # Before the marks leave this object: where the limit stops the flow, nothing was skipped.
            self._skip_limit.check(self.flow.name, self.excluded, self._end.records - self._end.replays)
        if self._collector.made:
            raise AssertionError(f"{self.tp}: outputs were left behind. Expected all of them to be gathered")
        self._end.marks = self.marks.copy()
        if self._ignoring is not None:
            self._end.superseded, self._end.newer = self._ignoring.superseded, self._ignoring.newer
        if self._times is not None:
            self._end.times, self._end.late = self._times.times, self._times.late
        return self._end

    def _origin(self, number: int) -> Origin:
        return self._records.origin(number)

    def _work_through(self, records: Records) -> None:
        """Run the operators over the payloads that were taken, gather outputs, skip what has failed."""
        failed = partial(self._note, records)
        values = self._values(records, failed)
        if self.node.timestamp is not None:
            give_times(self.flow, self.node, self.node.timestamp, records, values, self._now_ms, failed)
            if records.failures:
                values = self._drop_failed(records, values)
        if self._gate is not None and self._times is None and not self.node.static:
            values = self._refuse_early(self._gate, records, values)
        self._run(records.inputs, values, records.keys, records.paths, failed)
        if self._following is not None:
            self._follow(records, self._following)
        self._gather(records)
        left_out: dict[int, Exception | Exclusion] = {**records.trial, **records.failures}
        # In the order of offsets: plans list them so, and dead-letter records follow each other so.
        for number in sorted(left_out):
            self._exclude(records.origin(number), left_out[number])
        if not records.failures:
            return
        for columns in self._collector.runs.values():
            columns.keep(
                [index for index, number in enumerate(columns.inputs) if number not in records.failures]
            )
        for units in self._collector.units.values():
            units[:] = [unit for unit in units if unit[4] not in records.failures]

    def _note(self, records: Records, number: int, error: Exception) -> bool:
        """Note that user code has failed on a record. Returns whether the others need not be tried."""
        origin = records.origin(number)
        if self.flow.poison == "stop":
            raise_outage(error, str(origin))
            records.failures.setdefault(number, error)
            return self._following is None  # it may have been skipped before, and then those after it count
        if number not in records.failures:
            records.failures[number] = Judged(exclusion_of(self.flow, origin, error, key=origin.key))
        return False

    def _drop_failed(self, records: Records, values: Sequence[Any]) -> list[Any]:
        """Forget the payloads of records that have failed; returns the values of the others."""
        kept = [
            value
            for number, value in zip(records.inputs, values, strict=True)
            if number not in records.failures
        ]
        records.forget(records.failures.keys())
        return kept

    def _values(self, records: Records, failed: Callable[[int, Exception], bool]) -> Sequence[Any]:
        codec, decode, decode_in = self._codec, self._decode, self._decoder_with_record(records)
        if decode_in is None:
            try:
                if codec is None:
                    # Not by map(), which ends at a StopIteration.
                    return [decode(payload) for payload in records.payloads]
                decoded = codec.decode_all(records.payloads)
                # A codec of a plug-in may end early; one by one no record is lost.
                if len(decoded) == len(records.payloads):
                    return decoded
            except Exception:  # noqa: BLE001, S110 - which one it is, is found below
                pass
        values: list[Any] = []
        for number, payload, key in zip(records.inputs, records.payloads, records.keys, strict=True):
            try:
                values.append(decode(payload) if decode_in is None else decode_in(payload, number, key))
            except Exception as error:  # noqa: BLE001 - user code may raise anything; the policy decides
                values.append(None)
                if codec is not None:
                    error.add_note(f"source {self.node.name!r}, read as {codec.type_name}")
                if failed(number, error):
                    break
        if len(values) < len(records.inputs):  # nothing after it counts
            del records.inputs[len(values) :], records.payloads[len(values) :]
            del records.keys[len(values) :], records.paths[len(values) :]
        return self._drop_failed(records, values) if records.failures else values

    def _decoder_with_record(self, records: Records) -> Callable[[Any, int, bytes | None], Any] | None:
        """What decodes a payload by more than itself: it takes payload, number and key of the record. None: the payload is enough."""
        node, codec, decode = self.node, self._codec, self._decode
        if node.decoder is not None and node.decoder.takes_context:
            return lambda payload, number, key: decode(
                payload, Context(records.origin(number), key, self._now_ms)
            )
        if codec is None or not (codec.wants_headers or codec.wants_key):
            return None
        if codec.wants_key:
            decode_keyed = codec.decode_keyed
            return lambda payload, _, key: decode_keyed(payload, key)
        decode_with, messages = codec.decode_with, records.messages
        return lambda payload, number, _: decode_with(payload, messages[number].headers() or ())

    def _follow(self, records: Records, following: Following) -> None:
        """Let records wait behind those that have failed, also behind those whose outputs will be refused."""
        known = -1
        # Each round may find more failures, which more records wait behind.
        while known < len(records.failures):  # bounded by the records of the block
            known = len(records.failures)
            # A trial: outputs that a topic refuses fail their record, and then others may have to wait behind it.
            self._gather(records, keep=False)
            following.follow(records)

    def _gather(self, records: Records, *, keep: bool = True) -> None:
        """Gather the outputs of each record that has not failed; what is retried alone is not published."""
        made, numbers = self._collector.made, self._collector.made_of
        dropped = records.failures.keys() | records.trial.keys()
        given = [
            (begin + first, begin + last, own, inputs)
            for begin, end, drop in (stretches(numbers, dropped) if made else ())
            if not drop
            for first, last, own, inputs in records.inputs_of(numbers[begin:end])
        ]
        for begin, end, own, inputs in given:
            failed = partial(self._note_row, records, begin)
            if self._gatherer.gather(made[begin:end], own, inputs, self.outputs, failed, keep=keep):
                break  # none after it is tried
        if keep:
            made.clear()
            numbers.clear()

    def _note_row(self, records: Records, begin: int, row: int, error: Exception) -> bool:
        return self._note(records, self._collector.made_of[begin + row], error)

    def read_lane(self, stated: int) -> int:
        """The lane that marks use, for one as an envelope states it."""
        lane = self.lanes.get(stated)
        if lane is None:
            lane = self.lanes[stated] = read_lane(stated, *self.tp)
        return lane

    def _exclude(self, origin: Origin, why: Exception | Exclusion) -> None:
        """Skip an input: it failed before the first stage, or is known to fail."""
        if not isinstance(why, Exclusion):
            fails = not isinstance(why, Discarded)
            why = exclusion_of(self.flow, origin, why, key=origin.key) if fails else discarded(origin)
            # With `skip` it may have been skipped the first time, too: there is no record of that.
            if fails and origin.offset < self._portion.published and why.policy == "dead_letter":
                raise PoisonError(
                    f"flow {self.flow.name!r}: {why}. It cannot be processed, and receivers may have its outputs: the flow had read it "
                    "before it was rewound. Expected code that processes it. Fix the code"
                ).at(why.topic, why.partition, why.offset)
            self.excluded.append(why)
        self._leave_out(origin, why)

    def _leave_out(self, origin: Origin, exclusion: Exclusion) -> None:
        # What fails again when it is released is kept where it is kept: no second dead-letter record is made of it.
        again = bool(self._portion.parked)
        if origin.message is not None and (again or exclusion.policy == "park"):
            readable = bool(origin.position)
            self._end.parked.append(ParkedRecord.of(self.tp, origin.message, exclusion, readable=readable))
        if again or exclusion.policy != "dead_letter" or origin.message is None:
            return
        portion = self._portion
        number = -1 if portion.failed < 0 else portion.failed + self._end.failed
        revision = FIRST if self._revisions is None else self._revisions.label_of(origin)
        letter = dead_letter(
            self.flow,
            origin,
            exclusion,
            number,
            after=portion.after,
            unsure=portion.unsure,
            revision=revision,
        )
        self._end.failed += 1
        topic, _, key, value, headers, _ = letter
        size = len(key or b"") + len(value or b"") + headers_size(headers or [])
        info = self._topics.get(topic)
        limit = info.max_message_bytes if info else 1 << 62
        if size > limit - RECORD_OVERHEAD:
            raise OutputTooLarge(
                f"{origin} cannot be processed ({exclusion.error}). Its dead-letter record has {size} bytes with the "
                f"headers that explain it, topic {topic!r} accepts {limit} (max.message.bytes). Raise that"
            )
        self.letters.append(letter)


def _has_records(records: Records) -> bool:
    return bool(records.messages)
