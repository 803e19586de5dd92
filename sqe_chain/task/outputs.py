"""From payloads to envelopes: what one input gives for one output and key goes out together.

`.to()` gathers a *collection*: one envelope with several payloads, applied as a whole or not at all.
Ordinals count an input's envelopes of one (output, shard) over all partitions, in the order of their
first unit, and `of` is their number. So all are known before the first is encoded.
What many inputs give is gathered together, side by side; what one gives is a block of one.

Source: KUKA's rule that flat-mapped events stay together as one collection under their one offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from sqe_chain.chain import ORDINAL_LENGTH, event_id
from sqe_chain.envelope.carrier import check_payload, headers_for, passed_on
from sqe_chain.envelope.revisions import FIRST
from sqe_chain.envelope.sqe_key import SqeKey
from sqe_chain.envelope.template import WrittenLane, frames, seal
from sqe_chain.errors import PoisonError, RepeatedPosition
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import TopicIdPartition
from sqe_chain.ports import Headers, Output, TopicInfo
from sqe_chain.task.collector import Made
from sqe_chain.task.inputs import Inputs
from sqe_chain.task.records import has_columns
from sqe_chain.task.results import LaneEnds
from sqe_chain.task.revisions import OutputRevisions
from sqe_chain.task.routes import Header, with_routes
from sqe_chain.task.target import Saved, Target, headers_size
from sqe_chain.task.trace_report import RowTraces

WORTHWHILE = 60
"""Envelopes that are encoded by columns; for fewer of them that costs more than it saves."""


class _EnvelopeRows(NamedTuple):
    """What is to become a record each; those of one input follow each other.

    Attributes:
        inputs: the number of its input.
        outputs: index of the output's node.
        keys: its key.
        types: the name of its payloads' type.
        payloads: what it holds: a payload, or a list of them.
    """

    inputs: Sequence[int]
    outputs: Sequence[int]
    keys: Sequence[bytes | None]
    types: Sequence[str]
    payloads: Sequence[Any]

    def only(self, rows: Sequence[int]) -> _EnvelopeRows:
        """Some of them, in this order."""
        columns: list[Any] = [[column[row] for row in rows] for column in self]
        return _EnvelopeRows(*columns)


class Gatherer:
    """Turns payloads into records, for one shard. One per task and (stage, state partition).

    Args:
        flow: the flow.
        shard: the state partition that publishes; None before the first stage.
        topics: topic -> what it accepts; a topic that is absent is not checked.
        clock_ms: the batch's clock, the same in every attempt.
        suffix: what the names of outputs have at their ends: then the records are on lanes of their own.
        watermarks: see `Job.watermarks`.
        revisions: of outputs that were corrected; None: none was.
        routes: the header of records whose chains name no topics; None: they repeat that of their inputs.
    """

    def __init__(
        self,
        flow: CompiledFlow,
        shard: int | None,
        topics: Mapping[str, TopicInfo],
        clock_ms: int,
        suffix: str = "",
        watermarks: Mapping[str, int] | None = None,
        revisions: OutputRevisions | None = None,
        routes: Header | None = None,
    ) -> None:
        self._clock_ms, self._routes, self._notes_lanes = clock_ms, routes, flow.notes_lanes
        self._routed = routes is not None or shard is None
        promised = watermarks or {}
        self._make = {
            node.index: partial(
                Target, flow, node, shard, topics.get(node.topic), suffix, promised.get(node.name, 0)
            )
            for node in flow.outputs
        }
        self._targets = {index: make() for index, make in self._make.items()}
        self._revisions = revisions
        self._names = {node.index: node.name for node in flow.outputs}
        self._revised: dict[tuple[int, int], Target] = {}

    def gather(
        self,
        made: Sequence[Made],
        numbers: Sequence[int],
        inputs: Inputs,
        outputs: list[Output],
        failed: Callable[[int, Exception], bool] | None = None,
        *,
        groups: Sequence[int] | None = None,
        keep: bool = True,
    ) -> bool:
        """Append the records for all payloads that inputs gave; of an input that fails there is no trace.

        Args:
            made: payloads in the order of their units; not changed.
            numbers: of each payload, the number of its input; they never fall.
            inputs: the inputs.
            outputs: takes the records.
            failed: takes the index of the first payload of an input that has failed, and why; if it returns True, no input after
                it is tried. None: the error is raised, and there is no trace of any input.
            groups: of each payload, its group: those of different groups never share an envelope.
            keep: False: only see whether it can be done.

        Returns:
            Whether `failed` has returned True.

        Raises:
            PoisonError: payloads of one output and key have several types.
            OutputTooLarge: a record is larger than its topic accepts.
            OutputRefused: its topic refuses a record for another reason.
            ChainTooLong: an input has 32 links already.
            RepeatedPosition: what an input gave before was gathered already.
        """
        saved: Saved = {}
        try:
            records = self._records(self._rows(made, numbers, inputs, groups), inputs, saved) if made else []
        except Exception as error:
            _restore(saved)
            if failed is None or isinstance(error, RepeatedPosition):
                raise
            if numbers[0] == numbers[-1]:
                return failed(0, error)
        else:
            if keep:
                outputs += records
            else:
                _restore(saved)
            return False
        begin = 0
        # One of several inputs is at fault. Each is gathered alone, so that only that one fails; numbers never fall.
        for number, own in Counter(numbers).items():
            first, end = begin, begin + own
            each = made[begin:end], [number] * own, inputs, outputs
            if self.gather(*each, lambda _, error, first=first: failed(first, error), keep=keep):  # type: ignore[misc]
                return True
            begin = end
        return False

    def ends(self) -> LaneEnds:
        """Where the lanes of all records end that were gathered; empty if plans do not note it."""
        ends: LaneEnds = {}
        for target in (*self._targets.values(), *self._revised.values()) if self._notes_lanes else ():
            for written in target.lanes.values():
                for partition, position in written.ends():
                    ends.setdefault((target.topic, partition), {})[written.template.lane] = position
        return ends

    def refusal(self, made: Sequence[Made], number: int, inputs: Inputs) -> Exception | None:
        """Why these payloads of one input cannot be published; None: they can."""
        try:
            self.gather(made, [number] * len(made), inputs, [], keep=False)
        except Exception as error:  # noqa: BLE001 - whatever a topic refuses
            return error
        return None

    def _rows(
        self, made: Sequence[Made], numbers: Sequence[int], inputs: Inputs, groups: Sequence[int] | None
    ) -> _EnvelopeRows:
        """What goes out, by input, and then by output in the order of its first payload."""
        rows = _EnvelopeRows(numbers, *zip(*made, strict=True))
        if len(set(numbers)) == len(numbers):  # one payload each: nothing to collect, nothing to sort
            return rows
        if len(set(zip(numbers, rows.outputs, rows.keys, groups or repeat(0), strict=False))) < len(numbers):
            rows = self._collected(rows, groups, inputs)
        if rows.outputs.count(rows.outputs[0]) == len(rows.outputs):
            return rows
        # An input's envelopes of one output follow each other, since ordinals count them so.
        firsts: dict[tuple[int, int], int] = {}
        pairs = zip(rows.inputs, rows.outputs, strict=True)
        ranks = [firsts.setdefault(pair, row) for row, pair in enumerate(pairs)]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        return rows.only(order)

    def _collected(self, rows: _EnvelopeRows, groups: Sequence[int] | None, inputs: Inputs) -> _EnvelopeRows:
        """The payloads of one input, output, key and group together, where their first one is."""
        places = zip(rows.inputs, rows.outputs, rows.keys, groups or repeat(0), strict=False)
        collections: dict[tuple[Any, ...], list[int]] = {}
        for row, place in enumerate(places):
            collections.setdefault(place, []).append(row)
        order: list[int] = []
        payloads = list(rows.payloads)
        for (number, output, key, _), own in collections.items():
            kinds = dict.fromkeys(rows.types[row] for row in own)
            if len(kinds) > 1:
                first, other, *_ = kinds
                raise PoisonError(
                    f"output {self._targets[output].name!r} got payloads of two types for key {key!r} from "
                    f"{inputs.origin(number)}: {first} and {other}"
                )
            if self._targets[output].separate or len(own) == 1:
                order += own
            else:
                order.append(own[0])
                payloads[own[0]] = [rows.payloads[row] for row in own]
        return rows._replace(payloads=payloads).only(order)

    def _target(self, index: int, revision: int) -> Target:
        if revision == FIRST:
            return self._targets[index]
        known = self._revised.get((index, revision))
        if known is None:
            known = self._revised[index, revision] = self._make[index](revision)
        return known

    def _labels(self, rows: _EnvelopeRows, inputs: Inputs, revisions: OutputRevisions) -> list[int]:
        """The revision that each row belongs to."""
        known: dict[tuple[int, int], int] = {}
        _, lane_at = inputs.lanes(inputs.at(rows.inputs))
        # Positions rise on a lane, so if its first and its last input belong to one revision, all between do.
        edges: dict[tuple[int, int], tuple[int, int]] = {}
        for lane, output, number in zip(lane_at, rows.outputs, rows.inputs, strict=True):
            edges[lane, output] = edges.get((lane, output), (number, number))[0], number
        for (lane, output), (first, last) in edges.items():
            name = self._names[output]
            begin, end = (revisions.label(name, inputs.origin(number)) for number in (first, last))
            known[lane, output] = begin if begin == end else 0
        return [
            known[lane, output] or revisions.label(self._names[output], inputs.origin(number))
            for lane, output, number in zip(lane_at, rows.outputs, rows.inputs, strict=True)
        ]

    def _records(self, rows: _EnvelopeRows, inputs: Inputs, saved: Saved) -> list[Output]:
        partitions = inputs.partitions(rows.inputs)
        if self._revisions is not None:
            return self._by_revision(rows, partitions, inputs, saved, self._revisions)
        if len(partitions) == 1 and rows.outputs.count(rows.outputs[0]) == len(rows.outputs):
            return self._of_one(self._targets[rows.outputs[0]], partitions[0], rows, inputs, saved)
        return self._by_place(rows, partitions, repeat(FIRST), inputs, saved)

    def _by_revision(
        self,
        rows: _EnvelopeRows,
        partitions: Sequence[TopicIdPartition],
        inputs: Inputs,
        saved: Saved,
        revisions: OutputRevisions,
    ) -> list[Output]:
        labels = self._labels(rows, inputs, revisions)
        places = {*zip(rows.outputs, labels, strict=True)}
        if len(partitions) == len(places) == 1:
            return self._of_one(self._target(*places.pop()), partitions[0], rows, inputs, saved)
        return self._by_place(rows, partitions, labels, inputs, saved)

    def _by_place(
        self,
        rows: _EnvelopeRows,
        partitions: Sequence[TopicIdPartition],
        labels: Iterable[int],
        inputs: Inputs,
        saved: Saved,
    ) -> list[Output]:
        """The records of rows of several outputs, revisions or input partitions, in the order of the rows."""
        parts: dict[tuple[int, int, TopicIdPartition], list[int]] = {}
        read_at = partitions if len(partitions) > 1 else repeat(partitions[0])
        for row, place in enumerate(zip(rows.outputs, labels, read_at, strict=False)):
            parts.setdefault(place, []).append(row)
        placed: list[tuple[int, Output]] = []
        for (output, revision, tp), own in parts.items():
            records = self._of_one(self._target(output, revision), tp, rows.only(own), inputs, saved)
            placed += zip(own, records, strict=True)
        return [record for _, record in sorted(placed, key=itemgetter(0))]

    def _of_one(
        self, target: Target, tp: TopicIdPartition, rows: _EnvelopeRows, inputs: Inputs, saved: Saved
    ) -> list[Output]:
        numbers, _, keys, types, payloads = rows
        at = inputs.at(numbers)
        places, lane_at = inputs.lanes(at)
        lanes = [target.lane(tp, *lane, saved) for lane in places]
        _take(target, tp, dict(zip(numbers, lane_at, strict=True)), lanes, inputs)
        if target.process_id is not None:
            return self._bare(target, target.process_id, rows, inputs)
        if target.needs_key and None in keys:  # a time is no reason: the envelope has its own
            target.check(inputs.origin(numbers[keys.index(None)]), None, None, self._clock_ms)
        partitions, fields = zip(*target.places(keys, tp.partition), strict=True)
        framed = None
        if len(keys) >= WORTHWHILE and has_columns():
            from sqe_chain.envelope.run_template import Run, run_frames  # noqa: PLC0415 - needs numpy

            framed = run_frames(Run(inputs.columns, at, lanes, lane_at, partitions))
        written = [lanes[lane] for lane in lane_at]
        # Fewer envelopes, no numpy, or a position that `run_frames` cannot place: the same bytes, one by one.
        if framed is None:
            framed = frames(
                zip(written, inputs.sources(numbers), *_numbered(numbers), partitions, strict=True)
            )
        if target.plain:
            # The envelope goes into headers and the payload is the value; None stays, for a deleted state.
            payloads = [payload and b"" for payload in payloads]
        values: Sequence[Any] = seal(lanes[0].template, framed, fields, types, payloads)
        times = inputs.times_ms(at)
        headers = self._headers(target, numbers, lane_at, inputs)
        if target.headed:
            headers = _with_own(target, types, headers)
        if target.revised:
            headers = [[*(passed or ()), *target.revised] for passed in headers]
        if target.plain:
            described = zip(values, times, headers, written, strict=True)
            headers = _described(target, rows, described, inputs)
            values = list(map(check_payload, rows.payloads))
        if inputs.traces is not None:
            headers = _traced(target, rows, (partitions, headers, written), inputs, inputs.traces)
        _check_sizes(target, rows, (values, fields, headers), inputs)
        return list(zip(repeat(target.topic), partitions, keys, values, headers, times))

    def _headers(
        self, target: Target, numbers: Sequence[int], lane_at: Sequence[int], inputs: Inputs
    ) -> Sequence[Headers | None]:
        headers = _headers(target, numbers, inputs)
        return with_routes(numbers, lane_at, inputs, headers, self._routes) if self._routed else headers

    def _bare(self, target: Target, process_id: int, rows: _EnvelopeRows, inputs: Inputs) -> list[Output]:
        """The one bare payload that each input gave, under SQE's record key."""
        records: list[Output] = []
        counts = Counter(rows.inputs)
        for number, given, payload in zip(rows.inputs, rows.keys, rows.payloads, strict=True):
            origin = inputs.origin(number)
            if counts[number] > 1:
                raise PoisonError(
                    f"output {target.name!r} got {counts[number]} payloads from {origin}: SQE's record keys stand for one record of a "
                    "source offset only. Give one, or use to()"
                )
            key = SqeKey(process_id, origin.tp.partition, origin.offset)
            headers = origin.headers if target.headers else None
            size = len(payload or b"") + headers_size(headers or [])
            if size > target.largest:
                raise target.too_large(origin, given, size)
            target.check(origin, b"", origin.timestamp_ms, self._clock_ms)
            partition = key.destination(target.partitions)
            records.append((target.topic, partition, key.to_bytes(), payload, headers, origin.timestamp_ms))
        return records


