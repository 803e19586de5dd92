"""Republishes states: the newest state of every key, for receivers of `changes()`.

After a rebuild with other results, receivers get a new state only when its key changes again. This operation publishes all
states. It is a run of the flow, which claims and recovers first, and a plan of its own; see `sqe_chain.features.announcing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from sqe_chain.errors import ChainError, ConfigurationError, NotCaughtUp, ServiceStopped, Superseded
from sqe_chain.features.announcing import Announcer, Announcing, announcement_plan, origin_of
from sqe_chain.features.closing import Closes
from sqe_chain.features.events import Announced, AnnouncementResult
from sqe_chain.features.rebuilding import Rebuilding, silent_limits
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.functions import functions_in
from sqe_chain.flow.nodes import ChangesNode, Node, StageNode
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.stored_plans import read_plan
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.task.states import Claim

Digests = dict[str, tuple[str, ...]]


def stages_to_announce(flow: CompiledFlow, names: Sequence[str] = ()) -> list[StageNode]:
    """The stages whose states can be republished.

    Raises:
        ConfigurationError: there is no such stage, it has no `changes()`, or a function after them needs to know the input
            that changed a state.
    """
    if flow.transactional:
        raise ConfigurationError(
            f"flow {flow.name!r} is transactional: readers that know no positions would get states twice. Expected a flow without "
            "transactional=True. Declare it so, or let these readers begin again"
        )
    known = {stage.name: stage for stage in flow.stages if any(_after_changes(flow, stage))}
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        what = f"stage {unknown[0]!r}" if unknown and known else "it"
        raise ConfigurationError(
            f"flow {flow.name!r}: {what} has no changes() with an output. Expected one of: {', '.join(known) or '(none)'}. "
            "Declare changes().to(...) behind a stage, or name another stage"
        )
    stages = [stage for name, stage in known.items() if not names or name in names]
    for stage in stages:
        _check(flow, stage)
    return stages


def _check(flow: CompiledFlow, stage: StageNode) -> None:
    """Check that what a stage republishes follows from its states alone."""
    if not stage.traits.states_by_key or stage.codec is None:
        raise ConfigurationError(
            f"{stage.declared_at}: stage {stage.name!r} is of kind {stage.kind!r}, and has no states by key. Expected one state "
            "for each key, to republish it. Name the other stages with --stage"
        )
    for node in _after_changes(flow, stage):
        if any(function.takes_context for function in functions_in(node)):
            raise ConfigurationError(
                f"{node.declared_at}: {node.called} after changes() of stage {stage.name!r} takes the context. Expected a function "
                "of the state alone: the store does not know which input changed it last. Do without the context there, or name "
                "the other stages with --stage"
            )


def _after_changes(flow: CompiledFlow, stage: StageNode) -> Iterator[Node]:
    """The operators and outputs after `changes()` of a stage."""
    pending: list[Node] = [node for node in flow.children[stage.index] if isinstance(node, ChangesNode)]
    while pending:
        node = pending.pop(0)
        if not isinstance(node, ChangesNode):
            yield node
        pending += flow.children[node.index]


@dataclass(slots=True)
class Announcement:
    """Republishes the states of some stages of a flow; without names, of all with outputs after `changes()`.

    May be killed and repeated: the next run of this or of the service finishes what was sealed. States that were republished
    are not republished again before the flow has processed another batch.
    """

    env: Environment
    stages: Sequence[str] = ()
    stopped: Callable[[], bool] = lambda: False
    _service: StagedService | None = None

    def run(self) -> AnnouncementResult:
        """Claim, recover, republish. The flow's own runs are fenced off.

        Returns:
            What was published; acknowledged when this returns.

        Raises:
            ConfigurationError: see `stages_to_announce`.
            NotCaughtUp: receivers have newer states, or inputs were created again and not read since; nothing was published.
            PoisonError: user code fails on a state, or an output would not accept its result; nothing was published.
            Superseded: another run has claimed the flow.
            ServiceStopped: as `StagedService.start`, or asked to stop.
        """
        env = self.env
        stages = stages_to_announce(env.flow, self.stages)
        self._service = service = StagedService(env)
        try:
            service.start()
            last, mine = service.last, service.claimed
            if last is None or mine is None:
                raise AssertionError("start() sets both")
            check_caught_up(env.flow, last)
            result = self._announce(service, last, mine, stages)
            self._check_still_mine(mine)
        finally:
            with suppress(ChainError):  # then the next run waits until the heartbeat has stopped
                service.leave()
        env.emit(Announced(result.plan, dict(result.outputs), result.known))
        return result

    def beat(self) -> bool:
        """Move the heartbeat on. False: a newer run owns the flow. Does not wait for a store that is away."""
        return self._service is None or self._service.beat()

    def _announce(
        self, service: StagedService, last: Plan, mine: Claim, stages: Sequence[StageNode]
    ) -> AnnouncementResult:
        env, announcer = self.env, Announcer(self.env, mine)
        digests, outputs, known = Digests(), dict[str, int](), list[str]()
        if origin_of(last) is None and last.layout.gone:
            raise NotCaughtUp(
                f"flow {env.flow.name!r}: {', '.join(last.layout.gone)} was created again, and the flow has read nothing since. "
                "Expected a record to begin the chains with. Nothing was published. Run the service until it has read one, then `sqe-chain announce`"
            )
        before = self._announced_before(last)
        topics = inputs.describe(env.flow, env.log)
        for stage in stages:
            looked = []
            for part in range(env.flow.state_partitions):
                if self.stopped():
                    self._check_still_mine(mine)
                    raise ServiceStopped(f"flow {env.flow.name!r}: asked to stop. Nothing was published")
                look = partial(announcer.look, last, stage, part, topics)
                looked.append(env.retry.call(f"read the states of stage {stage.name}", look))
            stage_digests, count = tuple(digest for digest, _ in looked), sum(number for _, number in looked)
            if before.get(stage.name) == stage_digests:
                known.append(stage.name)
            elif count:
                digests[stage.name], outputs[stage.name] = stage_digests, count
        if digests:
            plan = announcement_plan(last, mine, env.clock.now_ms(), digests)
            service.owned.apply_empty(plan)
            last = plan
        return AnnouncementResult(last.number, outputs, tuple(known))

    def _announced_before(self, plan: Plan | None) -> Digests:
        """The newest digests of each stage that was republished since the last batch."""
        env, digests = self.env, Digests()
        while plan is not None and plan.empty:  # bounded by the plans kept
            digests = {**Announcing.of(plan).digests, **digests}
            plan = read_plan(env.home, env.flow.name, plan.number - 1)
        return digests

    def _check_still_mine(self, mine: Claim) -> None:
        """Check the claim again: otherwise another run may have published newer states already."""
        home, _ = self.env.home.home(self.env.flow.name)
        if home is None or (home.epoch, home.run_id) != (mine.epoch, mine.run_id):
            raise Superseded(
                f"flow {self.env.flow.name!r}: run {home.run_id if home else '(none)'} has claimed it meanwhile. Run `sqe-chain announce` again if "
                "receivers need its states"
            )


def check_caught_up(flow: CompiledFlow, last: Plan) -> None:
    """Check that receivers have no newer states than the flow.

    Raises:
        NotCaughtUp: after a rebuild or a rewind, inputs have to be read again whose outputs receivers have.
    """
    offsets, behind, closes = last.next_offsets(), Rebuilding.of(last), Closes.of(last)
    limits = silent_limits(offsets, behind.silent_until) or silent_limits(offsets, behind.published_until)
    if limits is None and behind.unfinished is None and not closes.pending and not behind.published_until:
        return
    if limits is not None:
        tp, until = next((tp, until) for tp, until in sorted(limits.items()) if until > offsets[tp])
        what = f"it has to read {tp[0]}[{tp[1]}] again up to {until}, and has read up to {offsets[tp]}"
    elif closes.pending:
        what = "it has to close its windows again where they were closed before"
    elif behind.published_until:
        what = "it has to take again what waited for event time"
    else:
        what = "it has to repeat a batch that it published in part"
    raise NotCaughtUp(
        f"flow {flow.name!r}: its states are older than those of its receivers: {what}. Nothing was published. Run the "
        "service until it has caught up, then this command again"
    )
