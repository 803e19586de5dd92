"""Runs new code beside a flow: it follows the flow's plans with states of its own, publishes nothing, and may take the flow's place.

A shadow is an attempt at folding again (`rebuild.py`) which goes on while the flow does. It claims nothing of the flow. Each of its
batches ends at the offsets of a plan of the flow, so that states are compared where both have counted the same.

`Shadow` follows: it reads the flow's last plan, and folds up to there. `Rebuild` switches: it claims the flow, folds up to its last plan,
compares, closes the attempt, and cuts over.

It is closed before the cut-over: a process that still follows would else write into states that are the flow's by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sqe_chain.engines.module_sources import digests_of_modules
from sqe_chain.errors import ConfigurationError, ServiceStopped, StoreInconsistent, Superseded
from sqe_chain.features.file_inputs import check_no_files
from sqe_chain.features.parking import Parking
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.shadowing import Compared
from sqe_chain.features.sinks import check_no_sinks
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.attempts import Attempt, end_attempt, find_shadow, is_free, shadow_names
from sqe_chain.operations.comparing import ComparedStage, Generations
from sqe_chain.operations.comparing_outputs import gone_outputs, incomparable
from sqe_chain.operations.copied_states import begin_at_export, check_can_begin_at, end_interrupted
from sqe_chain.operations.following import Follower, changed_code
from sqe_chain.operations.going_back import AHEAD, end_way_back
from sqe_chain.operations.moving import read_export
from sqe_chain.operations.progress import find_progress
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Engine, Environment, Refold
from sqe_chain.plans.own_revisions import declared_revision
from sqe_chain.plans.plan import Plan, encoded_sections
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import plan_of_a_run
from sqe_chain.protocol.with_plans import StagedService

LOOK_MS = 500


@dataclass(slots=True)
class Shadow:
    """A run of new code beside a flow.

    Args:
        env: the flow as the new code declares it, and its ports; its engine is not used.
        engine: makes an engine for the shadow.
        stopped: whether to end.
        export: lines of an export of the flow, with whose states a shadow begins; None: it begins where the flow once began. One that is
            there is gone on with, if it has begun so.
    """

    env: Environment
    engine: Callable[[CompiledFlow], Engine]
    stopped: Callable[[], bool] = lambda: False
    export: Iterable[str] | None = None
    _service: StagedService | None = None
    _follower: Follower | None = None

    @property
    def outputs(self) -> Compared:
        """What was compared of outputs."""
        return Compared() if self._follower is None else self._follower.compared

    def run(self) -> str:
        """Follow the flow until asked to stop; gives the shadow's name.

        A shadow that is there is gone on with, if it was declared as it is now.

        Raises:
            ConfigurationError: the flow has never run, or has something that a shadow cannot have. Or the export is not whole, or the new
                code cannot go on from it.
            LostOffsets: an input no longer holds what the flow once began with, or what comes after the export.
            ServiceStopped: the flow was switched to the shadow, or forgotten; or an input is not what it was.
            Superseded: another process follows for this shadow now.
        """
        env = self.env
        try:
            name = self.start().env.flow.name
            while not self.stopped():
                if not self.batch():
                    env.commits.settle()
                    env.clock.wait(LOOK_MS)
            if not self.beat():
                raise Superseded(
                    f"{name}: another run has claimed this shadow: it was ended, the flow was switched to it, or another process follows for it. "
                    "This one changes nothing more"
                )
        finally:
            if self._service is not None:
                self._service.leave()
        return name

    def start(self) -> StagedService:
        """Begin a shadow, or go on with the one that is there; errors as `run`."""
        env = self.env
        check_may_have_shadow(env.flow)
        live = plan_of_a_run(env.home, env.flow.name)
        check_may_follow(env.flow, live)
        shadow = self._find_or_copy(live)
        name, spec = self._begin(live) if shadow is None else (shadow.name, _spec_to_go_on(shadow, live))
        second = second_environment(env, self.engine, name, spec)
        self._service = service = StagedService(second)
        service.start()
        check_follows(name, service.owned.last, live)
        self._follower = Follower(env, service)
        say_changed_code(env, name, self._follower.compared)
        return service

    def batch(self) -> bool:
        """Fold what the flow has counted meanwhile, or a part of that; False: the shadow is where the flow is.

        Raises:
            ServiceStopped: see `run`.
        """
        if self._follower is None:
            raise AssertionError("start() comes first")
        env = self.env
        live = plan_of_a_run(env.home, env.flow.name)
        if self._follower.service.env.flow.name in live.layout.stored_in().values():
            raise ServiceStopped(
                f"flow {env.flow.name!r} was switched to this shadow. Expected a flow beside it. Start the flow's service with the new code"
            )
        return self._follower.batch(live)

    def beat(self) -> bool:
        """Move the heartbeat of the shadow's own claim on; the flow has one of its own."""
        return self._service is None or self._service.beat()

    def _find_or_copy(self, live: Plan) -> Attempt | None:
        """The shadow that is there, or one that begins at the export; None: neither."""
        env = self.env
        states = None if self.export is None else read_export(env.flow, self.export)
        shadow = find_shadow(env.home, env.flow.name, live)
        if shadow is None:
            end_interrupted(env)
            if states is None:
                return None
            check_may_follow(env.flow, states[0])
            check_can_begin_at(env, states[0], live)
            known = Compared(code=digests_of_modules())
            begun = begin_at_export(env, self._free_name(), live.number + 1 + AHEAD, states, live, known)
            shadow = must_find(env, live)
            if shadow.name != begun.name:
                end_attempt(env, begun)
                raise Superseded(
                    f"{shadow.name}: another process has begun it meanwhile. This one changes nothing more"
                )
        if states is not None and Compared.of(shadow.plan).copied != states[0].plan_id:
            raise ConfigurationError(
                f"{shadow.name} is there, and has not begun at this export. Expected no shadow, or one that has. Go on with it without "
                "--from-export, or end it with sqe-chain shadow end"
            )
        return shadow

    def _begin(self, live: Plan) -> tuple[str, Refold]:
        env = self.env
        infos = inputs.describe(env.flow, env.log)
        commits = inputs.group_commits(env.flow, env.log, infos)
        home, _ = env.home.home(env.flow.name)
        if home is None:
            raise StoreInconsistent(f"flow {env.flow.name!r}: its home record is gone. Start again")
        progress = find_progress(env, home, infos, commits)
        number = live.number + 1 + AHEAD
        revisions = replace(Revisions.of(live), newer={})
        code = Compared(code=digests_of_modules())
        sections = encoded_sections(Rebuilding(attempt=number), progress.begun, revisions, code)
        spec = Refold(number, progress.starts, progress.starts, sections, live.layout.outputs, follows=True)
        return self._free_name(), spec

    def _free_name(self) -> str:
        name = f"{self.env.flow.name}.shadow-{len(list(shadow_names(self.env.home, self.env.flow.name))) + 1}"
        if not is_free(self.env, name):
            raise StoreInconsistent(
                f"{name}: a store has states under this name, and the metadata store does not know it. Expected neither. Remove them with "
                f"sqe-chain flows forget {name}"
            )
        return name


