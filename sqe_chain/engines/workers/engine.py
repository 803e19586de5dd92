"""The engine on worker processes: which worker does what, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final

from sqe_chain.engines.packing import Setup
from sqe_chain.engines.shared_outputs import Place, SharedOutputs
from sqe_chain.engines.task import Applied
from sqe_chain.engines.workers.tasks import Done, Parcel, Tasks
from sqe_chain.engines.workers.team import Team
from sqe_chain.errors import EngineLost
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Header, Log, Output, StateStore
from sqe_chain.task.digest import differing, of_cell
from sqe_chain.task.results import Job, Portion, Report, spread

_NOTHING_WRITTEN: Final = 1 << 30
"""In place of a level, before any changed states are written."""

_Assigned = list[list[Portion]]
"""The portions of each task of one worker."""


class WorkersEngine:
    """Runs the tasks of a batch on worker processes of this machine. Implements `plans.environment.Engine`.

    An input partition stays with its worker, and so do state partitions. When a worker is lost, the step fails with
    `Unavailable`, so that new workers repeat it. First they compute what the lost ones had kept, from the same ranges, marks
    and states. A state partition that was written meanwhile has a newer header, and is skipped.

    Args:
        flow: the flow.
        log: where to read and publish; it is sent to the workers, secrets included.
        stores: store name -> store, "" the default one; sent like the log, so not one in memory.
        team: the workers; the caller closes it.

    Raises:
        ConfigurationError: the flow cannot be sent.
    """

    def __init__(self, flow: CompiledFlow, log: Log, stores: Mapping[str, StateStore], team: Team) -> None:
        self._flow = flow
        self._team = team
        self._set_up = partial(Tasks.set_up, setup=Setup.of(flow, log, stores))
        # Input partition (without a shuffle: number of the partition) -> its worker; an entry never changes.
        self._owners: dict[Hashable, int] = {}
        # What workers keep; None: nothing. Job and portions are enough to compute it again, and the report is what
        # must come of that.
        self._batch: tuple[Job, Sequence[Portion], Report] | None = None
        # The level whose states were written last. Deeper ones are written first, so those above it are not written yet.
        self._written_from = _NOTHING_WRITTEN
        self._shared = SharedOutputs(wanted=flow.transactional)
        self._generation = 0  # of the team, when `_batch` was computed
        team.prepare(self._set_up)

    def warm_up(self) -> None:
        """Workers have begun when they were set up; let them connect, and wait for that."""
        self._team.call([Tasks.connect] * self._team.size)

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Run all levels; workers keep outputs and changed states."""
        self._batch = None
        report = self._run(job, portions) if portions else Report()
        self._batch, self._written_from = (job, portions, report), _NOTHING_WRITTEN
        return report

    def publish(self) -> None:
        """Each worker writes the outputs that it keeps."""
        if self._kept():
            self._team.call([Tasks.publish] * self._team.size)

    def outputs(self) -> Iterator[Sequence[Output]]:
        """The outputs of workers come here, a block at a time: one producer writes a transaction."""
        if not self._kept():
            return
        yield from self._shared.blocks()
        for number in count():
            blocks = self._team.call([partial(Tasks.outputs, number=number)] * self._team.size)
            if not any(blocks):
                return
            yield from filter(None, blocks)

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        """Each worker writes the states of the level that it keeps."""
        if not self._kept():
            return 0
        self._written_from = level
        write = partial(Tasks.persist, level=level, applied=Applied(plan_id, before))
        return sum(self._team.call([write] * self._team.size))

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Each worker reads, transforms and publishes its portions."""
        self._batch = None
        if not portions:
            return Report()
        self._team.prepare(self._set_up)
        shares = [[portion for task in tasks for portion in task] for tasks in self._assign(job, portions)]
        reports = self._team.call([partial(Tasks.republish, job=job, portions=share) for share in shares])
        self._team.end_batch()
        return _sum(reports)

    def release(self) -> None:
        """Workers forget what they keep."""
        self._batch = None
        self._shared.release()
        self._team.send_command(Tasks.release)
        self._team.end_batch()

    def _kept(self) -> bool:
        """Whether workers keep a batch; what was lost with one of them is computed again, and compared."""
        if self._batch is None:
            return False
        job, portions, before = self._batch
        if portions and self._generation != self._team.generation:
            again = self._run(job, portions)
            if not _is_same(again, before) or differing(before.gives, again.gives, self._given_again(before)):
                raise EngineLost(
                    f"flow {self._flow.name!r}: workers were lost, and what they had computed came out differently the second "
                    "time. Nothing of that was written. Start the service again: it redoes the batch and reports what differs"
                )
        return bool(portions)

    def _given_again(self, before: Report) -> Iterable[str]:
        """What a batch that is computed again gives as before: all of it, or once states are written those of levels before them."""
        if self._written_from == _NOTHING_WRITTEN:
            return before.gives
        stages = [stage for level in self._flow.levels[: self._written_from - 1] for stage in level]
        return [of_cell(stage.name, cell) for stage in stages for cell in self._flow.cells[stage.index]]

    def _run(self, job: Job, portions: Sequence[Portion]) -> Report:
        team = self._team
        team.prepare(self._set_up)
        shares = self._assign(job, portions)
        self._shared.begin()
        process = partial(Tasks.process, job=job, shared_file=self._shared.file)
        results = team.call([partial(process, assigned=share) for share in shares])
        report, parcels = _sum(done.report for done in results), _parcels(results)
        self._shared.places += _places(results)
        for level in range(2 if job.in_place else 1, min(len(self._flow.levels), job.top_level) + 1):
            for_each = [list[Parcel]() for _ in range(team.size)]
            for parcel in parcels:
                if parcel.level == level:
                    # By state partition, so that all units of one meet in one worker.
                    for_each[parcel.first[0] % team.size].append(parcel)
            results = team.call([partial(Tasks.fold, level=level, parcels=own) for own in for_each])
            report.add(_sum(done.report for done in results))
            self._shared.places += _places(results)
            parcels = _parcels(results)
        self._generation = team.generation
        return report

    def _assign(self, job: Job, portions: Sequence[Portion]) -> list[_Assigned]:
        """The tasks of each worker. What is new goes to the one that has the least."""
        shares: list[_Assigned] = [[] for _ in range(self._team.size)]
        for task in spread(job, portions):
            read = task[0].read
            place: Hashable = read.partition if job.in_place else (read.topic, read.partition)
            if place not in self._owners:
                counts = Counter(self._owners.values())
                self._owners[place] = min(range(self._team.size), key=lambda number: counts[number])
            shares[self._owners[place]].append(task)
        return shares


def _sum(reports: Iterable[Report]) -> Report:
    total = Report()
    for report in reports:
        total.add(report)
    return total


def _parcels(results: Iterable[Done]) -> list[Parcel]:
    return [parcel for done in results for parcel in done.parcels]


def _places(results: Iterable[Done]) -> list[Place]:
    return [place for done in results for place in done.shared]


def _is_same(again: Report, before: Report) -> bool:
    """Whether a batch was computed again as before: what is persisted already is not folded, so it cannot fail again."""
    return (
        _ends(again) == _ends(before)
        and set(again.excluded) == set(before.excluded)
        and set(again.failed) <= set(before.failed)
        and not again.broken
    )


def _ends(report: Report) -> list[tuple[object, ...]]:
    return sorted(
        (end.topic, end.partition, end.last_offset, end.last_crc, end.records, end.replays)
        for end in report.ends
    )
