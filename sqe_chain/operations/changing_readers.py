"""Changes which partitions each reader of a flow has: 0-3 becomes 0-1 and 2-3, or a flow that ran as one gets readers.

The last plan of a reader holds what it has read, and the marks by which it knows replays. The first plans of the readers that
get its partitions take both over. Their numbers follow all others: of two rows with the same keys the later one is valid.

1. The record of the readers names the old and the new sets: from now on readers of the old ones do not start.
2. This operation claims each old reader, which fences off one that still runs, and finishes its last plan.
3. It writes the first plan of each new reader. That is the same in every attempt: the last plans no longer change.
4. The record names the new readers as those of the flow.

After a crash in between, the same command continues. Nothing is read or written twice or skipped. Before step 4 no reader has
these partitions, and from then on only the new ones have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqe_chain.errors import ConfigurationError, NotCaughtUp, ReadersOverlap, StoreInconsistent, Superseded
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.readers import Readers, ReadersClaim, Sets, check_exist, read_record, write_record
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout, StageLayout
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.planning import birth_plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.ports import Home, TopicInfo, TopicPartition
from sqe_chain.ports.readers import ALL, Partitions, scope_of, union_of
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.task.event_times import Frontier
from sqe_chain.task.states import Claim

Starts = Mapping[TopicPartition, tuple[int, bool]]


@dataclass(frozen=True, slots=True)
class ChangedReaders:
    """What a change has done: the readers before and after, and the number of the first plan of the new ones."""

    old: Sets
    new: Sets
    plan: int = -1


@dataclass(slots=True)
class ChangeReaders:
    """Changes the sets of a flow's readers. May be killed and repeated.

    Args:
        env: the flow, as declared, and its ports; its engine finishes what readers have left unfinished.
        to: all sets of partitions from now on. One that exists keeps its reader, which may go on running.
        stopped: whether to end between two readers.
    """

    env: Environment
    to: Sequence[Partitions]
    stopped: Callable[[], bool] = lambda: False
    _service: StagedService | None = None

    def run(self) -> ChangedReaders:
        """Change the readers.

        Returns:
            Which readers there were and are.

        Raises:
            FlowError: the flow cannot be read by several readers.
            ConfigurationError: sets overlap, or miss a partition that a reader has.
            ServiceStopped: an old reader's last plan cannot be finished, or asked to stop: run it again.
            Superseded: a reader, or another change, has come in between: run it again.
        """
        env, flow = self.env, self.env.flow
        flow.check_apart()
        if not flow.stages:
            raise ConfigurationError(
                f"flow {flow.name!r} has no stages. Expected a flow with stages: without them, the group's commits hold its progress for "
                "each partition. Stop its readers, and start others with any sets"
            )
        infos = inputs.describe(flow, env.log)
        self._check_sets(infos)
        record = self._begin()
        readers = record.readers
        if readers is None or not readers.new:  # these are its readers already
            return ChangedReaders({}, {})
        plans = {name: self._finish_last_plan(partitions, name) for partitions, name in readers.old.items()}
        number = self._write_first_plans(readers, plans, infos)
        kept = {at: name for at, name in readers.sets.items() if at not in readers.old} | {**readers.new}
        after = Readers(
            readers.state_partitions,
            {at: kept[at] for at in _sorted(kept)},
            readers.changes,
            retired=tuple(dict.fromkeys([*readers.retired, *readers.old.values()])),
        )
        if self._write_record(record, after) is None:
            raise Superseded(
                f"flow {flow.name!r}: another change of its readers came in between. Run this one again"
            )
        return ChangedReaders(readers.old, readers.new, number)

    def beat(self) -> bool:
        """Move the heartbeat on of the reader whose last plan is being finished. False: a newer run has claimed it."""
        return self._service is None or self._service.beat()

    # ------------------------------------------------------------------ the record

    def _write_record(self, before: ReadersClaim, after: Readers) -> ReadersClaim | None:
        return write_record(self.env.home, self.env.flow.declared_name, before, after, self.env.new_run_id())

    def _check_sets(self, infos: Mapping[str, TopicInfo]) -> None:
        for index, partitions in enumerate(self.to):
            check_exist(self.env.flow, partitions, infos)
            for other in self.to[:index]:
                number = partitions.shared(other)
                if number is not None:
                    raise ConfigurationError(
                        f"--to {partitions} and --to {other} both have partition {number}. Expected sets without a common partition"
                    )
        if not self.to:
            raise ConfigurationError("no sets are given. Expected all sets from now on: --to 0-3 --to 4-")

    def _begin(self) -> ReadersClaim:
        """Write the change into the record, unless it is there already."""
        flow = self.env.flow
        while True:  # not bounded: each further round means that a reader has entered in between
            record = read_record(self.env.home, flow.declared_name)
            known = record.readers or Readers(flow.state_partitions)
            if known.forgotten:
                raise ReadersOverlap(
                    f"flow {flow.name!r} is being forgotten. Run sqe-chain flows forget again"
                )
            sets, target = self._sets_now(known), set(self.to)
            if not known.new and target == set(sets):
                if not known.sets or sets == known.sets:
                    return record
                after = replace(known, sets=sets)  # without sets that were entered by mistake
            else:
                missing = union_of(sets).without(union_of(self.to))
                if missing is not None:
                    raise ConfigurationError(
                        f"flow {flow.name!r}: no set has partition {missing}, which a reader has now ({known}). Expected every partition "
                        "that has been read, or its progress would be lost. Name all sets, also those that stay as they are"
                    )
                old = {at: name for at, name in sets.items() if at not in target}
                if known.new and (set(known.new), known.old) == (target - (sets.keys() - old.keys()), old):
                    return record
                # A number of its own: what an earlier change has begun and not finished is never taken for this one's.
                changes = known.changes + 1
                new = {at: scope_of(flow.declared_name, at, changes) for at in _sorted(target - sets.keys())}
                after = replace(known, sets=sets, changes=changes, old=old, new=new)
            written = self._write_record(record, after)
            if written is not None and after.new:
                return written

    def _sets_now(self, known: Readers) -> Sets:
        """The present readers; of a flow that ran as one so far: the flow itself."""
        home, name = self.env.home, self.env.flow.declared_name
        as_one, _ = home.home(name)
        if as_one is None or as_one.number < 0 or name in (*known.retired, *known.sets.values()):
            if not known.sets:
                raise ConfigurationError(
                    f"flow {name!r}: the store knows no readers of it, and it has not run as one. Expected readers to change. Start them"
                )
            return known.sets
        # A reader that was started beside it has noticed that, and has read nothing; it may have died before it left the record.
        begun = [
            reader
            for reader in known.sets.values()
            if (own := home.home(reader)[0]) is not None and own.number >= 0
        ]
        if begun:
            raise StoreInconsistent(
                f"flow {name!r} has run as one ({as_one}), and so have readers of it: {', '.join(begun)}. The store went back in time: "
                "restore it"
            )
        return {ALL: name}

    # ------------------------------------------------------------------ old and new readers

    def _finish_last_plan(self, partitions: Partitions, name: str) -> Plan | None:
        """Claim a reader, and finish its last plan; None: it has none, for it has never begun."""
        env = self.env
        if self.stopped():
            raise ReadersOverlap(
                f"flow {env.flow.name!r}: asked to stop in the middle of a change of its readers. Run the same command again"
            )
        home, _ = env.home.home(name)
        role = replace(env.role, only_recovers=True)
        own = replace(env, flow=env.flow.reader(partitions, scope=name), role=role)
        own.engine = env.engine
        if home is None or home.number < 0:
            self._fence(own, home)
            return None
        self._service = service = StagedService(own)
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
                f"flow {env.flow.name!r}: reader {name!r} has not caught up since it was rebuilt or rewound. Run it until it has, then "
                "change the readers"
            )
        return last

    def _fence(self, own: Environment, home: Home | None) -> None:
        """Make sure that a reader that was entered and has read nothing does not begin now."""
        after = Home((home.epoch if home else 0) + 1, own.new_run_id(), own.role.owner, -1, "")
        if own.home.set_home(own.flow.name, home, after) != after:
            raise Superseded(f"reader {own.flow.name!r} has started in between. Stop it, then run this again")

    def _write_first_plans(
        self, readers: Readers, plans: Mapping[str, Plan | None], infos: Mapping[str, TopicInfo]
    ) -> int:
        """Write the first plans of the new readers; returns their number."""
        env = self.env
        known = [plan for plan in plans.values() if plan is not None]
        number = max((plan.number for plan in known), default=-1) + 1
        if not known:  # no reader has read anything: the new readers begin as new ones do
            return number
        for partitions, name in readers.new.items():
            flow = env.flow.reader(partitions, scope=name)
            if env.home.home(name)[0] is not None:
                continue  # written before a crash, or by another process that does the same
            starts = self._starts(flow, known, infos)
            plan = first_plan(flow, known, number, infos, starts, env.clock.now_ms())
            after = Home(1, "", "", plan.number, plan.plan_id)
            stored = env.home.set_home(name, None, after, plan.stored())
            if stored is None or stored.number != plan.number:
                raise StoreInconsistent(
                    f"reader {name!r}: its home record is {stored}. Expected its first plan, number {number}. Restore the store"
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
    """The first plan of a reader, which continues where others have ended. Pure.

    Args:
        flow: the flow under the reader's name, with its partitions.
        known: last plans of the readers before, at least one; at most one of them has read a partition.
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
    ranges = [*plan.ranges, *(planned.ended() for _, planned in own.values())]
    taken = {tp: EventTime.of(before).times for tp, (before, _) in own.items()}
    times = {tp: known_times[tp] for tp, known_times in taken.items() if tp in known_times}
    first = replace(
        plan,
        number=number,
        layout=_layout(plan.layout, known, number, flow),
        ranges=tuple(sorted(ranges, key=lambda planned: planned.tp)),
        marks=plan.marks | {tp: before.marks[tp] for tp, (before, _) in own.items()},
    )
    frontier = _least([EventTime.of(before).frontier for before in known])
    # All readers have the same: one that begins apart follows the first revision of everything.
    revisions = Revisions.of(max(known, key=lambda before: before.number))
    return first.with_sections(EventTime(times, frontier), revisions).with_id()