def compare(env: Environment) -> list[ComparedStage]:
    """Compare the states of a flow with those of its shadow. Both may be at work; reading disturbs neither.

    Args:
        env: the flow as the new code declares it, and its stores.

    Raises:
        ConfigurationError: the flow has never run, or has no shadow.
    """
    live = plan_of_a_run(env.home, env.flow.name)
    shadow = must_find(env, live)
    return Generations(env, live, shadow.plan, shadow.name).compare()


def records_behind(env: Environment) -> int:
    """How many offsets of the inputs the flow has counted and its shadow has not; arguments and errors as `compare`."""
    live = plan_of_a_run(env.home, env.flow.name)
    return must_find(env, live).records_behind(live)


@dataclass(frozen=True, slots=True)
class ComparedOutputs:
    """What is known of the outputs of a flow and its shadow.

    Attributes:
        counts: what the shadow has compared.
        gone: outputs that the new code no longer has, in words.
        others: outputs that are not compared, in words.
        left: number of the flow's plans whose outputs are still to be compared.
    """

    counts: Compared
    gone: Sequence[str]
    others: Sequence[str]
    left: int

    @property
    def same(self) -> bool:
        """Whether nothing that was compared differs, and none is gone."""
        return self.counts.same and not self.gone

    def texts(self) -> list[str]:
        """The same, for people."""
        left = f"; those of {self.left} plans are still to be compared" if self.left else ""
        copied = ["the first states were copied from an export: what was folded before it is equal by itself"]
        return [f"{self.counts.text()}{left}", *self.gone, *self.others, *copied[: bool(self.counts.copied)]]


def compare_outputs(env: Environment) -> ComparedOutputs:
    """What a flow's shadow has found out about outputs until now; arguments and errors as `compare`."""
    live = plan_of_a_run(env.home, env.flow.name)
    counts, layout = Compared.of(must_find(env, live).plan), live.layout
    others = gone_outputs(env.flow, layout), incomparable(env.flow, layout)
    return ComparedOutputs(counts, *others, counts.plans_left(live.number))


