"""Folding a flow again from its inputs, beside its states, and switching over in one step.

A second flow, of another name and with the same functions, folds everything from where the flow once began
up to a given position. It is an ordinary flow, with claim, plans and headers of its own, that publishes
and commits nothing; its plans continue the flow's numbers. When it has arrived, its last plan becomes the
flow's: one compare-and-set of the home record. What was stored before is deleted then, not earlier.

Until the flow has passed the positions where it stood before, it publishes nothing either (`Plan.quiet`):
its receivers have had it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from sqe_chain.errors import ANEW, ConfigurationError, ServiceStopped, StoreInconsistent, Superseded
from sqe_chain.flow import Flow
from sqe_chain.plan import Layout, Plan, mark_name
from sqe_chain.ports import Commit, Home, TopicInfo, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.aggregation import Aggregation
from sqe_chain.protocol.applying import Applying
from sqe_chain.protocol.claim import claim, release
from sqe_chain.protocol.surroundings import CLAIM, RECOVER, SEAL, Again, Engine, Surroundings
from sqe_chain.protocol.verifying import check_stores
from sqe_chain.states import Claim, chunk_size
from sqe_chain.topology import Node

Offsets = Mapping[TopicPartition, int]

_LOOK_BACK = 50
"""Claims ago in which an interrupted attempt is looked for."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a flow stands, by what store and Kafka still know.

    Attributes:
        number: of its last plan; -1 when it never had one.
        layout: of that plan; None when it is lost.
        ends: up to where its outputs are known to be published.
        starts: where it once began, where that was not offset 0.
    """

    number: int
    layout: Layout | None
    ends: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]


@dataclass(slots=True)
class Rebuilding:
    """Folds a flow again.

    Args:
        around: the flow and its ports; its engine is not used.
        engine: gives an engine for the second flow.
        to: where to end: offsets for some partitions, or a time in milliseconds since 1970 (the records'
            own); what is not named, and by default everything, ends where the flow stood.
        republish: publish what comes after `to` once more.
        resume: go on with an attempt that was interrupted; the code must not have changed since.
        stopped: whether to end before it is done.
    """

    around: Surroundings
    engine: Callable[[Flow], Engine]
    to: Offsets | int | None = None
    republish: bool = False
    resume: bool = False
    stopped: Callable[[], bool] = lambda: False
    claimed: Claim | None = None

    def run(self) -> Plan:
        """Do it. The flow's own runs are fenced off at once; until the switch nothing of it changes.

        Returns:
            The plan at which the flow stands then.

        Raises:
            LostOffsets: an input no longer holds what the flow once began with.
            ServiceStopped: an input was created again since, so it cannot be folded again.
            Superseded: another run has claimed the flow meanwhile.
            ConfigurationError: the flow keeps no states, or `to` lies beyond what it has read.
        """
        around = self.around
        around.flow.check()
        if not around.flow.stages():
            raise ConfigurationError(
                f"flow {around.flow.name!r} keeps no states, there is nothing to fold again; rewind moves its position"
            )
        check_stores(around)
        infos = around.patiently("look at the topics", lambda: inputs.describe(around.flow, around.log))
        with around.step(CLAIM):
            mine, home = claim(around, lambda: self._commits(infos), lost=True)
        self.claimed = mine
        try:
            standing = self._standing(home, infos)
            again = self._again(standing, infos)
            second = self._second(mine, again)
            self._fold(second, again)
            plan = self._last_plan(second, again)
            self._switch(home, mine, plan)
            if standing.layout is not None:
                self._clear(standing.layout)
        finally:
            release(around, mine)
        return plan

    def beat(self) -> bool:
        """Move the heartbeat of the flow's claim on. False: a newer run owns the flow."""
        mine = self.claimed
        return mine is None or self.around.home.beat(self.around.flow.name, mine.epoch, mine.run_id)

    # ------------------------------------------------------------------ where it stands, what to do

    def _commits(self, infos: Mapping[str, TopicInfo]) -> dict[TopicPartition, Commit]:
        around = self.around
        places = inputs.partitions_of(infos[topic] for topic in around.flow.input_topics())
        return around.patiently(
            "read the group's commits", lambda: around.log.committed(around.flow.name, places)
        )

    def _standing(self, home: Home, infos: Mapping[str, TopicInfo]) -> Standing:
        around = self.around
        commits = {
            place: (commit, meta)
            for place, commit in self._commits(infos).items()
            if "plan" in (meta := inputs.metadata_of(commit))
            and meta.get("topic_id") == infos[place[0]].topic_id.hex()
        }
        known = max((int(str(meta["plan"])) for _, meta in commits.values()), default=-1)
        last = self._plan(around.flow.name, home.number)
        number = max(home.number, known)
        if number < 0:
            raise ConfigurationError(f"flow {around.flow.name!r} has never run with this store")
        committed = {place: commit.offset for place, (commit, _) in commits.items()}
        if last is None:
            starts = {place: int(str(meta.get("start", 0))) for place, (_, meta) in commits.items()}
            return Standing(number, None, committed, {place: at for place, at in starts.items() if at})
        ids = {str(meta.get("id")) for _, meta in commits.values()}
        base = (
            last
            if last.plan_id in ids or self._begun(last)
            else self._plan(around.flow.name, last.number - 1)
        )
        if base is None:
            raise StoreInconsistent(
                f"flow {around.flow.name!r}: plan {last.number - 1} is not kept any more, so it cannot be known what "
                f"was published of the last one; {ANEW}"
            )
        names = {mark_name(*place): place for place in last.ends()}
        starts = {names[name]: at for name, at in last.layout.starts.items() if name in names}
        ends = {place: planned.stop for place, planned in base.ends().items() if place[0] in infos}
        ends |= {place: max(offset, ends.get(place, 0)) for place, offset in committed.items()}
        return Standing(number, last.layout, ends, starts)

    def _plan(self, flow: str, number: int) -> Plan | None:
        around = self.around
        data = around.patiently(f"read plan {number}", lambda: around.home.plan(flow, number))
        return None if data is None else Plan.from_bytes(data)

    def _begun(self, plan: Plan) -> bool:
        """Whether a state shows that all of a plan was published: persisting comes after it."""
        if all(planned.start == planned.stop for planned in plan.ranges):
            return True
        around = self.around
        for stage in around.flow.stages():
            stored = plan.layout.stages.get(stage.name)
            if stored is None:
                continue
            cells = range(plan.layout.state_partitions * stored.buckets)
            ask = partial(around.store(stage).headers, stored.flow, stage.name, cells)
            for header in around.patiently("read headers", ask):
                if header is not None and plan.plan_id in {header.plan_id, header.begun_id}:
                    return True
        return False

    def _again(self, standing: Standing, infos: Mapping[str, TopicInfo]) -> Again:
        flow = self.around.flow
        for topic in standing.layout.gone if standing.layout else ():
            if topic in flow.input_topics():
                raise ServiceStopped(
                    f"flow {flow.name!r}: {topic!r} was created again after something of it had been counted; that is gone, "
                    f"so the flow cannot be folded again. The only way on is to {ANEW}"
                )
        places = inputs.partitions_of(infos[topic] for topic in flow.input_topics())
        ends = {place: standing.ends.get(place, 0) for place in places}
        until = dict(ends)
        for place, offset in self._wanted(ends).items():
            if place not in ends:
                raise ConfigurationError(f"flow {flow.name!r} does not read {place[0]}[{place[1]}]")
            if offset > ends[place]:
                raise ConfigurationError(
                    f"{place[0]}[{place[1]}]: offset {offset} lies beyond {ends[place]}, up to which flow {flow.name!r} has "
                    "counted; a flow can be rewound, not moved on"
                )
            until[place] = max(offset, standing.starts.get(place, 0))
        quiet = (
            {} if self.republish else {mark_name(*place): offset for place, offset in ends.items() if offset}
        )
        return Again(standing.number + 1, standing.starts, until, quiet)

    def _wanted(self, ends: Offsets) -> Offsets:
        """The offsets asked for."""
        to, around = self.to, self.around
        if not isinstance(to, int):
            return to or {}
        found = around.patiently("look for that time", lambda: around.log.offsets_at(ends, to))
        return {place: min(offset, ends[place]) for place, offset in found.items()}

    # ------------------------------------------------------------------ the second flow

    def _second(self, mine: Claim, again: Again) -> Surroundings:
        """The surroundings of the second flow: a new one, or that of the attempt that was interrupted."""
        around = self.around
        epoch, found = mine.epoch, self._attempts(mine)
        if self.resume:
            if not found:
                raise ConfigurationError(
                    f"flow {around.flow.name!r}: there is no interrupted attempt to resume"
                )
            epoch = found[0]
        else:
            for earlier in found:
                self._clear_attempt(earlier)
        flow = around.flow.renamed(_name(around.flow, epoch))
        settings = replace(around.settings, again=again, takeover=True, accept_rollback=False)
        return replace(around, flow=flow, engine=self.engine(flow), settings=settings)

    def _attempts(self, mine: Claim) -> list[int]:
        """Epochs of attempts that have not been switched over to, the newest first."""
        around = self.around
        last = self._plan(around.flow.name, self._home().number)
        current = set(last.layout.stored_in().values()) if last else set()
        found = []
        for epoch in range(mine.epoch - 1, max(0, mine.epoch - _LOOK_BACK), -1):
            name = _name(around.flow, epoch)
            home, _ = around.patiently("look for an attempt", partial(around.home.home, name))
            if home is not None and home.number >= 0 and name not in current:
                found.append(epoch)
        return found

    def _clear_attempt(self, epoch: int) -> None:
        around, name = self.around, _name(self.around.flow, epoch)
        home, _ = around.patiently("look at an attempt", lambda: around.home.home(name))
        plan = self._plan(name, home.number) if home else None
        if plan is not None:
            self._clear(plan.layout)

    def _home(self) -> Home:
        around = self.around
        home, _ = around.patiently("read the claim", lambda: around.home.home(around.flow.name))
        if home is None:
            raise StoreInconsistent(f"flow {around.flow.name!r}: its claim is gone; start again")
        return home

    def _fold(self, second: Surroundings, again: Again) -> None:
        service = Aggregation(second)
        service.start()
        ends = service.last.ends() if service.last else {}
        for place, planned in ends.items():
            if planned.stop > again.until.get(place, 0):
                raise ConfigurationError(
                    f"{place[0]}[{place[1]}]: the interrupted attempt is at {planned.stop}, beyond {again.until.get(place, 0)}; "
                    "start without --resume"
                )
        try:
            while service.batch():
                if self.stopped():
                    raise ServiceStopped(
                        f"flow {self.around.flow.name!r}: asked to stop before all was folded; nothing has changed, "
                        "--resume goes on from here"
                    )
        finally:
            service.leave()

    def _last_plan(self, second: Surroundings, again: Again) -> Plan:
        home, _ = second.patiently("read the last plan", lambda: second.home.home(second.flow.name))
        data = home and second.patiently(
            "read the last plan", lambda: second.home.plan(second.flow.name, home.number)
        )
        if not data:
            raise StoreInconsistent(f"flow {second.flow.name!r}: its last plan is gone; start again")
        plan = Plan.from_bytes(data)
        short = [place for place, end in plan.ends().items() if end.stop < again.until.get(place, 0)]
        if short:
            raise ServiceStopped(
                f"flow {self.around.flow.name!r}: {short[0][0]}[{short[0][1]}] ends at {plan.ends()[short[0]].stop}, below "
                f"{again.until[short[0]]} where the flow stood: the log was truncated; restore it"
            )
        if plan.quiet != again.quiet:
            raise ConfigurationError(
                f"flow {self.around.flow.name!r}: the interrupted attempt was begun with other options; start without --resume"
            )
        return plan

    # ------------------------------------------------------------------ the switch

    def _switch(self, home: Home, mine: Claim, plan: Plan) -> None:
        """One step: before it the flow stands where it stood, after it at the second flow's last plan."""
        around, name = self.around, self.around.flow.name
        after = replace(home, number=plan.number, plan_id=plan.plan_id)
        drop_below = max(0, plan.number - around.settings.keep_plans + 1)
        with around.step(SEAL):
            standing = around.patiently(
                "switch over", partial(around.home.set_home, name, home, after, plan.to_bytes(), drop_below)
            )
        if standing != after:
            raise Superseded(
                f"flow {name!r}: {standing.run_id if standing else 'nobody'} has claimed it meanwhile; nothing was changed"
            )
        with around.step(RECOVER):
            Applying(around, mine).commit(plan)
        around.tell("rebuilt", plan=plan.number, stored_in=plan.layout.stored_in())

    def _clear(self, layout: Layout) -> None:
        """Delete states that nobody needs any more. Headers stay, so no older run can write there again."""
        around = self.around
        for stage in around.flow.stages():
            stored = layout.stages.get(stage.name)
            for cell in range(layout.state_partitions * stored.buckets if stored else 0):
                around.patiently("delete old states", partial(self._clear_cell, stage, layout, cell))

    def _clear_cell(self, stage: Node, layout: Layout, cell: int) -> None:
        store, flow = self.around.store(stage), layout.stages[stage.name].flow
        header = store.headers(flow, stage.name, [cell])[0]
        if header is None:
            return
        rows: list[tuple[bytes, bytes | None]] = [
            (key, None) for key, _ in store.scan(flow, stage.name, cell)
        ]
        while rows:
            size = chunk_size(store, rows)
            if store.write(flow, stage.name, cell, header, header, rows[:size]) != header:
                return  # somebody works there: not what was meant
            rows = rows[size:]


def _name(flow: Flow, epoch: int) -> str:
    return f"{flow.name}.again-{epoch}"
