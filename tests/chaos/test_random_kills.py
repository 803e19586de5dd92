"""The example services killed at random, servers included, for a minute: the audit of the store is exact.

Kills come from outside, at any moment. Only every other life of the republisher ends behind a publication
chosen at random, for the window before its commit is short. The seed fixes the order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services import audit, simulate
from services.expected import expected
from services.reports import reports
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer, PostgresServer, RedisServer
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ports import WithSchema
from tests.support.service_processes import KILLED, ROOT, ServiceProcess
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.release, pytest.mark.timeout(1500)]

SEED = 5
DURATION_S = 60
KILLS_AT_LEAST = 3
RATE = 400
"""Reports per second from the gateways: enough that a kill finds its victim working."""


@dataclass
class Service:
    """One service over all its lives."""

    name: str
    kafka: str
    store: str
    directory: Path
    lives: list[ServiceProcess] = field(default_factory=list)
    kills_itself: bool = False

    def begin(self, publications: int = 0) -> None:
        """Start the next life; it kills itself after this many publications, if given."""
        where = ("--kafka", self.kafka, "--store", self.store, "--engine", "inprocess", "--log-json")
        arguments = ("run", f"tests.support.chaos_flows:fastening_{self.name}", *where, "--interval", "200ms")
        log = self.directory / f"{self.name}-{len(self.lives)}.log"
        environment = {"PYTHONPATH": str(ROOT)}
        self.kills_itself = publications > 0
        if self.kills_itself:
            environment["CHAOS_SIGNAL"] = f"{','.join(['published'] * publications)}:SIGKILL"
        self.lives.append(ServiceProcess((*arguments, "--create-topics", "0"), log, environment))

    @property
    def life(self) -> ServiceProcess:
        return self.lives[-1]

    def kill(self, after_s: float) -> None:
        """Kill this life some time after it first published or persisted; or wait until it kills itself."""
        if self.kills_itself:
            assert self.life.wait() == KILLED, self.life.text
            return
        assert wait_until(self.proved, PATIENCE_S), self.life.text
        time.sleep(after_s)  # the moment of the kill must be random
        self.life.kill()

    def proved(self) -> bool:
        """Whether this life has published or persisted: killing it before would prove nothing."""
        return any(line.get("outputs") or line.get("rows") for line in self.life.lines())


@pytest.fixture
def broker() -> Iterator[KafkaServer]:
    """One for each test: both have the same topics."""
    with KafkaServer(fast_boot=True) as server:
        yield server


@pytest.fixture(params=["redis", "postgres"])
def store_server(request: pytest.FixtureRequest) -> Iterator[RedisServer | PostgresServer]:
    """A server for the states, with its tables."""
    if request.param == "redis":
        yield request.getfixturevalue("redis_server")
        return
    with PostgresServer() as server:
        store = open_store(server.url)
        assert isinstance(store, WithSchema)
        store.make_schema({})
        yield server


@pytest.fixture
def services(
    broker: KafkaServer, store_server: RedisServer | PostgresServer, tmp_path: Path
) -> Iterator[dict[str, Service]]:
    made = {
        name: Service(name, broker.bootstrap, store_server.url, tmp_path) for name in ("standard", "totals")
    }
    yield made
    for service in made.values():
        for life in service.lives:
            life.close()


@pytest.mark.alone
def test_services_killed_at_random_are_exact(
    services: dict[str, Service], broker: KafkaServer, store_server: RedisServer | PostgresServer
) -> None:
    """Kills of both services, of the broker and of the store's server at random moments: nothing is missing, nothing doubled."""
    draw, kills = random.Random(SEED), Counter[str]()
    log = KafkaLog(broker.bootstrap)
    log.create_topic(simulate.TOPIC, simulate.PARTITIONS)
    log.create_topic("robot.fastenings", 4)
    for service in services.values():
        service.begin()
    deadline = time.monotonic() + DURATION_S
    with gateways(log) as produced:
        while time.monotonic() < deadline or min(kills[name] for name in services) < KILLS_AT_LEAST:
            victim = draw.choice(["standard", "standard", "totals", "totals", "totals", "broker", "store"])
            first = services["standard"]
            if victim == "totals" and first.kills_itself:  # once it is dead, the other has nothing to do
                first.kill(0)
                first.begin()
                kills["standard"] += 1
            if victim in services:
                service = services[victim]
                service.kill(draw.random())
                service.begin(draw.randint(1, 20) if victim == "standard" and not service.kills_itself else 0)
            else:
                server = broker if victim == "broker" else store_server
                server.kill()
                server.start()
            kills[victim] += 1
        for service in services.values():
            if service.kills_itself:
                service.kill(0)
                service.begin()
    finish(services, log)
    stages = audit.audit({"": store_server.url}, expected(reports(SEED, produced[0])))
    assert audit.is_exact(stages), [stage.findings[:5] for stage in stages]
    counted = [line for life in services["totals"].lives for line in life.all("committed")]
    assert sum(line["replays"] for line in counted) > 0


@contextmanager
def gateways(log: KafkaLog) -> Iterator[list[int]]:
    """Gateways report all the time; the number of reports is known only at the end."""
    leash, writer, produced = simulate.Leash(finish=False), log.writer(), list[int]()
    sent = reports(SEED, simulate.MESSAGES_AT_MOST)

    def report() -> None:
        produced.append(simulate.produce(writer, sent, leash, messages=1, rate=RATE))

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield produced
    finally:
        leash.obey(["finish"])
        thread.join(PATIENCE_S)
        writer.close()


def finish(services: dict[str, Service], log: KafkaLog) -> None:
    """Without further faults the lag goes to zero, and both services end cleanly."""
    inputs = {"standard": (simulate.TOPIC, simulate.PARTITIONS), "totals": ("robot.fastenings", 4)}
    for name, (topic, partitions) in inputs.items():
        places = [(topic, partition) for partition in range(partitions)]
        life = services[name].life

        def caught_up(name: str = name, places: list[tuple[str, int]] = places) -> bool:
            commits = log.committed(f"fastening-{name}", places)
            ends = log.bounds(places)
            return all(
                place in commits and commits[place].offset == ends[place].stable_end for place in places
            )

        assert wait_until(caught_up, PATIENCE_S), life.text
        assert life.terminate() == 0, life.text
