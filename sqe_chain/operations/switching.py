"""What a rebuild does in another way if it puts the states of a shadow in the place of the flow's: `operations/shadow.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqe_chain.errors import ConfigurationError, StoreInconsistent
from sqe_chain.features.closing import Closes
from sqe_chain.features.lanes import Lanes
from sqe_chain.features.parking import Parking
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.shadowing import Compared
from sqe_chain.operations.comparing import Generations, differences, gone_stages
from sqe_chain.operations.comparing_outputs import gone_outputs, is_calm
from sqe_chain.operations.following import empty_plan
from sqe_chain.operations.going_back import begin_back, must_find_kept
from sqe_chain.operations.progress import FlowProgress
from sqe_chain.operations.shadow import check_follows, check_may_follow, check_may_have_shadow, must_find
from sqe_chain.plans.environment import Environment, Refold
from sqe_chain.plans.first_stage import Begun
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import plan_of_a_run, read_plan
from sqe_chain.ports import Home
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.task.states import Claim

_GIVEN: Final = frozenset(section.name for section in (Rebuilding, Closes, Parking, Lanes, Begun, Revisions))
"""Sections that an attempt has from its beginning."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Which states take the place of the flow's.

    Attributes:
        back: those of before the last switch, whatever differs; False: those of its shadow.
        accept_differences: those of the shadow also if they differ.
    """

    back: bool = False
    accept_differences: bool = False


def check_may_switch(env: Environment, switch: Switch) -> None:
    """Check what can be seen before the flow's service is ended for a switch.

    Raises:
        ConfigurationError: there is nothing to switch to, or something differs already, and that is not accepted.
    """
    check_may_have_shadow(env.flow)
    live = plan_of_a_run(env.home, env.flow.name)
    check_may_follow(env.flow, live)
    if switch.back:
        must_find_kept(env, live)
        return
    shadow = must_find(env, live)
    check_follows(shadow.name, shadow.plan, live)
    texts = [*differences(gone_stages(env.flow, live.layout)), *_other_outputs(env, live, shadow.plan)]
    _check_accepted(env, texts, accept=switch.accept_differences)


def is_between_batches(env: Environment, home: Home) -> bool:
    """Whether the run with this home record has finished its last plan, and has sealed none after it."""
    plan = read_plan(env.home, env.flow.name, home.number)
    return plan is not None and plan.plan_id == home.plan_id and is_calm(env, plan)


def left_to_fold(
    env: Environment, progress: FlowProgress, spec: Refold, back: Claim | None = None
) -> tuple[str, Refold]:
    """The name of the flow's shadow, and what it still has to fold.

    Args:
        env: the flow, which is claimed, as the new code declares it.
        progress: how far it has come.
        spec: what an attempt would fold that begins now.
        back: the claim, to go back to the states of before the last switch; None: to the shadow.

    Raises:
        ConfigurationError: there is no shadow, or it cannot take the flow's place; the text names why.
    """
    check_may_have_shadow(env.flow)
    live = plan_of_a_run(env.home, env.flow.name)
    check_may_follow(env.flow, live)
    if progress.layout is None or progress.unfinished is not None:
        raise ConfigurationError(
            f"flow {env.flow.name!r}: its last batch is unfinished. Expected a service that has ended after one. Start the service with the "
            "code that it had, and stop it by SIGTERM; then repeat this"
        )
    shadow = begin_back(env, back, live) if back is not None else must_find(env, live)
    check_follows(shadow.name, shadow.plan, live)
    number = Rebuilding.of(shadow.plan).attempt
    if number <= progress.number:
        raise ConfigurationError(
            f"{shadow.name} begins with plan {number}, and the flow is at plan {progress.number}. Expected a shadow that the flow has not "
            "overtaken. End it with sqe-chain shadow end, and begin another"
        )
    return shadow.name, replace(spec, number=number, notes=(Compared.of(shadow.plan),))


def seal_sections(service: StagedService, spec: Refold) -> None:
    """Give a shadow what an attempt that begins now has from its first plan on: how the flow goes on from the cut-over."""
    last = service.owned.last
    # A switch that was killed after this finds again what was compared.
    plan = empty_plan(service, Compared.of(last))
    kept = {name: text for name, text in plan.sections.items() if name not in _GIVEN}
    given = replace(plan, sections={**kept, **spec.sections})
    rebuilding = replace(Rebuilding.of(given), attempt=spec.number)
    service.owned.apply_empty(given.with_sections(rebuilding).with_id(last))


def check_equal(env: Environment, home: Home, shadow: Plan, name: str, *, accept: bool) -> Plan:
    """Compare the flow's states with those that would take their place.

    Args:
        env: the flow, as the new code declares it.
        home: its home record.
        shadow: the shadow's last plan.
        name: the shadow's name.
        accept: report what differs, and go on.

    Returns:
        The flow's last plan.

    Raises:
        ConfigurationError: they differ, and that is not accepted.
    """
    live = read_plan(env.home, env.flow.name, home.number)
    if live is None:
        raise StoreInconsistent(f"the metadata store has no plan {home.number} of flow {env.flow.name!r}")
    texts = [*differences(Generations(env, live, shadow, name).compare()), *_other_outputs(env, live, shadow)]
    _check_accepted(env, texts, accept=accept)
    env.say(f"accepted: {line}" for line in texts)
    return live


def _other_outputs(env: Environment, live: Plan, shadow: Plan) -> list[str]:
    """What readers would see of other outputs, in words."""
    texts, compared = gone_outputs(env.flow, live.layout), Compared.of(shadow)
    if not compared.same:
        texts.append(f"{compared.text()}. Readers keep what the flow has published of these")
    return texts


def _check_accepted(env: Environment, texts: Sequence[str], *, accept: bool) -> None:
    if texts and not accept:
        raise ConfigurationError(
            f"flow {env.flow.name!r}: its shadow is not equal. {'. '.join(texts)}. Expected equal states and the same outputs, since readers "
            "have what was published of the states of before. See sqe-chain shadow report; to switch nevertheless, add --accept-differences"
        )
