"""What became of one record: counted, ignored as a replay, skipped, filtered, dropped, waiting, or not read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from sqe_chain.chain import stored_epoch
from sqe_chain.envelope.carrier import find_head
from sqe_chain.envelope.head import parse_chain
from sqe_chain.errors import ConfigurationError, EnvelopeError, PoisonError
from sqe_chain.ext.explain.narrowing import Focus, lets_keys_go_alone
from sqe_chain.ext.explain.reading import Pass
from sqe_chain.ext.explain.recording import Contribution, Place, Recorder
from sqe_chain.ext.explain.replaying import Replay
from sqe_chain.ext.explain.trace import name_of, positions
from sqe_chain.features.parking import Parking
from sqe_chain.features.waiting import holder_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.nodes import FilterNode, FlatMapNode, Node
from sqe_chain.flow.stored import named_key
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.failed_logs import failed_logs
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import kept_plans, plan_of_a_run
from sqe_chain.ports import Message, Range
from sqe_chain.task.failed_log import FailedLog

Verdict = Literal[
    "counted",
    "dropped",
    "filtered",
    "skipped",
    "replay",
    "superseded",
    "newer",
    "waiting",
    "not read",
    "before start",
    "deleted",
    "absent",
    "not known",
]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a record.

    Attributes:
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
            noting = self._noting(node, node.function.function)
            return replace(node, function=DeclaredFunction(noting, node.function.takes_context))
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
    env: Environment,
    place: Place,
    *,
    reading: Pass | None = None,
) -> Fate:
    """Find out what became of a record of an input. Reads topics and store; changes nothing.

    Args:
        env: the flow and its ports.
        place: topic, partition and offset of the record.
        reading: see `trace`.

    Raises:
        ConfigurationError: the flow does not read the partition, has no stages, or has not run.
        ServiceStopped: a topic is not what it was.
    """
    flow, tp, offset = env.flow, place[:2], place[2]
    _check(flow, place)
    plan = plan_of_a_run(env.home, flow.name)
    planned = plan.ends().get(tp)
    if planned is None:
        raise ConfigurationError(
            f"flow {flow.name!r} does not read {place[0]}[{place[1]}]. Expected a partition of its inputs: "
            f"{', '.join(sorted({f'{topic}[{number}]' for topic, number in plan.ends()}))}"
        )
    bounds, search = env.log.bounds([tp])[tp], _Search(env, plan, place, reading or Pass())
    if offset >= bounds.stable_end:
        return search.fate(
            "absent", f"The partition ends at offset {bounds.stable_end}. No record is there yet."
        )
    start = plan.layout.starts.get(tp, 0)
    if offset < start:
        return search.fate("before start", f"The flow began this partition at offset {start}.")
    if offset >= planned.stop:
        return search.fate(
            "not read",
            f"The flow has read this partition up to offset {planned.stop}, in plan {plan.number}.",
        )
    if offset < bounds.begin:
        return search.fate("deleted", f"Retention has deleted all records before offset {bounds.begin}.")
    message = next(chain.from_iterable(env.ports.log.read(search.span(offset))), None)
    if message is None:
        return search.fate("absent", "No record has this offset: compaction or a transaction's end took it.")
    return search.look(message)


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


@dataclass(slots=True)
class _Search:
    """Finds out what became of a record that a flow has read."""

    env: Environment
    plan: Plan
    place: Place
    reading: Pass
    links: str = ""
    _id: bytes = b""
    _failed: Sequence[FailedLog] | None = None

    def fate(
        self,
        verdict: Verdict,
        reason: str,
        original: Place | None = None,
        contributions: tuple[Contribution, ...] = (),
    ) -> Fate:
        return Fate(self.place, verdict, reason, self.links, original, contributions)

    def span(self, begin: int) -> Range:
        """The record's partition from an offset up to the record."""
        topic, partition, offset = self.place
        return Range(topic, self._topic_id(), partition, begin, offset + 1)

    def look(self, message: Message) -> Fate:
        source = self.env.flow.source_of[self.place[0]]
        if source is not None and not source.raw:
            try:
                head = find_head(message.value(), message.headers())
                links = parse_chain(head.chain)
                self.links = str(links)
            except EnvelopeError as error:
                if message.value() is None and source.nulls != "poison":
                    return self.fate(
                        "filtered",
                        f"It has no value, and the source skips such records (nulls={source.nulls!r}).",
                    )
                return self.fate("skipped", f"It cannot be read as an envelope: {error}")
            # Before all else: the flow has dropped it before anything looked at it.
            ignored = Revisions.of(self.plan).why_ignored(links.links, head.position)
            if ignored is not None:
                return self.fate(*ignored)
        fate = self._parked() or self._in_dead_letters() or self._excluded()
        if fate is None and (original := self._original()) is not None:
            reason = f"It repeats {name_of(original)}, which was read before it."
            fate = self.fate("replay", reason, original)
        if fate is None and source is not None and not source.raw:
            fate = self._by_marks(message)
        return fate or self._doubted(self._follow())

    def _parked(self) -> Fate | None:
        """That the record is parked, or was discarded."""
        parking = Parking.of(self.plan)
        for record in parking.records:
            if (*record.tp, record.offset()) == self.place and record.at[1] == self._topic_id():
                return self.fate("waiting", f"It is parked: {record.error}: {record.text}")
        for topic, topic_id, partition, offset in parking.discarded:
            if (topic, partition, offset) == self.place and topic_id == self._topic_id().hex():
                return self.fate("skipped", "It was parked, and discarded.")
        return None

    def _excluded(self) -> Fate | None:
        """That a plan has skipped the record."""
        for kept in kept_plans(self.env.home, self.env.flow.name):
            planned = kept.ends().get(self.place[:2])
            if planned is None or planned.topic_id != self._topic_id().hex():
                break  # older plans have read another topic of this name
            for skip in kept.exclusions:
                if (skip.topic, skip.partition, skip.offset) == self.place and skip.policy != "park":
                    return self.fate(
                        "skipped", f"Plan {kept.number} skipped it ({skip.policy}): {skip.error}: {skip.text}"
                    )
        return None

    def _in_dead_letters(self) -> Fate | None:
        """That the flow has skipped the record, by its dead-letter topic, which knows what became of it since."""
        topic, partition, offset = self.place
        here = topic, self._topic_id(), partition, offset
        for known in self._failed_logs():
            for identity, letter in known.letters.items():
                dead = letter.dead
                if (dead.topic, dead.topic_id, dead.partition, dead.offset) == here:
                    status, why = known.status(identity), f"{dead.error}: {dead.text.rstrip('.')}"
                    if status == "released":
                        return self._released(f"The flow skipped it first ({why}), and ")
                    return self.fate(
                        "skipped", f"The flow skipped it: {why}. Its dead-letter record is {status}."
                    )
        return None

    def _released(self, first: str) -> Fate:
        """What became of a record that was released."""
        if not Parking.of(self.plan).disordered:  # it was folded again since, at its place
            fate = self._follow()
            return replace(fate, reason=f"{first}released it. {fate.reason}")
        if any("dropped" in stage.traits.sides for stage in self.env.flow.stages):
            return self.fate(
                "not known",
                f"{first}released it. It came late then, so a stage may have dropped it: a rebuild counts it at its place.",
            )
        return self.fate("counted", f"{first}counted it when it was released.")

    def _failed_logs(self) -> Sequence[FailedLog]:
        """What the dead-letter topic knows, read once."""
        if self._failed is None:
            self._failed = failed_logs(self.env)
        return self._failed

    def _topic_id(self) -> bytes:
        """The id of the record's topic, asked for once: it is compared with each plan and dead-letter record."""
        if not self._id:
            self._id = self.env.log.describe([self.place[0]])[self.place[0]].topic_id
        return self._id

    def _by_marks(self, message: Message) -> Fate | None:
        """What marks show of a record whose original retention may have deleted; None: nothing is deleted, or it is no replay."""
        tp, offset = self.place[:2], self.place[2]
        begin = self.env.log.bounds([tp])[tp].begin
        if begin <= self.plan.layout.starts.get(tp, 0):
            return None
        head, epoch = find_head(message.value(), message.headers()), stored_epoch(message.leader_epoch())
        for kept in kept_plans(self.env.home, self.env.flow.name):
            planned = kept.ends().get(tp)
            if planned is None or planned.stop > offset:
                continue
            if planned.stop < begin:  # what lies between has gone, too
                break
            if kept.marks[tp].has(head, offset, epoch):
                return self.fate(
                    "replay",
                    f"It repeats a record that the flow had read by plan {kept.number}. Retention has deleted it.",
                )
            return None
        return self.fate(
            "not known",
            f"Retention has deleted all records before offset {begin}, and no plan is kept from the time when the flow read this one. So it "
            "may repeat a record that is gone.",
        )

    def _doubted(self, fate: Fate) -> Fate:
        """The same, unless the flow may have skipped the record in a plan that is not kept any more."""
        if fate.verdict != "counted" or self.env.flow.poison != "skip":
            return fate
        ends = [kept.ends().get(self.place[:2]) for kept in kept_plans(self.env.home, self.env.flow.name)]
        if any(planned is not None and planned.stop <= self.place[2] for planned in ends):
            return fate  # it was read in a plan that is kept
        reason = f"The code of now counts it. Whether the flow skipped it is not known: plans of that time are not kept. {fate.reason}"
        return replace(fate, verdict="not known", reason=reason)

    def _original(self) -> Place | None:
        """The record that made this one a replay: of the same lane, before it, and at its position or beyond."""
        tp = self.place[:2]
        begin = max(self.env.log.bounds([tp])[tp].begin, self.plan.layout.starts.get(tp, 0))
        last: dict[int, tuple[bytes, Place]] = {}
        same: dict[tuple[int, bytes], Place] = {}
        self.reading.begin(self.place[2] + 1 - begin)
        for at, lane, position in positions(self.env, self.span(begin), self.reading):
            if at == self.place:
                reached = last.get(lane)
                if reached is None or position > reached[0]:
                    return None
                return same.get((lane, position), reached[1])
            if position > last.get(lane, (b"", at))[0]:
                last[lane] = position, at
            same.setdefault((lane, position), at)
        return None

    def _follow(self) -> Fate:
        """Follow the record through operators and stages."""
        operators, reached = _Operators(), Recorder(place=self.place)
        with Replay(self.env, self.plan, reached, only=self.place) as alone:
            try:
                alone.run(operators.change)
            except PoisonError as error:
                return self.fate("skipped", f"It cannot be processed: {error}")
            for exclusion in alone.exclusions:
                return self.fate("skipped", f"It cannot be processed: {exclusion.error}: {exclusion.text}")
        if not reached.contributions() and operators.silent:
            which = ", ".join(dict.fromkeys(operators.silent))
            return self.fate("filtered", f"Nothing of it passed {which}.")
        return self._in_stages(reached.contributions())

    def _in_stages(self, first: Sequence[Contribution]) -> Fate:
        """What the stages have done with the record, once it has passed the operators.

        Args:
            first: the units that the stages would get of it if no other record was there.
        """
        recorder = Recorder(place=self.place)
        # Later records change nothing about it, unless it waits for event time or a stage gives later what it makes of it.
        ends = not self.env.flow.by_time and not any(
            stage.traits.ticks or stage.traits.gives_later for stage in self.env.flow.stages
        )
        with Replay(
            self.env,
            self.plan,
            recorder,
            focus=self._focus(first),
            reading=self.reading,
            failed=self._failed_logs(),
            enough=self._has_read if ends else None,
        ) as replay:
            replay.run()
        units = tuple(recorder.contributions())
        counted = [unit for unit in units if not unit.refused]
        if counted:
            where = (f"stage {unit.stage!r} under {named_key(unit.key)}" for unit in counted)
            reason = f"Counted in {', '.join(dict.fromkeys(where))}."
            return self.fate("counted", reason, contributions=units)
        if units:
            why = ", ".join(
                dict.fromkeys(f"stage {unit.stage!r} dropped it: {unit.refused}" for unit in units)
            )
            return self.fate("dropped", f"{why[:1].upper()}{why[1:]}.", contributions=units)
        holder = holder_of(self.env.flow, self.plan)
        if not first and holder is None:
            return self.fate("filtered", "No stage takes it.")
        by = f" {holder} holds it back." if holder is not None else ""
        return self.fate("waiting", f"It waits for event time.{by}")

    def _has_read(self, plan: Plan) -> bool:
        """Whether a plan has read the record."""
        planned = plan.ends().get(self.place[:2])
        return planned is not None and planned.stop > self.place[2]

    def _focus(self, first: Sequence[Contribution]) -> Focus | None:
        """The keys of the record alone, where no stage gets units of another one. What stages pass on depends on their states."""
        flow = self.env.flow
        alone = all(
            flow.depths[stage.index] == 1 and stage.traits.states_by_key and lets_keys_go_alone(flow, stage)
            for stage in flow.stages
        )
        if not alone or flow.by_time:
            return None
        return Focus(
            {
                stage.name: frozenset(unit.key for unit in first if unit.stage == stage.name)
                for stage in flow.stages
            }
        )
