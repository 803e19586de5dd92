"""What became of one record: counted, ignored as a replay, skipped, filtered, dropped, waiting, or not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.head import parse_chain
from sqe_chain.errors import ConfigurationError, EnvelopeError, PoisonError
from sqe_chain.ext.explain.recording import Contribution, Place, Recorder
from sqe_chain.ext.explain.replaying import Replay, plan_reached
from sqe_chain.ext.explain.trace import name_of, positions
from sqe_chain.features.holding import holder_of
from sqe_chain.features.parking import Parking
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import FilterNode, FlatMapNode, Node
from sqe_chain.flow.stored import named_key
from sqe_chain.ports import Message, Range
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.plan import Plan, kept_plans

Verdict = Literal[
    "counted",
    "dropped",
    "filtered",
    "skipped",
    "replay",
    "waiting",
    "not read",
    "before start",
    "deleted",
    "absent",
]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a record.

    Attributes:
        place: where it is.
        verdict: in one word or two.
        reason: the details, as sentences.
        chain: the links of the record, root first; empty: it cannot be read.
        original: for a replay, the record that was counted.
        contributions: the units that stages got of it.
    """

    place: Place
    verdict: Verdict
    reason: str
    chain: str = ""
    original: Place | None = None
    contributions: tuple[Contribution, ...] = ()


