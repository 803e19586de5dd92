"""Worlds on a real broker, where readers run their tasks on an engine: in this process, on workers, or on Spark.

The steps are those of worlds in memory. Some are not drawn, because a real broker does not do them at a chosen moment: records come
between two looks, and partitions are added. Republishers are not killed or paused either: Kafka would wait for them in their group.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec.structs import replace

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Engine, Ports
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Headers, Message, Range
from sqe_chain.testing import Rehearsal
from tests.lab.event_time_worlds.drawing import draw
from tests.lab.event_time_worlds.running import Clock, InMemory
from tests.lab.event_time_worlds.world import World

ENGINES: Final = ("in-process", "workers", "spark")
"""What readers may run on."""
WITHOUT: Final = frozenset({"between", "new partitions", "pause"})
"""Traits that worlds on real brokers do not have."""
_REPUBLISHERS_ENDS: Final = "PzZ"
MadeEngine = Callable[[CompiledFlow, KafkaLog, Any], Engine]


def draw_for_engines(seed: int, kinds: tuple[str, ...]) -> World:
    """The world of a seed, as far as a real broker can have it."""
    world = draw(seed, kinds=kinds, without=WITHOUT)
    return replace(world, steps=tuple(step for step in world.steps if step[0] not in _REPUBLISHERS_ENDS))


class RealLog(KafkaLog):
    """A real broker with what worlds ask one in memory for."""

    __slots__ = ()
    has_clock = True
    """Records have the times that worlds give them."""

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
    ) -> None:
        """Append one record."""
        writer = self.writer()
        writer.write([(topic, partition, key, value, headers, timestamp_ms)])
        writer.flush()
        writer.close()

    def records(self, topic: str) -> list[Message]:
        """All records of a topic, by partition and offset."""
        about = self.describe([topic])[topic]
        bounds = self.bounds([(topic, partition) for partition in range(about.partitions)])
        return [
            message
            for (_, partition), bound in bounds.items()
            for block in self.read(Range(topic, about.topic_id, partition, bound.begin, bound.stable_end))
            for message in block
        ]


class EngineService(Rehearsal):
    """A service whose tasks run on an engine; what fails is asked of the steps, not of the tasks."""

    made: MadeEngine | None = None

    def _engine(self, ports: Ports, flow: CompiledFlow) -> Engine:  # type: ignore[override]
        return (self.made or in_process)(flow, self.log, self.stores)  # type: ignore[arg-type]


def in_process(flow: CompiledFlow, log: KafkaLog, stores: Any) -> Engine:
    """The engine of this process."""
    from sqe_chain.engines.inprocess import InProcessEngine  # noqa: PLC0415 - beside the others

    return InProcessEngine(flow, log, lambda stage: stores[stage.store or ""])


class OnEngine(InMemory):
    """Readers run on an engine, republishers in this process; topics and flows have names of their own.

    Args:
        bootstrap: of the broker.
        folder: for the stores.
        made: the engine of a reader.
    """

    def __init__(self, bootstrap: str, folder: Path, made: MadeEngine) -> None:
        self.prefix = f"w{uuid.uuid4().hex[:8]}."
        self._bootstrap, self._folder, self._made = bootstrap, folder, made

    def log(self, clock: Clock) -> RealLog:
        del clock
        return RealLog(self._bootstrap)

    def service(self, flow: Flow, log: RealLog, settings: Settings, partitions: dict[str, int]) -> Rehearsal:
        store = open_store(f"sqlite://{self._folder}/{flow.name}.db")
        service = EngineService(flow, log=log, store=store, partitions=partitions, settings=settings)  # type: ignore[arg-type]
        if flow.compile().stages:
            service.made = self._made
        return service

    def end(self, log: RealLog, services: Iterable[Rehearsal]) -> None:
        for service in services:
            service.service = None
            for store in service.stores.values():
                store.close()
        log.close()


@contextmanager
def engine_named(name: str) -> Iterator[MadeEngine]:
    """How to make an engine; it ends with the context."""
    with ExitStack() as stack:
        if name == "workers":
            from sqe_chain.engines.workers import Team, WorkersEngine  # noqa: PLC0415 - only where they are asked for

            team = Team(2, "workers of worlds")
            stack.callback(team.close)
            yield lambda flow, log, stores: WorkersEngine(flow, log, stores, team)
        elif name == "spark":
            from sqe_chain.engines.spark import SparkEngine, open_session  # noqa: PLC0415 - as above

            session = open_session("local[2]", "worlds")
            stack.callback(session.stop)
            yield lambda flow, log, stores: SparkEngine(flow, log, stores, session)
        else:
            yield in_process


@contextmanager
def broker_and_engine(name: str) -> Iterator[Callable[[], OnEngine]]:
    """A broker of its own, and an engine; gives where the next world runs."""
    from sqe_chain.ext.dev import KafkaServer  # noqa: PLC0415 - only where it is asked for

    with KafkaServer(fast_boot=True) as kafka, engine_named(name) as made, TemporaryDirectory() as folder:
        yield lambda: OnEngine(kafka.bootstrap, Path(folder), made)
