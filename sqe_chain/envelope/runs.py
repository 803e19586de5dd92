"""The rule of marks for a run of messages at once: the same answer as `PartitionMarks.accept` for each of them.

Only the common case is decided here: lanes that are known, positions that rise, fields that agree. For anything else
the answer is "look at each", and `accept` decides. Property tests compare both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sqe_chain.chain import ORDINAL_LENGTH, ROOT_LENGTH
from sqe_chain.envelope.block import Block, EnvelopeBlock
from sqe_chain.envelope.columns import Columns, Ints, Rows
from sqe_chain.envelope.mark import Mark
from sqe_chain.envelope.marks import PartitionMarks

_OF_SIZE: Final = 4


def accept_run(marks: PartitionMarks, block: Block, begin: int, end: int) -> bool:
    """Move the marks over a run of messages, if all of them are new and as expected.

    Args:
        marks: of the partition that the block was read from.
        block: records in the order of their offsets.
        begin: index of the run's first message.
        end: index after its last one; all between are ordinary (`Block.ordinary`).

    Returns:
        False when one of them needs a closer look; then no mark has moved.
    """
    if isinstance(block, EnvelopeBlock):
        return _accept_envelopes(marks, block, begin, end)
    return _accept_raw(marks, block, begin, end)


def _accept_envelopes(marks: PartitionMarks, block: EnvelopeBlock, begin: int, end: int) -> bool:
    columns, lanes = block.columns, marks.lanes
    size = int(columns.position_size[begin])
    if not (columns.position_size[begin:end] == size).all():
        return False
    # Stable, so that the messages of one lane stay in the order of their offsets.
    order = begin + columns.lane[begin:end].argsort(kind="stable")
    sorted_lanes = columns.lane[order]
    firsts = np.flatnonzero(np.append(True, sorted_lanes[1:] != sorted_lanes[:-1]))
    known_marks = [lanes.get(lane) for lane in sorted_lanes[firsts].tolist()]
    # A lane's first message is checked against its chain, and a position of another length is an error: both by `accept`.
    known = [mark for mark in known_marks if mark is not None and len(mark.position) == (size or ROOT_LENGTH)]
    if len(known) < len(known_marks):
        return False
    positions = columns.rows(columns.position[order], size, "S") if size else block.roots(order.tolist())
    # Of each message, what came before it on its lane; for the first one of a lane, that is the mark.
    before = np.roll(positions, 1)
    before[firsts] = [mark.position for mark in known]
    if not (positions > before).all():
        return False
    if size and not _witnesses_agree(columns, order, (positions, before), firsts, known):
        return False
    # Every check is behind us: from here on nothing fails, so marks move together or not at all.
    for mark, last in zip(known, order[np.append(firsts[1:], len(order)) - 1].tolist(), strict=True):
        mark.position, mark.offset = block.position(last), block.messages[last].offset()
        mark.head = block.head(last)
    return True


def _accept_raw(marks: PartitionMarks, block: Block, begin: int, end: int) -> bool:
    """The same for messages without envelopes, by `PartitionMarks.accept_raw`."""
    mark = marks.lanes.get(0)
    if mark is None:
        return False
    positions = block.roots(range(begin, end))
    if positions[0] <= mark.position or not (positions[1:] > positions[:-1]).all():
        return False
    mark.position, mark.offset = block.position(end - 1), block.messages[end - 1].offset()
    return True


def _witnesses_agree(
    columns: Columns, order: Ints, neighbours: tuple[Rows, Rows], firsts: Ints, marks: Sequence[Mark]
) -> bool:
    """Whether nothing is missing before any message, and siblings have the same `of`.

    `order` are the messages lane by lane, `neighbours` their positions and those before each; `firsts` and `marks` are of the lanes.
    """
    positions, before = neighbours
    size = positions.itemsize
    stated = columns.previous_size[order]
    if not ((stated == 0) | (stated == size)).all():
        return False
    if ((stated > 0) & (columns.rows(columns.previous[order], size, "S") > before)).any():
        return False
    stem = size - ORDINAL_LENGTH
    own, other = (rows.view(np.uint8).reshape(-1, size)[:, :stem] for rows in (positions, before))
    siblings = np.flatnonzero(
        own[:, -1] == other[:, -1]
    )  # few have the same last byte of the stem; then look closer
    siblings = siblings[(own[siblings] == other[siblings]).all(axis=1)]
    if not siblings.size:
        return True
    # `of` ends the chain, after its tag: see `last_of`.
    of = columns.rows(columns.chain_end[order] - _OF_SIZE, _OF_SIZE).view("<u4")
    of_before = np.roll(of, 1)
    of_before[firsts] = [mark.of for mark in marks]
    return bool((of[siblings] == of_before[siblings]).all())
