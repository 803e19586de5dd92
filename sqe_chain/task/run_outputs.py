"""The envelopes of a run of inputs, gathered and encoded together.

The records are those that `Gatherer.gather` makes input by input, in the same order (a property test compares them). What
most runs do not have is left to it: chains in headers, SQE's record keys, collections of several types, records that a topic
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from sqe_chain.chain import stored_epoch
from sqe_chain.envelope.block import Block
from sqe_chain.envelope.carrier import passed_on
from sqe_chain.envelope.columns import Ints, Lanes
from sqe_chain.envelope.run_template import Run, contents, envelopes, frames
from sqe_chain.flow.context import Origin, TopicIdPartition, new_origin
from sqe_chain.ports import Headers, Output
from sqe_chain.task.collector import Made
from sqe_chain.task.target import LastWritten, Target, headers_size


class _Rows(NamedTuple):
    """What is to become an envelope each.

    Attributes:
        inputs: the input, by its index in the block.
        outputs: index of the output's node.
        keys: its key.
        types: what it says of its payloads' type.
        payloads: its first payload.
        several: row -> all payloads, where there are more than one.
    """

    inputs: Ints
    outputs: Ints
    keys: Sequence[bytes | None]
    types: Sequence[str]
    payloads: Sequence[bytes | None]
    several: Mapping[int, Sequence[bytes | None]]

    def only(self, chosen: Ints) -> _Rows:
        """Some of them, in this order."""
        rows = chosen.tolist()
        keys, types, payloads = (
            [column[row] for row in rows] for column in (self.keys, self.types, self.payloads)
        )
        several = (
            {new: self.several[row] for new, row in enumerate(rows) if row in self.several}
            if self.several
            else {}
        )
        return _Rows(self.inputs[chosen], self.outputs[chosen], keys, types, payloads, several)


class RunInputs(NamedTuple):
    """Where the inputs of a run are from.

    Attributes:
        tp: topic, topic id and partition.
        block: their records.
        lane_of: lane as envelopes state it -> the lane that marks use.
    """

    tp: TopicIdPartition
    block: Block
    lane_of: Callable[[int], int]

    def origin(self, index: int) -> Origin:
        """One of them."""
        block, head = self.block, self.block.head(index)
        message, lane = block.messages[index], self.lane_of(head.lane if head is not None else 0)
        epoch, position = stored_epoch(message.leader_epoch()), block.position(index)
        return new_origin((self.tp, message.offset(), epoch, lane, position, head, message, None, -1))


def run_outputs(
    targets: Mapping[int, Target], made: Sequence[Made], inputs: Sequence[int], run: RunInputs
) -> tuple[list[Output], LastWritten] | None:
    """The records for all payloads that a run of inputs gave, and what is then written last.

    Args:
        targets: index of an output's node -> the output.
        made: payloads in the order of their units.
        inputs: of each payload, the index of its input in the block; they never fall.
        run: where the inputs are from.

    Returns:
        None: `Gatherer.gather` has to look at each input.

    Raises:
        ChainTooLong: an input has 32 links already.
    """
    rows = _rows(made, inputs)
    if rows is None:
        return None
    used = np.unique(rows.outputs).tolist()
    if any(targets[index].one_by_one for index in used):
        return None
    last: LastWritten = []
    if len(used) == 1:
        records = _records(targets[used[0]], rows, run, last)
        return None if records is None else (records, last)
    found: list[Any] = [None] * len(rows.keys)
    for index in used:
        chosen = np.flatnonzero(rows.outputs == index)
        own = _records(targets[index], rows.only(chosen), run, last)
        if own is None:
            return None
        for row, record in zip(chosen.tolist(), own, strict=True):
            found[row] = record
    return found, last


def _rows(made: Sequence[Made], inputs: Sequence[int]) -> _Rows | None:
    """The envelopes in their order; None when payloads of one have several types."""
    outputs, keys, types, payloads = zip(*made, strict=True)
    count = len(keys)
    rows = _Rows(
        np.fromiter(inputs, np.int64, count), np.fromiter(outputs, np.int64, count), keys, types, payloads, {}
    )
    if (rows.inputs[1:] > rows.inputs[:-1]).all():  # one payload each
        return rows
    places = list(zip(inputs, outputs, keys, strict=True))
    if len(set(places)) < count:
        collections: dict[tuple[int, int, bytes | None], list[int]] = {}
        for row, place in enumerate(places):
            collections.setdefault(place, []).append(row)
        if any(len({types[row] for row in own}) > 1 for own in collections.values() if len(own) > 1):
            return None
        several = {own[0]: [payloads[row] for row in own] for own in collections.values() if len(own) > 1}
        firsts = np.fromiter((own[0] for own in collections.values()), np.int64, len(collections))
        rows = rows._replace(several=several).only(firsts)
    # By input, and by output in the order of its first payload from there.
    if (rows.outputs == rows.outputs[0]).all():
        return rows
    pairs = rows.inputs * (int(rows.outputs.max()) + 1) + rows.outputs
    _, firsts, numbers = np.unique(pairs, return_index=True, return_inverse=True)
    order = firsts[numbers].argsort(kind="stable")
    return rows if (order[1:] > order[:-1]).all() else rows.only(order)


def _records(target: Target, rows: _Rows, run: RunInputs, last: LastWritten) -> list[Output] | None:
    """The records of one output; None when it refuses one of them."""
    if target.needs_key and None in rows.keys:
        return None
    block, partitions, count = run.block, target.partitions, len(rows.keys)
    places, fields = zip(*target.places(rows.keys, run.tp.partition), strict=True)
    indexes = rows.inputs
    firsts = np.flatnonzero(np.append(True, indexes[1:] != indexes[:-1]))
    counts = np.diff(np.append(firsts, count))
    ordinals, ofs = np.arange(count) - np.repeat(firsts, counts), np.repeat(counts, counts)
    stated, numbers = _numbered(block.lanes[indexes])
    writings = [target.writing(run.tp, run.lane_of(lane), lane) for lane in stated.tolist()]
    lanes = np.array([writing.template.lane for writing in writings], np.uint64)[numbers]
    slots = numbers * partitions + places

    def before(slot: int) -> bytes:
        return writings[slot // partitions].previous.get(slot % partitions, b"")

    offsets = block.offsets[indexes]
    for number, lane in enumerate(map(run.lane_of, stated.tolist())):
        own = offsets if len(stated) == 1 else offsets[numbers == number]
        target.told_before(run.tp, lane, int(own[0]))
        last.append((target.told, lane, int(own[-1])))
    template = writings[0].template
    framed = frames(template, Run(block, indexes, ordinals, ofs, lanes, slots), before)
    content = contents(rows.types, rows.payloads, rows.several)
    values = envelopes(template, framed, fields, content)
    headers = _headers(target, block, indexes)
    if not _fit(target, values, fields, headers):
        return None
    last += [
        (writings[slot // partitions].previous, slot % partitions, own) for slot, own in framed.last.items()
    ]
    times = block.times_ms[indexes].tolist()
    return list(zip(repeat(target.topic), places, rows.keys, values, headers, times))


def _numbered(lanes: Lanes) -> tuple[Lanes, Ints]:
    """The lanes, and the number of each row's."""
    if (lanes == lanes[0]).all():
        return lanes[:1], np.zeros(len(lanes), np.int64)
    return np.unique(lanes, return_inverse=True)


def _headers(target: Target, block: Block, indexes: Ints) -> list[Headers | None]:
    """What each record repeats of its input's headers."""
    found = block.headers
    if not target.headers or found is None:
        return [None] * len(indexes)
    inputs = indexes.tolist()
    passed = {index: passed_on(found[index], carrier=target.carrier) for index in dict.fromkeys(inputs)}
    return [passed[index] for index in inputs]


def _fit(
    target: Target, values: Sequence[bytes], fields: Sequence[bytes], headers: Sequence[Headers | None]
) -> bool:
    """Whether the topic accepts the sizes of all records."""
    if not any(headers) and 2 * max(map(len, values)) <= target.largest:  # a key is in its envelope
        return True
    return all(
        len(value) + len(field) + (headers_size(own) if own else 0) <= target.largest
        for value, field, own in zip(values, fields, headers, strict=True)
    )
