"""Compares what a shadow would publish with what its flow has published: record by record, by lane and position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqe_chain.envelope.message import Envelope, read
from sqe_chain.operations.attempts import cells_of
from sqe_chain.plans.environment import Engine, Environment
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Header, Log, Message, Output, Range, TopicPartition
from sqe_chain.task.results import Job, Portion, Report

Place = tuple[str, tuple[tuple[str, int, str, int | None], ...], bytes]
"""Topic, the way to it, position: what a reader knows a record by. The way is a lane without the name of the flow, since a shadow has
another one."""
Content = tuple[object, ...]
_NAMED: Final = 3


@dataclass(slots=True)
class OutputComparison:
    """Compares the outputs of a shadow with those of its flow, from a moment on at which both were at the same plan.

    A record that both have is compared at once. One that only one of them has is judged when both are at the same plan again. All that
    the flow has published is read by then.

    Args:
        env: the flow, and its ports.
        offsets: of each partition of its outputs: what is read next.

    Attributes:
        equal: records that both publish, with the same content.
        different: records that both publish, with another content or in another partition.
        missing: records that the flow has published, and the new code does not.
        added: records that the new code would publish, and the flow has not.
        examples: the first places where something differs.
    """

    env: Environment
    offsets: dict[TopicPartition, int]
    equal: int = 0
    different: int = 0
    missing: int = 0
    added: int = 0
    examples: list[str] = field(default_factory=list)
    _computed: dict[Place, Content] = field(default_factory=dict)
    _published: dict[Place, Content] = field(default_factory=dict)
    # Of each lane in each partition the last position: what the flow publishes again after a crash is not beyond it.
    _marks: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    @classmethod
    def from_here(cls, env: Environment, live: Plan) -> OutputComparison | None:
        """A comparison of all that the flow publishes after a plan; None: it has gone on from that plan, or has not finished it."""
        if not env.flow.outputs or not is_calm(env, live):
            return None
        infos = env.log.describe(sorted({node.topic for node in env.flow.outputs}))
        tps = [(info.name, partition) for info in infos.values() for partition in range(info.partitions)]
        offsets = {tp: bounds.stable_end for tp, bounds in env.log.bounds(tps).items()}
        return cls(env, offsets) if is_calm(env, live) else None

    @property
    def same(self) -> bool:
        """Whether nothing that was compared differs."""
        return not (self.different or self.missing or self.added)

    def compute(self, outputs: Iterable[Output]) -> None:
        """Add what the shadow has made of a batch."""
        for topic, partition, _, value, headers, _ in outputs:
            envelope = read(value, headers=headers)
            self._computed[_place(topic, envelope)] = _content(partition, envelope)

    def judge(self, live: Plan) -> bool:
        """Compare what there is; True: also what only one of them has, because both are at this plan.

        Args:
            live: the flow's plan at which the shadow is.
        """
        calm = is_calm(self.env, live)
        self._read_on()
        for place in self._computed.keys() & self._published.keys():
            computed, published = self._computed.pop(place), self._published.pop(place)
            same = computed == published
            self.equal += same
            self.different += not same
            if not same:
                self._name(place)
        if not (calm and is_calm(self.env, live)):
            return False
        self.missing += len(self._published)
        self.added += len(self._computed)
        for place in [*self._published, *self._computed]:
            self._name(place)
        self._published.clear()
        self._computed.clear()
        return True

    def text(self) -> str:
        """What was found, for people."""
        examples = f"; the first: {', '.join(self.examples)}" if self.examples else ""
        return f"outputs: {self.equal} equal, {self.different} different, {self.missing} missing in the new code, {self.added} only in it{examples}"

    def _name(self, place: Place) -> None:
        if len(self.examples) < _NAMED:
            topic, way, position = place
            self.examples.append(
                f"{topic}, by {' → '.join(f'{name}[{part}]' for name, part, *_ in way)}, position {position.hex()}"
            )

    def _read_on(self) -> None:
        """Read what the flow has published since."""
        env = self.env
        infos = env.log.describe(sorted({topic for topic, _ in self.offsets}))
        own = {f"{env.flow.declared_name}/{node.name}" for node in env.flow.outputs}
        for tp, bounds in env.log.bounds(self.offsets).items():
            topic, partition = tp
            if bounds.stable_end <= self.offsets[tp]:
                continue
            wanted = Range(topic, infos[topic].topic_id, partition, self.offsets[tp], bounds.stable_end)
            # Repeated as one: it is read in many calls.
            for message in env.retry.call("read outputs", partial(_read_all, env.ports.log, wanted)):
                envelope = read(message.value(), headers=message.headers())
                place = _place(topic, envelope)
                lane = partition, *place[:2]
                if envelope.chain.links[-1].output in own and envelope.position > self._marks.get(lane, b""):
                    self._marks[lane] = envelope.position
                    self._published[place] = _content(partition, envelope)
            self.offsets[tp] = bounds.stable_end


def _place(topic: str, envelope: Envelope) -> Place:
    links = envelope.chain.links
    way = [(link.topic, link.partition, link.output, link.shard) for link in links[:-1]]
    last = links[-1]
    own = last.topic, last.partition, last.output.rpartition("/")[2], last.shard
    return topic, (*way, own), envelope.position


def _content(partition: int, envelope: Envelope) -> Content:
    return partition, envelope.key, envelope.type, envelope.payloads, envelope.timestamp_ms


def _read_all(log: Log, wanted: Range) -> list[Message]:
    return [message for block in log.read(wanted) for message in block]


def is_calm(env: Environment, live: Plan) -> bool:
    """Whether a flow has finished this plan, and has sealed none after it: all that it will ever publish of it is there."""
    home, _ = env.home.home(env.flow.name)
    if home is None or home.plan_id != live.plan_id:
        return False
    stored = live.layout.stored_in()
    headers: list[Header | None] = []
    for stage in env.flow.stages:
        if stage.name in stored:
            headers += env.store(stage).headers(
                stored[stage.name], stage.name, cells_of(live.layout, stage.name)
            )
    return all(header is not None and header.plan_id == live.plan_id for header in headers)


@dataclass(slots=True)
class KeepingEngine:
    """An engine that keeps what its last batch would publish: a shadow publishes nothing.

    Args:
        engine: does the work.
        wanted: whether to keep it.
    """

    engine: Engine
    wanted: bool = False
    kept: list[Output] = field(default_factory=list)

    def warm_up(self) -> None:
        self.engine.warm_up()

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        report = self.engine.process(job, portions)
        self.kept = [output for block in self.engine.outputs() for output in block] if self.wanted else []
        return report

    def publish(self) -> None:
        self.engine.publish()

    def outputs(self) -> Iterator[Sequence[Output]]:
        return self.engine.outputs()

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        return self.engine.persist(level, plan_id, before)

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        return self.engine.republish(job, portions)

    def release(self) -> None:
        self.engine.release()
