"""Compares the states of keys drawn at random with what the records give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.replaying import Missing
from sqe_chain.ext.explain.trace import trace
from sqe_chain.flow.nodes import StageNode
from sqe_chain.protocol.environment import Environment
from sqe_chain.runtime.states import location_of

_MORE = 4
"""State partitions are read until this many times the sample has been seen."""


@dataclass(frozen=True, slots=True)
class AuditedStage:
    """What an audit of one stage found.

    Attributes:
        plan: number of the plan whose states were compared; -1: there is no key.
        different: the keys whose stored states are not what the records give.
        first: for each of these, from which record on it differs, as a sentence.
        missing: records that the topics no longer have. Then nothing was compared.
        trusted: number of the plan of the export whose states were trusted; None: none were.
    """

    stage: str
    keys: int
    plan: int
    different: tuple[bytes, ...] = ()
    first: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    trusted: int | None = None


def audited_stages(env: Environment, names: Sequence[str]) -> list[StageNode]:
    """The stages to audit: those named, or all that keep states by key.

    Raises:
        ConfigurationError: a name is that of no such stage, or there is none.
    """
    suitable = {
        stage.name: stage
        for stage in env.flow.stages
        if stage.codec is not None and stage.traits.spread == "key" and stage.stage_kind.sink is None
    }
    for name in names:
        if name not in suitable:
            raise ConfigurationError(
                f"flow {env.flow.name!r} has no stage {name!r} with states by key. Expected one of {', '.join(sorted(suitable))}"
            )
    if not suitable:
        raise ConfigurationError(
            f"flow {env.flow.name!r} has no stage with states by key. Nothing can be audited"
        )
    return [suitable[name] for name in names or sorted(suitable)]


def audit(
    env: Environment,
    stage: StageNode,
    sample: int,
    random: Random,
    *,
    since: Path | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progressed: Callable[[int, int], object] = lambda _read, _all: None,
) -> AuditedStage:
    """Compare the states of some keys, drawn at random, with what the records give. Reads topics and store; changes nothing.

    All keys are compared if there are fewer than the sample. For the other arguments see `trace`.

    Raises:
        ConfigurationError: the flow has not run, or cannot be replayed.
        ServiceStopped: a topic is not what it was.
    """
    keys = _draw(env, stage, sample, random)
    if not keys:
        return AuditedStage(stage.name, 0, -1)

    compare = partial(trace, env, stage, since=since, stopped=stopped, progressed=progressed)
    result = compare(keys, with_records=False)
    trusted = None if result.before is None else result.before.number
    audited = AuditedStage(stage.name, len(keys), result.stored.plan.number, trusted=trusted)
    if result.missing:
        return replace(audited, missing=result.missing)
    if not result.different:
        return audited
    closer = compare(result.different, with_records=True)
    first = tuple(closer.first_difference(key) for key in closer.different)
    return replace(audited, different=closer.different, first=first)


def _draw(env: Environment, stage: StageNode, sample: int, random: Random) -> list[bytes]:
    """Keys of a stage, drawn at random from state partitions drawn at random."""
    where, store = location_of(env.ports.home, env.flow.name, stage.name), env.ports.store(stage)
    cells = list(range(where.state_partitions * where.buckets))
    random.shuffle(cells)
    seen: set[bytes] = set()
    for cell in cells:
        if len(seen) >= sample * _MORE:
            break
        for row, content in store.scan(where.flow, stage.name, cell):
            seen.update(
                state.key for state in stage.stage_kind.states_in(row, content) if state.state is not None
            )
    return random.sample(sorted(seen), min(sample, len(seen)))