def _least(frontiers: Sequence[Frontier | None]) -> Frontier | None:
    """The frontier that all readers have reached; None if one of them has none."""
    known = [frontier for frontier in frontiers if frontier is not None]
    return min(known) if known and len(known) == len(frontiers) else None


def _layout(fresh: Layout, known: Sequence[Plan], number: int, flow: CompiledFlow) -> Layout:
    """The layout of the readers before (the reader's start compares the declared one with it), with stages that begin with this plan."""
    newest = max(known, key=lambda plan: plan.number).layout
    outputs, sources, starts, gone = (
        dict(newest.outputs),
        dict(newest.sources),
        dict(fresh.starts),
        set(newest.gone),
    )
    for plan in known:
        outputs |= plan.layout.outputs
        starts |= {tp: offset for tp, offset in plan.layout.starts.items() if flow.reads_partition(tp[1])}
        gone |= set(plan.layout.gone)
    stages = {name: StageLayout(number, stage.buckets, flow.name) for name, stage in newest.stages.items()}
    return replace(
        newest, stages=stages, outputs=outputs, sources=sources, starts=starts, gone=tuple(sorted(gone))
    )


def _sorted(sets: Iterable[Partitions]) -> list[Partitions]:
    return sorted(sets, key=lambda partitions: partitions.ranges[0][0])
