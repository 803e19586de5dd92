"""The way back after a switch to a shadow: the states of before stay, with the plan that they are at.

A switch notes the flow's last plan under the name ``FLOW.before-1``, and deletes nothing of these states. To go back, that record
becomes an attempt at folding again (`attempts.py`), which has come that far already. The code of before then folds what the flow has
counted since, in silence, and one step cuts over.

The record alone proves nothing: a switch that was killed leaves it, and the flow goes on from there. So it counts only if the flow
keeps its states elsewhere, and every header is at its plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sqe_chain.errors import ConfigurationError, StoreInconsistent, Superseded
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow.nodes import StageNode
from sqe_chain.operations.attempts import Attempt, Attempts, begun_at, cells_of, find_attempt, kept_name
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Header, Home
from sqe_chain.protocol.claim import check_claim
from sqe_chain.task.states import Claim

AHEAD: Final = 1_000_000_000
"""What follows a flow numbers its plans from the flow's next number and this on: they come after all that the flow makes meanwhile."""


def keep_states(env: Environment, mine: Claim, live: Plan) -> None:
    """Note where the flow is, before it leaves its states for others.

    Args:
        env: the flow, which is claimed.
        mine: the claim.
        live: its last plan.

    Raises:
        Superseded: a newer run has claimed the flow.
    """
    name = kept_name(env.flow)
    attempts = Attempts(env, mine)
    if (older := attempts.find(name)) is not None:
        attempts.clear_undeclared(older, live.layout.stored_in().values())
    known, _ = env.home.home(name)
    check_claim(env, mine)  # after the record was read: a newer run may have noted something else
    epoch = max(mine.epoch, known.epoch + 1 if known else 0)
    _set_home(env, name, known, Home(epoch, "", "", live.number, live.plan_id), live)


def begin_back(env: Environment, mine: Claim, live: Plan) -> Attempt:
    """Make an attempt of the states of before the last switch; or go on with it. May be killed and repeated.

    Args:
        env: the flow with the code of before; it is claimed.
        mine: the claim.
        live: its last plan.

    Raises:
        ConfigurationError: there are none, or not all of them.
        Superseded: a newer run has claimed the flow.
    """
    kept = must_find_kept(env, live)
    check_claim(env, mine)
    if not kept.open:
        kept = _open(env, kept, live, _find_position(env, kept))
    if Rebuilding.of(kept.plan).attempt == kept.plan.number:  # no run has worked on it yet
        for stage, cell, header in _headers(env, kept.plan):
            _move(env, mine, kept.plan, (stage, cell), header)
    return kept


def end_way_back(env: Environment, live: Plan) -> str | None:
    """Delete the states of before the last switch; gives the name of their record. None: there are none.

    Args:
        env: the flow, and its stores.
        live: its last plan.

    Raises:
        Superseded: a process goes back just now.
    """
    kept = find_attempt(env.home, kept_name(env.flow))
    if kept is None or _is_current(kept.plan, live):
        return None
    if kept.home.run_id and not kept.open:  # closed, and about to become the flow's
        raise Superseded(
            f"flow {env.flow.name!r} goes back to these states just now, or was killed on the way. Expected it to have ended. Wait, or repeat "
            "sqe-chain shadow switch --back"
        )
    own = Claim(kept.home.epoch + 1, env.new_run_id())
    # Forgotten first: nobody is to take up states that are half deleted. The claim stays, so that nobody notes others meanwhile.
    gone = Home(own.epoch, own.run_id, "", -1, "")
    stored = env.home.set_home(kept.name, kept.home, gone, None, kept.plan.number + 1)
    if stored != gone:
        raise _superseded(kept.name, stored)
    attempts = Attempts(replace(env, flow=env.flow.renamed(kept.name)), own)
    tombstone = Header(own.epoch, own.run_id, kept.plan.number + 1, own.run_id)
    attempts.clear_layout(kept.plan.layout, tombstone)
    return kept.name