def end_shadow(env: Environment) -> str:
    """End a flow's shadow and delete its states; gives its name. A process that follows for it changes nothing from then on.

    Where there is none, states that were not copied to their end are deleted. Where there are none of these, it is the states of before the
    last switch, and with them the way back.

    May be killed and repeated. Where it was killed after the first step, the next rebuild or switch deletes what is left.

    Raises:
        ConfigurationError: the flow has never run, or has neither.
        Superseded: a process has begun to follow, to switch, or to go back, just now.
    """
    live = plan_of_a_run(env.home, env.flow.name)
    shadow = find_shadow(env.home, env.flow.name, live)
    if shadow is None and (name := end_interrupted(env) or end_way_back(env, live)):
        return name
    shadow = must_find(env, live)
    end_attempt(env, shadow)
    return shadow.name


def must_find(env: Environment, live: Plan) -> Attempt:
    """The open shadow of a flow.

    Raises:
        ConfigurationError: there is none.
    """
    shadow = find_shadow(env.home, env.flow.name, live)
    if shadow is None:
        raise ConfigurationError(
            f"flow {env.flow.name!r} has no shadow. Expected one. Begin it with sqe-chain shadow start"
        )
    return shadow


def check_may_have_shadow(flow: CompiledFlow) -> None:
    """Check that a shadow of this flow would be exact.

    Raises:
        ConfigurationError: the flow keeps no states, or has something that a shadow cannot have.
    """
    check_no_files(flow)
    check_no_sinks(flow, "to run a shadow of it")
    has = {
        "no stages, so it keeps nothing to compare": not flow.stages,
        "stages by event time: how far that has come depends on who was silent": flow.by_time,
        f"poison={flow.poison!r}: what it skips is decided while it runs": flow.poison != "stop",
        "transactional outputs": flow.transactional,
        "partitions of its own: it is one of several readers": flow.partitions is not None,
    }
    for what, wrong in has.items():
        if wrong:
            raise ConfigurationError(
                f"flow {flow.name!r} has {what}. Expected a flow that a shadow can follow. Try its new code on an export, under another "
                "name (docs/shadow.md)"
            )


def check_may_follow(flow: CompiledFlow, live: Plan) -> None:
    """Check that a flow is such that a shadow can begin beside it, and take its place.

    Raises:
        ConfigurationError: it is not: the text names why.
    """
    own, parking = Revisions.of(live).own, Parking.of(live)
    if parking.records or parking.discarded or parking.counted:
        raise ConfigurationError(
            f"flow {flow.name!r} has failed records that wait, or were decided about. Expected none beside a shadow. Rebuild it first"
        )
    if flow.outputs and declared_revision(flow) != own:
        raise ConfigurationError(
            f"flow {flow.name!r} publishes revision {own} of its outputs, and the new code declares {declared_revision(flow)}. Expected the "
            "same. What readers are to count instead begins with sqe-chain rebuild"
        )


def check_follows(name: str, shadow: Plan, live: Plan) -> None:
    """Check that a shadow counts the same inputs as its flow does now.

    Raises:
        ConfigurationError: the flow has taken up a revision since the shadow began.
    """
    if Revisions.of(shadow).known != Revisions.of(live).known:
        raise ConfigurationError(
            f"{name}: the flow follows other revisions of its inputs than this shadow. Expected the same. End the shadow with "
            "sqe-chain shadow end, and begin another"
        )


def second_environment(
    env: Environment, engine: Callable[[CompiledFlow], Engine], name: str, spec: Refold
) -> Environment:
    """Where a second flow of that name folds what the flow has folded, with the same functions."""
    flow = env.flow.renamed(name)
    return replace(env, flow=flow, engine=engine(flow), role=replace(env.role, refold=spec))


def _spec_to_go_on(shadow: Attempt, live: Plan) -> Refold:
    """What a shadow that is there goes on to fold."""
    attempt = Rebuilding.of(shadow.plan).attempt
    notes = (Compared.of(shadow.plan),)
    return Refold(attempt, shadow.plan.layout.starts, {}, {}, live.layout.outputs, follows=True, notes=notes)


def say_changed_code(env: Environment, name: str, compared: Compared) -> None:
    """Report that what a shadow has folded until now is, in part, of other code than this."""
    changed = changed_code(compared)
    if changed:
        text = (
            f"{name}: {', '.join(changed)} has changed since this shadow began, and what it has folded is of the code of then. To fold all "
            "by this code, end it with sqe-chain shadow end, and begin another"
        )
        env.say([text])
