"""Compares what a shadow would publish with what its flow has published: record by record, by lane and position."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

from sqe_chain.envelope.message import Envelope, read
from sqe_chain.features.shadowing import Compared
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.attempts import cells_of, store_of
from sqe_chain.plans.environment import Engine, Environment
from sqe_chain.plans.layout import Layout, moved_outputs
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.retrying import RetryingStore
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
        names: of the outputs that are compared; see `comparable`.
        known: what was found out until now, and where it goes on.
    """

    env: Environment
    names: Collection[str]
    known: Compared
    _offsets: dict[TopicPartition, int] = field(init=False)
    _computed: dict[Place, Content] = field(default_factory=dict)
    _published: dict[Place, Content] = field(default_factory=dict)
    # Of each lane in each partition the last position: what the flow publishes again after a crash is not beyond it.
    _marks: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read on where the outputs begin that are not judged."""
        self._offsets = dict(self.known.offsets)

    @classmethod
    def from_here(cls, env: Environment, live: Plan, known: Compared) -> OutputComparison | None:
        """A comparison of all that the flow publishes after a plan; None: it has gone on from that plan, or has not finished it.

        Args:
            env: the flow, and its ports.
            live: the plan.
            known: what was found out before.
        """
        names = comparable(env.flow, live.layout)
        if not names or not is_calm(env, live):
            return None
        infos = env.log.describe(sorted({live.layout.outputs[name][0] for name in names}))
        tps = [(info.name, partition) for info in infos.values() for partition in range(info.partitions)]
        offsets = {tp: bounds.stable_end for tp, bounds in env.log.bounds(tps).items()}
        if not is_calm(env, live):
            return None
        since, missed = (
            (known.since, known.until != live.number) if known.since >= 0 else (live.number, False)
        )
        return cls(
            env,
            names,
            replace(known, since=since, until=live.number, offsets=offsets, gaps=known.gaps + missed),
        )

    def compute(self, outputs: Iterable[Output]) -> None:
        """Add what the shadow has made of a batch."""
        for topic, partition, _, value, headers, _ in outputs:
            envelope = read(value, headers=headers)
            if envelope.chain.links[-1].output.rpartition("/")[2] in self.names:
                self._computed[_place(topic, envelope)] = _content(partition, envelope)

    def judge(self, live: Plan) -> None:
        """Compare what there is; also what only one of them has, if both are at this plan.

        Args:
            live: the flow's plan at which the shadow is.
        """
        calm = is_calm(self.env, live)
        self._read_on()
        both = self._computed.keys() & self._published.keys()
        different = [place for place in both if self._computed[place] != self._published[place]]
        for place in both:
            del self._computed[place], self._published[place]
        self._count(different, equal=len(both) - len(different), different=len(different))
        if calm and is_calm(self.env, live):
            places = [*self._published, *self._computed]
            self._count(places, missing=len(self._published), added=len(self._computed))
            self._published.clear()
            self._computed.clear()
            self.known = replace(self.known, until=live.number, offsets=dict(self._offsets))

    def _count(self, places: Iterable[Place], **more: int) -> None:
        """Add to counts, and name the first of the places where something differs."""
        named = [*self.known.examples, *map(_shown, islice(places, _NAMED))][:_NAMED]
        counts = {name: getattr(self.known, name) + count for name, count in more.items()}
        self.known = replace(self.known, examples=tuple(named), **counts)

    def _read_on(self) -> None:
        """Read what the flow has published since."""
        env = self.env
        infos = env.log.describe(sorted({topic for topic, _ in self._offsets}))
        own = {f"{env.flow.declared_name}/{name}" for name in self.names}
        for tp, bounds in env.log.bounds(self._offsets).items():
            topic, partition = tp
            if bounds.stable_end <= self._offsets[tp]:
                continue
            wanted = Range(topic, infos[topic].topic_id, partition, self._offsets[tp], bounds.stable_end)
            # Repeated as one: it is read in many calls.
            for message in env.retry.call("read outputs", partial(_read_all, env.ports.log, wanted)):
                envelope = read(message.value(), headers=message.headers())
                place = _place(topic, envelope)
                lane = partition, *place[:2]
                if envelope.chain.links[-1].output in own and envelope.position > self._marks.get(lane, b""):
                    self._marks[lane] = envelope.position
                    self._published[place] = _content(partition, envelope)
            self._offsets[tp] = bounds.stable_end


def comparable(flow: CompiledFlow, before: Layout) -> list[str]:
    """The outputs that the new code has as the flow has them, on the same lanes.

    Args:
        flow: as the new code declares it.
        before: the layout of the flow's last plan.
    """
    known = {name: place for name, place in before.outputs.items() if f"output/{name}" in before.ways}
    names = [node.name for node in flow.outputs if node.name in known]
    return [name for name in names if not moved_outputs(flow, replace(before, outputs={name: known[name]}))]


def gone_outputs(flow: CompiledFlow, before: Layout) -> list[str]:
    """The outputs that the new code no longer has, in words; a renamed one is among them. For the arguments see `comparable`."""
    # Not by `Layout.outputs` alone: names are permanent there, also those that were left long ago.
    return [
        f"output {name!r} is not in the new code: readers of {topic!r} get nothing more of it"
        for name, (topic, _) in before.outputs.items()
        if f"output/{name}" in before.ways and f"output/{name}" not in flow.paths
    ]


def incomparable(flow: CompiledFlow, before: Layout) -> list[str]:
    """The outputs that the new code begins, or has on other lanes, in words. For the arguments see `comparable`."""
    texts = [
        f"{text}: not compared, its records are on other lanes from the switch on"
        for text in moved_outputs(flow, before)
    ]
    new = [node.name for node in flow.outputs if f"output/{node.name}" not in before.ways]
    return texts + [f"output {name!r} is new: it begins with the switch" for name in new]


def _shown(place: Place) -> str:
    topic, way, position = place
    lane = " → ".join(f"{name}[{part}]" for name, part, *_ in way)
    return f"{topic}, by {lane}, position {position.hex()}"


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
            flow, cells = stored[stage.name], cells_of(live.layout, stage.name)
            headers += RetryingStore(store_of(env, stage, flow), env.retry).headers(flow, stage.name, cells)
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
