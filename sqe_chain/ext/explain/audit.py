"""Compares the states of keys drawn at random with what the records give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.explain.reading import Pass
from sqe_chain.ext.explain.replaying import Missing
from sqe_chain.ext.explain.trace import check_cells, trace
from sqe_chain.ext.explain.views import AuditedView, audit_view
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.failed_logs import failed_logs
from sqe_chain.runtime.states import location_of, states_in_row

_MORE = 4
"""State partitions are read until this many times the sample has been seen."""


@dataclass(frozen=True, slots=True)
class AuditedStage:
    """What an audit of one stage found.

    Attributes:
        plan: number of the plan whose states were compared; -1: there is no key.
        different: the keys whose stored states are not what the records give.
        first: for each of these, from which record on it differs, as a sentence.
        not_known: the keys whose stored states may be right although the records give others.
        doubts: for each of these, why, as a sentence.
        view: what was found of its view; None: it has none.
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
    not_known: tuple[bytes, ...] = ()
    doubts: tuple[str, ...] = ()
    view: AuditedView | None = None

    @property
    def equal(self) -> int:
        """How many of the keys have the states that the records give."""
        return self.keys - len(self.different) - len(self.not_known)


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
    reading: Pass | None = None,
) -> AuditedStage:
    """Compare the states of some keys, drawn at random, with what the records give. Reads topics and store; changes nothing.

    All keys are compared if there are fewer than the sample. Keys that records have and the store has not are looked for in
    the cells that were drawn. For the other arguments see `trace`.

    Raises:
        ConfigurationError: the flow has not run, or cannot be replayed.
        ServiceStopped: a topic is not what it was.
        StoreInconsistent: the store has lost a cell, or states of one.
    """
    drawn = _draw(env, stage, sample, random)
    failed = failed_logs(env)
    compare = partial(trace, env, stage, since=since, reading=reading, failed=failed)
    result = compare(drawn.sample, with_records=False, watched=drawn.lies_in)
    trusted = None if result.before is None else result.before.number
    plan, elsewhere = result.stored.plan.number, drawn.elsewhere
    view = audit_view(env, stage, sample, random)
    audited = AuditedStage(stage.name, len(drawn.sample), plan, trusted=trusted, view=view)
    if result.missing:
        return replace(audited, missing=result.missing)
    # Records have these keys, and the store has no state of them. The fold may have deleted it; a second look shows that.
    absent = sorted(result.arrived - drawn.stored)
    suspects = random.sample(absent, min(sample, len(absent)))
    audited = replace(audited, keys=len({*drawn.sample, *suspects}))
    wrong = sorted({*result.unequal, *(compare(suspects, with_records=False).unequal if suspects else ())})
    first = dict.fromkeys(elsewhere, "it is stored in a state partition in which nobody looks for it")
    if wrong:
        closer = compare(wrong, with_records=True)
        first |= {key: closer.first_difference(key) for key in closer.different}
        doubts = {key: closer.doubt(key) for key in closer.not_known if key not in first}
        audited = replace(audited, not_known=tuple(doubts), doubts=tuple(doubts.values()))
    return replace(audited, different=tuple(sorted(first)), first=tuple(first[key] for key in sorted(first)))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What was drawn of a stage.

    Attributes:
        sample: keys whose states are compared.
        stored: all keys of the cells that were read.
        elsewhere: keys that lie in another cell than their own.
        lies_in: whether a key belongs into a cell that was read.
    """

    sample: tuple[bytes, ...]
    stored: frozenset[bytes]
    elsewhere: tuple[bytes, ...]
    lies_in: Callable[[bytes], bool]


def _draw(env: Environment, stage: StageNode, sample: int, random: Random) -> _Drawn:
    """Keys of a stage, drawn at random from cells drawn at random.

    Raises:
        StoreInconsistent: the store has lost a cell, or states of one.
    """
    where, store = location_of(env.ports.home, env.flow.name, stage.name), env.ports.store(stage)
    cells = list(range(where.state_partitions * where.buckets))
    check_cells(env.ports.home, env.flow.name, stage.name, store, where, cells)
    random.shuffle(cells)
    stored, elsewhere, read = set[bytes](), set[bytes](), set[int]()

    def cell_for(key: bytes) -> int:
        return cell_of(key, where.state_partitions, where.buckets)

    for cell in cells:
        if len(stored) >= sample * _MORE:
            break
        read.add(cell)
        for row, content in store.scan(where.flow, stage.name, cell):
            for state in states_in_row(stage, env.flow.name, row, content):
                if state.state is not None:
                    (stored if cell_for(state.key) == cell else elsewhere).add(state.key)
    drawn = random.sample(sorted(stored), min(sample, len(stored)))
    return _Drawn(tuple(drawn), frozenset(stored), tuple(elsewhere), lambda key: cell_for(key) in read)
