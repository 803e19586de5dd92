"""All tasks of an attempt in one process, one after the other, shuffles included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Message, Range
from sqe_chain.task.level import run_level
from sqe_chain.task.reading import Reading
from sqe_chain.task.results import Block, Job, Portion, Stores, Units, spread
from sqe_chain.task.shuffling import ShuffledUnits, in_order


def run_serially(
    flow: CompiledFlow,
    job: Job,
    portions: Sequence[Portion],
    read: Callable[[Range], Iterable[Sequence[Message]]],
    stores: Stores,
) -> Iterator[Block]:
    """Run levels 0 to `job.top_level`.

    Args:
        flow: the flow.
        job: what all tasks of the attempt have in common.
        portions: what is read.
        read: gives the records of a range; see `Log.read`.
        stores: the store of a stage.

    Returns:
        Blocks of all tasks, with several reports. Units are kept here until their level begins; they are
        given only so that they can be counted.
    """
    units: dict[int, list[ShuffledUnits]] = {}
    for blocks in _tasks(flow, job, portions, read, stores, units):
        for block in blocks:
            if isinstance(block, Units):
                units.setdefault(block.level, []).extend(block.blocks)
            yield block


def _tasks(
    flow: CompiledFlow,
    job: Job,
    portions: Sequence[Portion],
    read: Callable[[Range], Iterable[Sequence[Message]]],
    stores: Stores,
    units: dict[int, list[ShuffledUnits]],
) -> Iterator[Iterable[Block]]:
    """The blocks of each task; those of a level are asked for when all units of it are there."""
    for task in spread(job, portions):
        reading = Reading(flow, job, stores)
        for portion in task:
            yield reading.read(portion, read(portion.read))
        yield reading.finish()
    for level in range(1, min(len(flow.levels), job.top_level) + 1):
        given = units.pop(level, [])
        if given:
            yield run_level(flow, job, level, in_order(given), stores)
