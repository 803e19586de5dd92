"""From payloads to envelopes: what one input gives for one output and key goes out together.

`.to()` gathers a *collection*: one envelope with several payloads, applied as a whole or not at all.
Ordinals count an input's envelopes of one (output, shard) over all partitions, in the order of their
first unit, and `of` says how many they are: so they are all known before the first is encoded.

Source: KUKA's rule that flat-mapped events stay together as one collection under their one offset.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from sqe_chain.chain import ORDINAL_LENGTH, event_id
from sqe_chain.envelope.carrier import check_payload, headers_for, passed_on
from sqe_chain.envelope.sqe_key import SqeKey
from sqe_chain.envelope.template import Frame
from sqe_chain.errors import PoisonError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Origin, TopicIdPartition
from sqe_chain.ports import Headers, Output, TopicInfo
from sqe_chain.task.collector import Made
from sqe_chain.task.target import LastWritten, Target, headers_size

if TYPE_CHECKING:
    from sqe_chain.envelope.block import Block
    from sqe_chain.task.run_outputs import RunInputs

WORTHWHILE = 50
"""Payloads of a run; for fewer of them the columns cost more than they save."""

Collection = tuple[bytes | None, str, list[bytes | None]]
"""Key, type name and payloads of one envelope."""


class Gatherer:
    """Turns payloads into records, for one shard. One per task and (stage, state partition).

    Args:
        flow: the flow.
        shard: the state partition that publishes; None before the first stage.
        topics: topic -> what it accepts; a topic that is absent is not checked.
        clock_ms: the batch's clock, the same in every attempt.
        suffix: what the names of outputs have at their ends: then the records are on lanes of their own.
        watermarks: see `Job.watermarks`.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        shard: int | None,
        topics: Mapping[str, TopicInfo],
        clock_ms: int,
        suffix: str = "",
        watermarks: Mapping[str, int] | None = None,
    ) -> None:
        self._clock_ms = clock_ms
        promised = watermarks or {}
        self._targets = {
            node.index: Target(flow, node, shard, topics.get(node.topic), suffix, promised.get(node.name, 0))
            for node in flow.outputs
        }

    def gather(self, made: list[Made], origin: Origin, outputs: list[Output], *, keep: bool = True) -> None:
        """Append the records for all payloads that one input gave here, and forget the payloads.

        When it raises, it is as if the input had not been there.

        Args:
            made: payloads in the order of their units; empty afterwards.
            origin: the input.
            outputs: takes the records.
            keep: False: only see whether it can be done.

        Raises:
            PoisonError: payloads of one output and key have several types.
            OutputTooLarge: a record is larger than its topic accepts.
            OutputRefused: its topic refuses a record for another reason.
            ChainTooLong: the input has 32 links already.
            RepeatedPosition: what the input gave before was gathered already.
        """
        undo: LastWritten = []
        before, done = len(outputs), False
        try:
            self._gather(made, origin, outputs, undo)
            done = keep
        finally:
            made.clear()
            if not done:
                _forget(outputs, before, undo)

    def _gather(self, made: Sequence[Made], origin: Origin, outputs: list[Output], undo: LastWritten) -> None:
        if len(made) == 1:  # nearly always, and then there is nothing to group
            index, key, type_name, payload = made[0]
            self._encode(self._targets[index], [(key, type_name, [payload])], origin, outputs, undo)
        else:
            for index, collections in self._collections(made, origin).items():
                self._encode(self._targets[index], collections.values(), origin, outputs, undo)

    def gather_run(
        self,
        made: Sequence[Made],
        inputs: Sequence[int],
        tp: TopicIdPartition,
        block: Block,
        lane_of: Callable[[int], int],
        outputs: list[Output],
    ) -> None:
        """Append the records for all payloads that a run of inputs gave: those that `gather` makes for one after the other.

        When it raises, it is as if the run had not been there; `gather` then tells which input it was.

        Args:
            made: payloads in the order of their units; not changed.
            inputs: for each of them the index of its input in the block; they never fall. All those inputs are ordinary,
                and have their own times.
            tp: where the block was read.
            block: the records.
            lane_of: lane as envelopes state it -> the lane that marks use.
            outputs: takes the records.

        Raises:
            PoisonError, OutputTooLarge, OutputRefused, ChainTooLong: as `gather`.
        """
        from sqe_chain.task.run_outputs import RunInputs, run_outputs  # noqa: PLC0415 - needs numpy, as blocks do

        if not made:
            return
        run = RunInputs(tp, block, lane_of)
        found = run_outputs(self._targets, made, inputs, run) if len(made) >= WORTHWHILE else None
        if found is None:
            self._one_by_one(made, inputs, run, outputs)
            return
        records, moves = found
        outputs += records
        for where, at, known in moves:
            where[at] = known

    def _one_by_one(
        self, made: Sequence[Made], inputs: Sequence[int], run: RunInputs, outputs: list[Output]
    ) -> None:
        """`gather` for each input; no trace of any of them when one raises."""
        undo: LastWritten = []
        before = len(outputs)
        try:
            begin = 0
            for index, own in groupby(inputs):
                end = begin + len(list(own))
                self._gather(made[begin:end], run.origin(index), outputs, undo)
                begin = end
        except BaseException:
            _forget(outputs, before, undo)
            raise

    def gather_each(self, groups: Iterable[Sequence[Made]], origin: Origin, outputs: list[Output]) -> None:
        """Append the records for several groups of payloads of one input; groups never share an envelope.

        When it raises, the gatherer is not used again.

        Args:
            groups: in their order.
            origin: the input.
            outputs: takes the records, output after output.

        Raises:
            PoisonError, OutputTooLarge, OutputRefused, ChainTooLong: as `gather`.
        """
        found: dict[int, list[Collection]] = {}
        for made in groups:
            for index, collections in self._collections(made, origin).items():
                found.setdefault(index, []).extend(collections.values())
        for index, own in found.items():
            self._encode(self._targets[index], own, origin, outputs, [])

    def _collections(self, made: Sequence[Made], origin: Origin) -> dict[int, dict[bytes | None, Collection]]:
        """Payloads by output and key, both in the order of their first unit."""
        found: dict[int, dict[bytes | None, Collection]] = {}
        for index, key, type_name, payload in made:
            by_key = found.get(index)
            if by_key is None:
                by_key = found[index] = {}
            collection = by_key.get(key)
            if collection is None:
                by_key[key] = key, type_name, [payload]
            elif collection[1] != type_name:
                raise PoisonError(
                    f"output {self._targets[index].name!r} got payloads of two types for key {key!r} from "
                    f"{origin}: {collection[1]} and {type_name}"
                )
            else:
                collection[2].append(payload)
        return found

    def _encode(
        self,
        target: Target,
        collections: abc.Collection[Collection],
        origin: Origin,
        outputs: list[Output],
        undo: LastWritten,
    ) -> None:
        """Append the records of one output, for one input."""
        tp, offset, epoch, lane, position, head, message, _, _ = origin
        undo.append((target.told, lane, target.told_before(tp, lane, offset)))
        target.told[lane] = offset
        if target.process_id is not None:
            self._for_sqe(target, target.process_id, collections, origin, outputs)
            return
        writing = target.lanes.get(lane) or target.writing(tp, lane, origin.stated_lane)
        if head is not None:
            chain, timestamp_ms = head.chain, head.timestamp_ms
        else:
            chain, timestamp_ms = origin.chain_bytes, origin.timestamp_ms
        headers = None
        if target.headers:
            headers = passed_on(
                message.headers() if message is not None else origin.headers, carrier=target.carrier
            )
        room = target.largest - (headers_size(headers) if headers else 0)
        frame = writing.frame(chain, offset, epoch, position, timestamp_ms)
        if target.carrier == "headers":
            self._in_headers(
                target, collections, origin, frame, (timestamp_ms, headers or [], room), outputs, undo
            )
            return
        encode_in, previous, keys = writing.encode_in, writing.previous, target.keys
        topic, of = target.topic, len(collections)
        for ordinal, (key, type_name, payloads) in enumerate(collections):
            if key is None:
                if target.needs_key:  # a time is no reason: the envelope has its own
                    target.check(origin, key, None, self._clock_ms)
                # By the input's partition: the same in every attempt, and each lane has one output partition.
                partition, field = tp.partition % target.partitions, b""
            else:
                partition, field = keys.get(key) or target.key(key)
            before = previous.get(partition, b"")
            value, own = encode_in(frame, ordinal, of, field, type_name, payloads, before)
            if len(value) + len(field) > room:
                raise target.too_large(origin, key, len(value))
            if own > before:  # not for a replay that is passed on: its position lies further back
                undo.append((previous, partition, before))
                previous[partition] = own
            outputs.append((topic, partition, key, value, headers, timestamp_ms))

    def _in_headers(
        self,
        target: Target,
        collections: abc.Collection[Collection],
        origin: Origin,
        frame: Frame,
        record: tuple[int, Headers, int],
        outputs: list[Output],
        undo: LastWritten,
    ) -> None:
        """The same for an output whose records are plain: a value has room for one payload, so each is a record."""
        writing, (timestamp_ms, headers, room) = target.lanes[origin.lane], record
        singles = [(key, type_name, one) for key, type_name, payloads in collections for one in payloads]
        for ordinal, (key, type_name, payload) in enumerate(singles):
            if key is None and target.needs_key:
                target.check(origin, key, None, self._clock_ms)
            if key is None:
                partition, field = origin.tp.partition % target.partitions, b""
            else:
                partition, field = target.keys.get(key) or target.key(key)
            before = writing.previous.get(partition, b"")
            kept = [None if payload is None else b""]  # whether it is deleted is for the envelope to say
            envelope, own = writing.encode_in(frame, ordinal, len(singles), field, type_name, kept, before)
            identity = event_id(writing.template.lane, origin.position + ordinal.to_bytes(ORDINAL_LENGTH))
            described = headers_for(envelope, type_name, target.name, identity, timestamp_ms)
            size = len(check_payload(payload) or b"") + headers_size(described)
            if size + len(field) > room:
                raise target.too_large(origin, key, size)
            if own > before:
                undo.append((writing.previous, partition, before))
                writing.previous[partition] = own
            outputs.append((target.topic, partition, key, payload, [*headers, *described], timestamp_ms))

    def _for_sqe(
        self,
        target: Target,
        process_id: int,
        collections: abc.Collection[Collection],
        origin: Origin,
        outputs: list[Output],
    ) -> None:
        """Append the one bare payload that an input gave, under SQE's record key."""
        payloads = [payload for _, _, own in collections for payload in own]
        if len(payloads) > 1:
            raise PoisonError(
                f"output {target.name!r} got {len(payloads)} payloads from {origin}: SQE's record keys tell one record of a "
                "source offset only; give one, or use to()"
            )
        key = SqeKey(process_id, origin.tp.partition, origin.offset)
        headers = origin.headers if target.headers else None
        size = len(payloads[0] or b"") + (headers_size(headers) if headers else 0)
        if size > target.largest:
            raise target.too_large(origin, next((given for given, _, _ in collections), None), size)
        target.check(origin, b"", origin.timestamp_ms, self._clock_ms)
        partition = key.destination(target.partitions)
        outputs.append((target.topic, partition, key.to_bytes(), payloads[0], headers, origin.timestamp_ms))


def _forget(outputs: list[Output], before: int, undo: LastWritten) -> None:
    """Leave no trace of inputs: what they wrote last on each partition is forgotten as well."""
    del outputs[before:]
    for where, at, known in reversed(undo):
        where[at] = known