@dataclass(slots=True)
class _Operators:
    """Notes which operators give nothing for a value."""

    silent: list[str] = field(default_factory=list)

    def change(self, node: Node) -> Node:
        """An operator that does the same, and is noted when it gives nothing."""
        if isinstance(node, FilterNode | FlatMapNode):
            return replace(node, function=self._noting(node, node.function))
        return node

    def _noting(self, node: FilterNode | FlatMapNode, function: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(function, "__qualname__", type(function).__qualname__)

        def noting(*args: Any) -> Any:  # noqa: ANN401 - whatever the user's function takes and gives
            given = function(*args)
            if isinstance(node, FlatMapNode):
                given = list(given)
            if not given:
                self.silent.append(f"{node.word} {name} ({node.declared_at})")
            return given

        return noting


def find_fate(
    env: Environment, place: Place, *, progressed: Callable[[int, int], object] = lambda _read, _all: None
) -> Fate:
    """Find out what became of a record of an input. Reads topics and store; changes nothing.

    Args:
        env: the flow and its ports.
        place: topic, partition and offset of the record.
        progressed: see `Replay`.

    Raises:
        ConfigurationError: the flow does not read the partition, has no stages, or has not run.
        ServiceStopped: a topic is not what it was.
    """
    flow = env.flow
    _check(flow, place)
    plan = plan_reached(env.home, flow.name)
    planned = plan.ends().get(place[:2])
    if planned is None:
        raise ConfigurationError(
            f"flow {flow.name!r} does not read {place[0]}[{place[1]}]. Expected a partition of its inputs: "
            f"{', '.join(sorted({f'{topic}[{number}]' for topic, number in plan.ends()}))}"
        )
    bounds = env.log.bounds([place[:2]])[place[:2]]
    if place[2] >= bounds.stable_end:
        return Fate(
            place, "absent", f"The partition ends at offset {bounds.stable_end}. No record is there yet."
        )
    start = plan.layout.starts.get(place[:2], 0)
    if place[2] < start:
        return Fate(place, "before start", f"The flow began this partition at offset {start}.")
    if place[2] >= planned.stop:
        return Fate(
            place,
            "not read",
            f"The flow has read this partition up to offset {planned.stop}, in plan {plan.number}.",
        )
    if place[2] < bounds.begin:
        return Fate(place, "deleted", f"Retention has deleted all records before offset {bounds.begin}.")
    message = _message(env, place)
    if message is None:
        return Fate(place, "absent", "No record has this offset: compaction or a transaction's end took it.")
    return _read_record(env, plan, place, message, progressed)


def _check(flow: CompiledFlow, place: Place) -> None:
    if not flow.stages:
        raise ConfigurationError(
            f"flow {flow.name!r} keeps no plans, for it has no stages: it publishes what it reads, replays too. Ask a flow "
            "that counts"
        )
    if place[0] not in flow.input_topics:
        raise ConfigurationError(
            f"flow {flow.name!r} does not read topic {place[0]!r}. Expected one of {', '.join(flow.input_topics)}"
        )


def _message(env: Environment, place: Place) -> Message | None:
    info = env.log.describe([place[0]])[place[0]]
    span = Range(place[0], info.topic_id, place[1], place[2], place[2] + 1)
    return next((message for block in env.ports.log.read(span) for message in block), None)


def _read_record(
    env: Environment, plan: Plan, place: Place, message: Message, progressed: Callable[[int, int], object]
) -> Fate:
    """The fate of a record that the flow has read."""
    chain, source = "", env.flow.source_of[place[0]]
    if source is not None and not source.raw:
        try:
            chain = str(parse_chain(find_head(message.value(), message.headers()).chain))
        except EnvelopeError as error:
            if message.value() is None and source.nulls != "poison":
                return Fate(
                    place,
                    "filtered",
                    f"It has no value, and the source skips such records (nulls={source.nulls!r}).",
                )
            return Fate(place, "skipped", f"It cannot be read as an envelope: {error}")
    parked = _parked(plan, place, chain)
    if parked is not None:
        return parked
    for kept in kept_plans(env.home, env.flow.name):
        for exclusion in kept.exclusions:
            if (
                exclusion.topic,
                exclusion.partition,
                exclusion.offset,
            ) == place and exclusion.policy != "park":
                return Fate(
                    place,
                    "skipped",
                    f"Plan {kept.number} skipped it ({exclusion.policy}): {exclusion.error}: {exclusion.text}",
                    chain,
                )
    original = _original(env, plan, place)
    if original is not None:
        return Fate(
            place, "replay", f"It repeats {name_of(original)}, which was read before it.", chain, original
        )
    return _follow(env, plan, place, chain, progressed)


def _parked(plan: Plan, place: Place, chain: str) -> Fate | None:
    """That a record is parked, or was discarded; None: it is not."""
    parking = Parking.of(plan)
    for record in parking.records:
        if (*record.tp, record.offset()) == place:
            return Fate(place, "waiting", f"It is parked: {record.error}: {record.text}", chain)
    for topic, _, partition, offset in parking.discarded:
        if (topic, partition, offset) == place:
            return Fate(place, "skipped", "It was parked, and discarded.", chain)
    return None


def _original(env: Environment, plan: Plan, place: Place) -> Place | None:
    """The record that made this one a replay: of the same lane, before it, and at its position or beyond."""
    info = env.log.describe([place[0]])[place[0]]
    begin = env.log.bounds([place[:2]])[place[:2]].begin
    span = Range(
        place[0], info.topic_id, place[1], max(begin, plan.layout.starts.get(place[:2], 0)), place[2] + 1
    )
    last: dict[int, tuple[bytes, Place]] = {}
    same: dict[tuple[int, bytes], Place] = {}
    for at, lane, position in positions(env, span):
        if at == place:
            reached = last.get(lane)
            if reached is None or position > reached[0]:
                return None
            return same.get((lane, position), reached[1])
        if position > last.get(lane, (b"", at))[0]:
            last[lane] = position, at
        same.setdefault((lane, position), at)
    return None


def _follow(
    env: Environment, plan: Plan, place: Place, chain: str, progressed: Callable[[int, int], object]
) -> Fate:
    """Follow a record through operators and stages."""
    operators, reached = _Operators(), Recorder(place=place)
    with Replay(env, plan, reached, only=place) as alone:
        try:
            alone.run(operators.change)
        except PoisonError as error:
            return Fate(place, "skipped", f"It cannot be processed: {error}", chain)
        for exclusion in alone.exclusions:
            why = f"{exclusion.error}: {exclusion.text}"
            return Fate(place, "skipped", f"It cannot be processed: {why}", chain)
    if not reached.contributions() and operators.silent:
        which = ", ".join(dict.fromkeys(operators.silent))
        return Fate(place, "filtered", f"Nothing of it passed {which}.", chain)
    return _fate_in_stages(env, plan, place, chain, progressed, takes=bool(reached.contributions()))


def _fate_in_stages(
    env: Environment,
    plan: Plan,
    place: Place,
    chain: str,
    progressed: Callable[[int, int], object],
    *,
    takes: bool,
) -> Fate:
    """What the stages have done with a record that passes the operators."""
    recorder = Recorder(place=place)
    with Replay(env, plan, recorder, progressed=progressed) as replay:
        replay.run()
    units = tuple(recorder.contributions())
    counted = [unit for unit in units if not unit.refused]
    if counted:
        where = ", ".join(
            dict.fromkeys(f"stage {unit.stage!r} under {named_key(unit.key)}" for unit in counted)
        )
        return Fate(place, "counted", f"Counted in {where}.", chain, contributions=units)
    if units:
        why = ", ".join(dict.fromkeys(f"stage {unit.stage!r} dropped it: {unit.refused}" for unit in units))
        return Fate(place, "dropped", f"{why[:1].upper()}{why[1:]}.", chain, contributions=units)
    holder = holder_of(env.flow, plan)
    if not takes and holder is None:
        return Fate(place, "filtered", "No stage takes it.", chain)
    by = f" {holder} holds it back." if holder is not None else ""
    return Fate(place, "waiting", f"It waits for event time.{by}", chain)
