"""The rule of event time for a run of messages at once: the places that `EventTimes.observe` would give each of them.

Only the common case is decided here: writers that are known, times that are believed. For anything else the answer is
"look at each", and `observe` decides. Property tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from sqe_chain.envelope.block import Block, EnvelopeBlock
from sqe_chain.envelope.columns import Ints, Rows
from sqe_chain.envelope.head import EnvelopeHead
from sqe_chain.segment.event_times import ORIGIN, EventTimes, Writer
from sqe_chain.segment.source_times import writer_of


class PlacedRun(NamedTuple):
    """What a run of messages says of event time; nothing has moved yet.

    Attributes:
        orders_ms: the place of each in the order of times.
        writers: name -> the latest time of its messages, and the highest watermark that they bear (0 for none).
        lanes: lane -> place of its last message.
        met: the first envelope on each lane whose writer was not known.
    """

    orders_ms: list[int]
    writers: dict[str, tuple[int, int]]
    lanes: dict[int, int]
    met: list[EnvelopeHead]

    def move(self, times: EventTimes) -> None:
        """Move event time over the run, after what was `met` has been introduced."""
        times.begin()
        for name, (latest_ms, stated_ms) in self.writers.items():
            times.observe_all(name, (latest_ms,), stated_ms)
        times.lanes.update(self.lanes)


def place_run(
    times: EventTimes, names: Mapping[int, str], block: Block, begin: int, end: int
) -> PlacedRun | None:
    """Where the messages of a run belong in the order of times.

    Args:
        times: of the partition that the block was read from.
        names: lane as envelopes state it -> its writer, as far as known.
        block: the block.
        begin: index of the run's first message.
        end: index after its last one; all between are ordinary (`Columns.ordinary`), and none is a replay.

    Returns:
        None when one of them needs a closer look.
    """
    if not isinstance(block, EnvelopeBlock):
        return _placed_raw(times, block.times_ms[begin:end])
    columns, found = block.columns, PlacedRun([], {}, {}, [])
    lanes, at_ms, stated_ms = (
        column[begin:end] for column in (columns.lane, columns.timestamp_ms, columns.watermark_ms)
    )
    orders_ms = np.empty_like(at_ms)
    for name, own_lanes in _by_writer(names, block, begin, lanes, found.met).items():
        writer = times.writers.get(name)
        if writer is None or writer.time.now_ms is None:
            return None
        own = np.sort(np.concatenate([of_lane for _, of_lane in own_lanes]))
        latest_ms = int(at_ms[own].max())
        if times.guard is not None and latest_ms - writer.time.now_ms > times.guard.max_jump_ms:
            return None
        found.writers[name] = latest_ms, int(stated_ms[own].max())
        for lane, of_lane in own_lanes:
            floor_ms = times.lanes.get(lane)
            if floor_ms is None:
                first = int(np.searchsorted(own, of_lane[0]))
                floor_ms = _floor(writer, at_ms[own[:first]], int(stated_ms[own[: first + 1]].max()))
            places = np.maximum.accumulate(np.maximum(at_ms[of_lane], floor_ms))
            orders_ms[of_lane], found.lanes[lane] = places, int(places[-1])
    return found._replace(orders_ms=orders_ms.tolist())


def _placed_raw(times: EventTimes, at_ms: Ints) -> PlacedRun | None:
    """The same for messages without envelopes, which are all of one writer and lane."""
    writer, latest_ms = times.writers.get(ORIGIN), int(at_ms.max())
    if writer is None or writer.time.now_ms is None:
        return None
    if times.guard is not None and latest_ms - writer.time.now_ms > times.guard.max_jump_ms:
        return None
    floor_ms = times.lanes.get(0)
    if floor_ms is None:
        floor_ms = _floor(writer, at_ms[:0], 0)
    places = np.maximum.accumulate(np.maximum(at_ms, floor_ms))
    return PlacedRun(places.tolist(), {ORIGIN: (latest_ms, 0)}, {0: int(places[-1])}, [])


def observe_run(
    times: EventTimes,
    writer_of_head: Callable[[EnvelopeHead], str],
    names: Mapping[int, str],
    block: Block,
    begin: int,
    end: int,
) -> None:
    """Move event time by a run, where its messages' places in the order of times do not matter.

    Args:
        times: of the partition that the block was read from.
        writer_of_head: the name of the writer of a message, which it remembers in `names`.
        names: see `place_run`.
        block: the block.
        begin: index of the run's first message.
        end: index after its last one; all between are ordinary.
    """
    if not isinstance(block, EnvelopeBlock):
        times.observe_all(ORIGIN, block.times_ms[begin:end].tolist())
        return
    at_ms, stated_ms = block.columns.timestamp_ms[begin:end], block.columns.watermark_ms[begin:end]
    lanes = block.columns.lane[begin:end].tolist()
    by_writer: dict[str, list[int]] = {}
    for lane in dict.fromkeys(lanes):
        if lane not in names:
            writer_of_head(block.head(begin + lanes.index(lane)))
        by_writer.setdefault(names[lane], []).append(lane)
    for name, own in by_writer.items():
        chosen: list[int] | slice = slice(None)
        if len(by_writer) > 1:
            chosen = [number for number, lane in enumerate(lanes) if lane in own]
        times.observe_all(name, at_ms[chosen].tolist(), int(stated_ms[chosen].max()))


def _by_writer(
    names: Mapping[int, str], block: EnvelopeBlock, begin: int, lanes: Rows, met: list[EnvelopeHead]
) -> dict[str, list[tuple[int, Ints]]]:
    """Writer -> its lanes, in the order of their first messages, and where in the run their messages are."""
    order = lanes.argsort(kind="stable")
    ends = np.flatnonzero(lanes[order[1:]] != lanes[order[:-1]]) + 1
    found: dict[str, list[tuple[int, Ints]]] = {}
    for of_lane in sorted(np.split(order, ends), key=itemgetter(0)):
        lane = int(lanes[of_lane[0]])
        name = names.get(lane)
        if name is None:
            met.append(head := block.head(begin + int(of_lane[0])))
            name, _ = writer_of(head)
        found.setdefault(name, []).append((lane, of_lane))
    return found


def _floor(writer: Writer, before_ms: Rows, stated_ms: int) -> int:
    """The watermark of a writer when the first message of a lane comes.

    Args:
        writer: as it was before the run.
        before_ms: times of its messages before that one.
        stated_ms: the highest watermark that they bear, or that one itself; 0 for none.
    """
    if stated_ms or writer.stated_ms is not None:
        return max(stated_ms, writer.stated_ms or 0)
    return max(writer.time.now_ms or 0, int(before_ms.max(initial=0)))
