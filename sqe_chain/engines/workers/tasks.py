"""What one worker does: its share of a batch, step by step. The service asks for each step, and gets little in return."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from sqe_chain.engines import task
from sqe_chain.engines.ahead import ahead
from sqe_chain.engines.packing import Setup
from sqe_chain.engines.shared_outputs import Place, SharedFile
from sqe_chain.engines.units import Key, Packed, UnitPacker, merged
from sqe_chain.engines.warming import open_connections, run_made_up_records
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Output
from sqe_chain.task.level import run_level
from sqe_chain.task.results import Block, ChangedStates, Job, Outputs, Portion, Report, Units


@dataclass(frozen=True, slots=True)
class Parcel:
    """Units in the outbox of a worker, for the same state partition and stage.

    Attributes:
        level: that folds them.
        first: key of the first one.
        outbox: number of the worker that wrote them.
        offset: where in its outbox.
    """

    level: int
    first: Key
    outbox: int
    offset: int
    size: int


@dataclass(slots=True)
class Done:
    """What running levels gave: a report, units for deeper levels, and where outputs are in the service's `SharedOutputs`."""

    report: Report = field(default_factory=Report)
    parcels: list[Parcel] = field(default_factory=list)
    shared: list[Place] = field(default_factory=list)


# Files in memory that all workers have open: units go from one worker to another without passing the service.
class Outboxes:
    """The outboxes of all workers, as descriptors by their numbers. This process writes its own."""

    def __init__(self, files: Sequence[int], mine: int) -> None:
        self._files = files
        self._mine = mine
        self._end = 0

    def put(self, level: int, packed: Packed) -> Parcel:
        """Write units at the end of this worker's outbox."""
        first, blob = packed
        start, rest = self._end, memoryview(blob)
        while rest:
            written = os.pwrite(self._files[self._mine], rest, self._end)
            self._end, rest = self._end + written, rest[written:]
        return Parcel(level, first, self._mine, start, len(blob))

    def get(self, parcel: Parcel) -> Packed:
        """Read units that any worker has written."""
        return parcel.first, os.pread(self._files[parcel.outbox], parcel.size, parcel.offset)

    def clear(self) -> None:
        """Empty this worker's outbox."""
        os.ftruncate(self._files[self._mine], 0)
        self._end = 0


class Tasks:
    """The share of one worker in the batch at hand, and what it keeps of it. Units for deeper levels go through the outboxes."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._flow: CompiledFlow
        self._setup: Setup
        self._job: Job | None = None
        self._outputs: list[Sequence[Output]] = []
        self._shared_file: SharedFile | None = None  # where outputs are put, in place of keeping them
        self._states: list[ChangedStates] = []

    def set_up(self, setup: Setup) -> None:
        """Take up a flow, before everything else, and warm up.

        Raises:
            ConfigurationError: a module is missing.
        """
        self._setup, self._flow = setup, setup.packed.unpack()
        run_made_up_records()
        task.collect_rarely()

    def connect(self) -> None:
        """Connect to brokers and stores, as the first batch would have to.

        Raises:
            ChainError: something does not answer, or is wrong. The first batch will find it, too.
        """
        open_connections(self._flow, self._setup.log, self._setup.store)

    def process(
        self, job: Job, assigned: Sequence[Sequence[Portion]], shared_file: SharedFile | None
    ) -> Done:
        """Run level 0, and level 1 if it needs no shuffle, for the portions of each of this worker's tasks."""
        self.release()
        self._job, self._shared_file = job, shared_file
        read = ahead(self._setup.log, [portion for portions in assigned for portion in portions])

        def blocks() -> Iterator[Block]:
            for portions in assigned:
                yield from task.blocks_of(self._flow, job, portions, read, self._setup.store)

        return self._keep(blocks())

    def fold(self, level: int, parcels: list[Parcel]) -> Done:
        """Run a level of 1 or more, with all units of the state partitions that this worker folds."""
        if not parcels or self._job is None:
            return Done()
        parcels.sort(key=attrgetter("first"))
        rows = merged(map(self._outboxes.get, parcels))
        return self._keep(run_level(self._flow, self._job, level, rows, self._setup.store))

    def publish(self) -> None:
        """Write all outputs kept; returns when they are acknowledged."""
        if self._outputs:
            task.publish(self._setup.log, self._outputs)

    def outputs(self, number: int) -> Sequence[Output]:
        """A block of the outputs kept, by its number; empty after the last one."""
        return self._outputs[number] if number < len(self._outputs) else ()

    def persist(self, level: int, applied: task.Applied) -> int:
        """Write the changed states of one level; returns the rows written."""
        if self._job is None:
            return 0
        states = [changed for changed in self._states if changed.level == level]
        return task.apply_all(self._flow, self._job, self._setup.store, states, applied)

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """For a flow without stages: read, transform and publish."""
        return task.republish(self._flow, job, portions, self._setup.log, self._setup.store)

    def release(self) -> None:
        """Forget what was kept, units included."""
        self._job = None
        self._outputs = []
        self._states = []
        self._outboxes.clear()

    def _keep(self, blocks: Iterable[Block]) -> Done:
        """Keep outputs, or share them, and states; put units into the outbox, and add up the reports."""
        done, packers = Done(), dict[int, UnitPacker]()

        def put(level: int, packed: Iterable[Packed]) -> None:
            done.parcels.extend(self._outboxes.put(level, parcel) for parcel in packed)

        for block in blocks:
            if isinstance(block, Outputs):
                place = None if self._shared_file is None else self._shared_file.put(block.records)
                if place is not None:
                    done.shared.append(place)
                else:
                    self._shared_file = None  # else the order would be lost
                    self._outputs.append(block.records)
            elif isinstance(block, Units):
                packer = packers.setdefault(block.level, UnitPacker())
                put(block.level, packer.add(block.blocks))
            elif isinstance(block, ChangedStates):
                self._states.append(block)
            else:
                done.report.add(block)
        for level, packer in packers.items():
            put(level, packer.finish())
        return done