def _numbered(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Of each envelope, which of those of its input it is, and how many they are; those of one input follow each other."""
    count = len(numbers)
    if numbers[0] == numbers[-1]:
        return range(count), [count] * count
    ordinals, ofs = list[int](), list[int]()
    for of in Counter(numbers).values():
        ordinals += range(of)
        ofs += [of] * of
    return ordinals, ofs


def _take(
    target: Target, tp: TopicIdPartition, steps: dict[int, int], lanes: Sequence[WrittenLane], inputs: Inputs
) -> None:
    """Note the inputs of each lane (number -> index of the lane), unless outputs of a later one were made before."""
    if len(lanes) == 1 and inputs.rise:  # the first and the last input of a lane stand for all
        steps = dict.fromkeys((next(iter(steps)), next(reversed(steps))), 0)
    for number, lane in steps.items():
        target.take(tp, lanes[lane], inputs.offset(number))


def _restore(saved: Saved) -> None:
    """Leave no trace in lanes of what was written."""
    for lane, (offset, previous) in saved.items():
        lane.offset, lane.previous = offset, previous


def _headers(target: Target, numbers: Sequence[int], inputs: Inputs) -> Sequence[Headers | None]:
    headers = inputs.headers() if target.headers else None
    if headers is None:
        return [None] * len(numbers)
    passed = {number: passed_on(headers[number], carrier=target.carrier) for number in dict.fromkeys(numbers)}
    return [passed[number] for number in numbers]


def _with_own(
    target: Target, types: Sequence[str], headers: Sequence[Headers | None]
) -> list[Headers | None]:
    """The headers of records, with those of their codecs instead of the input's of the same names."""
    own_of: dict[str, tuple[Headers, set[str]]] = {}
    for type_name in dict.fromkeys(types):
        codec = target.headed.get((target.index, type_name))
        own = [] if codec is None else [*codec.headers()]
        own_of[type_name] = own, {name for name, _ in own}
    merged: list[Headers | None] = []
    for type_name, passed in zip(types, headers, strict=True):
        own, replaced = own_of[type_name]
        merged.append([*(pair for pair in passed or () if pair[0] not in replaced), *own] or None)
    return merged


def _described(
    target: Target,
    rows: _EnvelopeRows,
    columns: Iterable[tuple[bytes, int, Headers | None, WrittenLane]],
    inputs: Inputs,
) -> list[Headers | None]:
    """The headers of plain records, by their envelopes, times, what they repeat of their inputs' headers, and their lanes."""
    described: list[Headers | None] = []
    ordinals, _ = _numbered(rows.inputs)
    for (envelope, time_ms, passed, lane), number, type_name, ordinal in zip(
        columns, rows.inputs, rows.types, ordinals, strict=True
    ):
        identity = _identity(lane, number, ordinal, inputs)
        described.append([*(passed or ()), *headers_for(envelope, type_name, target.name, identity, time_ms)])
    return described


def _identity(lane: WrittenLane, number: int, ordinal: int, inputs: Inputs) -> bytes:
    """The event id of an envelope: the ordinal is which of those of its input it is."""
    position = inputs.origin(number).position + ordinal.to_bytes(ORDINAL_LENGTH)
    return event_id(lane.template.lane, position)


def _traced(
    target: Target,
    rows: _EnvelopeRows,
    columns: tuple[Sequence[int], Sequence[Headers | None], Sequence[WrittenLane]],
    inputs: Inputs,
    traces: RowTraces,
) -> list[Headers | None]:
    """The headers of records, with those by which their traces lead on; columns are their partitions, other headers, and lanes."""
    described: list[Headers | None] = []
    places = zip(rows.inputs, rows.outputs, rows.keys, strict=True)
    ordinals, _ = _numbered(rows.inputs)
    for place, ordinal, partition, headers, lane in zip(places, ordinals, *columns, strict=True):
        identity = _identity(lane, place[0], ordinal, inputs)
        own = traces.headers(place, target.topic, partition, identity)
        described.append([*(headers or ()), *own] if own else headers)
    return described


def _check_sizes(target: Target, rows: _EnvelopeRows, columns: tuple[Any, Any, Any], inputs: Inputs) -> None:
    """See that the topic accepts the sizes of all records: of their values, fields of keys, and headers."""
    values, fields, headers = columns
    if (
        not any(headers) and 2 * max(map(len, values)) <= target.largest
    ):  # the key is in its envelope, so both take at most twice that
        return
    for row, (value, field, own) in enumerate(zip(values, fields, headers, strict=True)):
        size = len(value or b"") + headers_size(own or [])
        if size + len(field) > target.largest:
            raise target.too_large(inputs.origin(rows.inputs[row]), rows.keys[row], size)