def must_find_kept(env: Environment, live: Plan) -> Attempt:
    """The states of before the last switch.

    Raises:
        ConfigurationError: there are none.
    """
    kept = find_attempt(env.home, kept_name(env.flow))
    if kept is None or _is_current(kept.plan, live):
        raise ConfigurationError(
            f"flow {env.flow.name!r} has no states of before a switch. Expected a flow that was switched to a shadow, and neither rebuilt nor "
            "moved since. Fold them again with the code of before: sqe-chain rebuild"
        )
    return kept


def _is_current(kept: Plan, live: Plan) -> bool:
    """Whether the flow keeps its states there."""
    return not {*kept.layout.stored_in().items()}.isdisjoint(live.layout.stored_in().items())


def _find_position(env: Environment, kept: Attempt) -> str:
    """The id of the plan at which all states are: the kept one; or the one before, since an empty plan changes none.

    Raises:
        ConfigurationError: they are not there, or not all of them are.
    """
    plan, position = kept.plan, ""
    for stage, cell, header in _headers(env, plan):
        known = {position} if position else {plan.plan_id, plan.previous_id if plan.empty else plan.plan_id}
        where = f"{plan.layout.stages[stage.name].flow}/{stage.name}/{cell}"
        if header is None or header.begun_id or header.plan_id not in known:
            raise ConfigurationError(
                f"{where}: is at {header}. Expected plan {plan.number}, the last one before the switch: not all states of before are there. "
                "Fold them again with the code of before: sqe-chain rebuild"
            )
        header.check_whole(where)
        position = header.plan_id
    return position


def _open(env: Environment, kept: Attempt, live: Plan, position: str) -> Attempt:
    """Begin the attempt with an empty plan, whose number lies beyond all that the flow makes meanwhile.

    Args:
        env: the flow.
        kept: the record.
        live: the flow's last plan.
        position: id of the plan at which the states are.
    """
    number = live.number + 1 + AHEAD
    plan = replace(begun_at(kept.plan, live, number), previous_id=position).with_id()
    home = Home(kept.home.epoch + 1, "", "", number, plan.plan_id)
    _set_home(env, kept.name, kept.home, home, plan)
    return Attempt(kept.name, home, plan)


def _move(
    env: Environment, mine: Claim, plan: Plan, cell: tuple[StageNode, int], header: Header | None
) -> None:
    """Put a header at the first plan of the attempt, from the plan before."""
    stage, number = cell
    stored, store = plan.layout.stages[stage.name].flow, env.store(stage)
    # Not bounded: each further round means that an older run has stamped the header in between, which changes no state.
    while header is None or header.plan_id != plan.plan_id:
        if header is None or header.plan_id != plan.previous_id:
            raise StoreInconsistent(
                f"{stored}/{stage.name}/{number}: is at {header}. Expected the plan before {plan.number}: another process works there"
            )
        check_claim(env, mine)
        after = replace(
            header,
            epoch=max(header.epoch, mine.epoch),
            run_id=mine.run_id,
            number=plan.number,
            plan_id=plan.plan_id,
        )
        header = store.write(stored, stage.name, number, header, after, ())


def _headers(env: Environment, plan: Plan) -> Iterator[tuple[StageNode, int, Header | None]]:
    for stage in env.flow.stages:
        stored = plan.layout.stages.get(stage.name)
        if stored is not None:
            cells = cells_of(plan.layout, stage.name)
            headers = env.store(stage).headers(stored.flow, stage.name, cells)
            yield from ((stage, cell, header) for cell, header in zip(cells, headers, strict=True))


def _set_home(env: Environment, name: str, before: Home | None, after: Home, plan: Plan) -> None:
    stored = env.home.set_home(name, before, after, plan.stored(), plan.number)
    if stored != after:
        raise _superseded(name, stored)


def _superseded(name: str, stored: Home | None) -> Superseded:
    return Superseded(f"{name}: another run works there: {stored}. This one changes nothing more")
