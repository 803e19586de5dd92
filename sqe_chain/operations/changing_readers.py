"""A change of the sets of partitions that the readers of a flow have: 0-3 becomes 0-1 and 2-3, or a flow that ran as one gets readers.

What a reader has read, and the marks by which it knows replays, stand in its last plan. They go over into the first plans of the
readers that get its partitions, whose numbers go on after all others: of two rows with the same keys the later one holds.

1. The record of the readers says which sets are given to which: from now on their readers do not start any more.
2. Each old reader is claimed, so one that still runs is fenced off, and its last plan is finished.
3. The first plan of each new reader is written. It is the same whenever it is written: the last plans do not change any more.
4. The record says that the new readers are those of the flow.

A crash in between leaves it begun; the same command goes on with it. Nothing is read or written twice or left out, because until 4
nobody reads these partitions, and from 4 on only the new readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqe_chain.errors import ConfigurationError, NotCaughtUp, ReadersOverlap, StoreInconsistent, Superseded
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.every import aggregation_of
from sqe_chain.features.readers import Readers, ReadersClaim, Sets, check_exist, read_record, write_record
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.ports import Home, TopicInfo, TopicPartition
from sqe_chain.ports.readers import ALL, Partitions, scope_of, union_of
from sqe_chain.protocol import inputs
from sqe_chain.protocol.aggregation import StagedService
from sqe_chain.protocol.declared import birth_plan
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.layout import Layout, StageLayout
from sqe_chain.protocol.plan import Plan
from sqe_chain.task.frontier import Frontier
from sqe_chain.task.states import Claim

Starts = Mapping[TopicPartition, tuple[int, bool]]


@dataclass(frozen=True, slots=True)
class ChangedReaders:
    """What a change has done.

    Attributes:
        old: the readers that there were.
        new: those that there are instead.
        plan: number of the first plan of the new ones.
    """

    old: Sets
    new: Sets
    plan: int = -1


@dataclass(slots=True)
class ChangeReaders:
    """Changes the sets of a flow's readers. May be killed and repeated.

    Args:
        env: the flow, as declared, and its ports; its engine finishes what readers have left unfinished.
        to: all sets that there shall be; one that is there already keeps its reader, which may go on running.
        stopped: whether to end between two readers.
    """

    env: Environment
    to: Sequence[Partitions]
    stopped: Callable[[], bool] = lambda: False
    _service: StagedService | None = None

    def run(self) -> ChangedReaders:
        """Do it.

        Returns:
            Which readers there were and are.

        Raises:
            FlowError: the flow cannot be read by several readers.
            ConfigurationError: sets overlap, or leave out a partition that a reader has.
            ServiceStopped: an old reader's last plan cannot be finished, or asked to stop: run it again.
            Superseded: a reader, or another change, has come in between: run it again.
        """
        env, flow = self.env, self.env.flow
        flow.check_apart()
        if not flow.stages:
            raise ConfigurationError(
                f"flow {flow.name!r} has no stages: how far it has read, and its marks, stand in its group's commits, for each partition. "
                "Stop its readers, and start others with whatever sets"
            )
        infos = inputs.describe(flow, env.log)
        self._check_sets(infos)
        record = self._begin()
        readers = record.readers
        if readers is None or not readers.new:  # nothing is to be changed
            return ChangedReaders({}, {})
        plans = {name: self._finished(partitions, name) for partitions, name in readers.old.items()}
        number = self._write_first_plans(readers, plans, infos)
        kept = {at: name for at, name in readers.sets.items() if at not in readers.old} | {**readers.new}
        after = Readers(
            readers.state_partitions,
            {at: kept[at] for at in _sorted(kept)},
            readers.changes,
            retired=tuple(dict.fromkeys([*readers.retired, *readers.old.values()])),
        )
        if write_record(env.home, flow.declared_name, record, after, env.new_run_id()) is None:
            raise Superseded(
                f"flow {flow.name!r}: another change of its readers came in between; run this one again"
            )
        return ChangedReaders(readers.old, readers.new, number)

    def beat(self) -> bool:
        """Move the heartbeat on of the reader that is finished now. False: a newer run has claimed it."""
        return self._service is None or self._service.beat()

    # ------------------------------------------------------------------ the record

    def _check_sets(self, infos: Mapping[str, TopicInfo]) -> None:
        for index, one in enumerate(self.to):
            check_exist(self.env.flow, one, infos)
            for other in self.to[:index]:
                number = one.shared(other)
                if number is not None:
                    raise ConfigurationError(f"--to {one} and --to {other} both have partition {number}")
        if not self.to:
            raise ConfigurationError("give the sets that there shall be: --to 0-3 --to 4-")

    def _begin(self) -> ReadersClaim:
        """Say in the record what is to be changed, unless it says so already."""
        env, flow = self.env, self.env.flow
        while True:  # not bounded: each further round means that a reader has entered in between
            record = read_record(env.home, flow.declared_name)
            known = record.readers or Readers(flow.state_partitions)
            if known.forgotten:
                raise ReadersOverlap(
                    f"flow {flow.name!r} is being forgotten; run sqe-chain flows forget again"
                )
            sets, wanted = self._sets_now(known), set(self.to)
            if not known.new and wanted == set(sets):
                if known.sets and sets != known.sets:  # sets that were entered by mistake
                    after = replace(known, sets=sets)
                    if write_record(env.home, flow.declared_name, record, after, env.new_run_id()) is None:
                        continue
                return record
            missing = union_of(sets).without(union_of(self.to))
            if missing is not None:
                raise ConfigurationError(
                    f"flow {flow.name!r}: no set has partition {missing}, which a reader has now ({known}): what it has read of it would be "
                    "lost. Name all sets that there shall be, also those that stay as they are"
                )
            old = {at: name for at, name in sets.items() if at not in wanted}
            if known.new and (set(known.new), known.old) == (wanted - (sets.keys() - old.keys()), old):
                return record
            # A number of its own: what an earlier change has begun and not finished is never taken for this one's.
            changes = known.changes + 1
            new = {at: scope_of(flow.declared_name, at, changes) for at in _sorted(wanted - sets.keys())}
            after = replace(known, sets=sets, changes=changes, old=old, new=new)
            written = write_record(env.home, flow.declared_name, record, after, env.new_run_id())
            if written is not None:
                return written

    def _sets_now(self, known: Readers) -> Sets:
        """The readers that there are; of a flow that was run as one so far: it."""
        home, name = self.env.home, self.env.flow.declared_name
        found, _ = home.home(name)
        if found is None or found.number < 0 or name in (*known.retired, *known.sets.values()):
            if not known.sets:
                raise ConfigurationError(
                    f"the store knows no readers of flow {name!r}, and it has not run as one: nothing is to be changed; start its readers"
                )
            return known.sets
        # A reader that was started beside it has noticed that, and has read nothing; it may have died before it left the record.
        begun = [
            one for one in known.sets.values() if (own := home.home(one)[0]) is not None and own.number >= 0
        ]
        if begun:
            raise StoreInconsistent(
                f"flow {name!r} has run as one ({found}), and so have readers of it: {', '.join(begun)}: the store went back in time"
            )
        return {ALL: name}

    # ------------------------------------------------------------------ old and new readers

    def _finished(self, partitions: Partitions, name: str) -> Plan | None:
        """Claim a reader, and finish its last plan; None: it has none, for it has never begun."""
        env = self.env
        if self.stopped():
            raise ReadersOverlap(
                f"flow {env.flow.name!r}: asked to stop while its readers are changed; run it again"
            )
        home, _ = env.home.home(name)
        role = replace(env.role, only_recovers=True)
        own = replace(env, flow=env.flow.reader(partitions, scope=name), role=role)
        own.engine = env.engine
        if home is None or home.number < 0:
            self._fence(own, home)
            return None
        self._service = service = aggregation_of(own)
        try:
            service.start()
            own.commits.settle()
        finally:
            own.commits.leave()
            service.leave()
            self._service = None
        last = service.last
        if last is None or Rebuilding.of(last).silent_until or Rebuilding.of(last).unfinished is not None:
            raise NotCaughtUp(
                f"flow {env.flow.name!r}: reader {name!r} was folded again or rewound, and has not caught up; start it until it has"
            )
        return last

    def _fence(self, own: Environment, home: Home | None) -> None:
        """Make sure that a reader that was entered and has read nothing does not begin now."""
        wanted = Home((home.epoch if home else 0) + 1, own.new_run_id(), own.role.owner, -1, "")
        if own.home.set_home(own.flow.name, home, wanted) != wanted:
            raise Superseded(f"reader {own.flow.name!r} has started in between; run this again")

    def _write_first_plans(
        self, readers: Readers, plans: Mapping[str, Plan | None], infos: Mapping[str, TopicInfo]
    ) -> int:
        """Step 3; returns the number of these plans."""
        env = self.env
        known = [plan for plan in plans.values() if plan is not None]
        number = max((plan.number for plan in known), default=-1) + 1
        if not known:  # nobody has read anything: the new readers begin as new ones do
            return number
        for partitions, name in readers.new.items():
            flow = env.flow.reader(partitions, scope=name)
            found, _ = env.home.home(name)
            if found is not None:
                continue  # written before a crash, or by another process that does the same
            starts = self._starts(flow, known, infos)
            plan = first_plan(flow, known, number, infos, starts, env.clock.now_ms())
            wanted = Home(1, "", "", plan.number, plan.plan_id)
            stored = env.home.set_home(name, None, wanted, plan.to_bytes())
            if stored is None or stored.number != plan.number:
                raise StoreInconsistent(
                    f"reader {name!r}: its home record is {stored}; the first plan has number {number}"
                )
        return number

    def _starts(self, flow: CompiledFlow, known: Sequence[Plan], infos: Mapping[str, TopicInfo]) -> Starts:
        """Where partitions begin that no reader has read so far."""
        read = {planned.tp for plan in known for planned in plan.ranges}
        fresh = [tp for tp in inputs.input_partitions(flow, infos) if tp not in read]
        return (
            inputs.first_offsets(flow, self.env.log.bounds(fresh), self.env.settings.start) if fresh else {}
        )


def first_plan(
    flow: CompiledFlow,
    known: Sequence[Plan],
    number: int,
    infos: Mapping[str, TopicInfo],
    starts: Starts,
    clock_ms: int,
) -> Plan:
    """The first plan of a reader, which goes on where others have ended. Pure.

    Args:
        flow: the flow under the reader's name, with its partitions.
        known: last plans of the readers before, at least one; of each partition one of them at most has read.
        number: of the plan.
        infos: the flow's topics.
        starts: of each partition that none of them has read: first offset, and whether it lies in the middle of the log.
        clock_ms: now.
    """
    plan = birth_plan(flow, Claim(0, ""), clock_ms, infos, starts)
    own = {
        planned.tp: (before, planned)
        for before in known
        for planned in before.ranges
        if flow.reads_partition(planned.partition)
    }
    ranges = [*plan.ranges, *(replace(planned, start=planned.stop, again=-1) for _, planned in own.values())]
    taken = {tp: EventTime.of(before).times for tp, (before, _) in own.items()}
    times = {tp: known_times[tp] for tp, known_times in taken.items() if tp in known_times}
    found = replace(
        plan,
        number=number,
        layout=_layout(plan.layout, known, number, flow),
        ranges=tuple(sorted(ranges, key=lambda planned: planned.tp)),
        marks=plan.marks | {tp: before.marks[tp] for tp, (before, _) in own.items()},
    )
    frontier = _least([EventTime.of(before).frontier for before in known])
    return found.with_sections(EventTime(times, frontier)).with_id()


def _least(frontiers: Sequence[Frontier | None]) -> Frontier | None:
    """Up to where the inputs of all readers were taken."""
    found = [one for one in frontiers if one is not None]
    return min(found) if found and len(found) == len(frontiers) else None


def _layout(fresh: Layout, known: Sequence[Plan], number: int, flow: CompiledFlow) -> Layout:
    """What the readers before were bound to, with stages that begin with this plan.

    Not what is declared now: the reader's start compares that with it.
    """
    found = max(known, key=lambda plan: plan.number).layout
    outputs, sources, starts, gone = (
        dict(found.outputs),
        dict(found.sources),
        dict(fresh.starts),
        set(found.gone),
    )
    for plan in known:
        outputs |= plan.layout.outputs
        starts |= {tp: offset for tp, offset in plan.layout.starts.items() if flow.reads_partition(tp[1])}
        gone |= set(plan.layout.gone)
    stages = {name: StageLayout(number, stage.buckets, flow.name) for name, stage in found.stages.items()}
    return replace(
        found, stages=stages, outputs=outputs, sources=sources, starts=starts, gone=tuple(sorted(gone))
    )


def _sorted(sets: Iterable[Partitions]) -> list[Partitions]:
    return sorted(sets, key=lambda one: one.ranges[0][0])
