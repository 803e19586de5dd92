"""A flow with two stages on a real cluster: a master and two workers in separate processes.

The user's module lies in a directory that workers neither share nor find. The test kills executors in the
middle of a batch, and between the seal of a plan and its publication. All that was cached is lost then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.message import read, wrap
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.ext.dev.process import wait_until
from sqe_chain.ports import Output, Range
from tests.support.spark_cluster import SparkMaster, SparkWorker, executor_of
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.release, pytest.mark.timeout(1500)]

MESSAGES = 6_000
KEYS = 40
LINES = 3
INPUT_PARTITIONS = 4
STATE_PARTITIONS = 5  # not the number of input partitions, so both stages come after a shuffle
SPECIAL = 1_234  # the message that keeps its worker waiting

MODULE = '''
"""A user's flow: a package with a module beside it, so that both have to be shipped."""
import os
import pathlib
import time

from google.protobuf.wrappers_pb2 import Int64Value

from shared_code import key_of, line_of
from sqe_chain.flow import Flow

SIGNS = pathlib.Path({signs!r})


def wait_once(number):
    """The first worker that meets the special message waits to be killed; the next one goes on."""
    if number.value == {special}:
        try:
            (SIGNS / "first").open("x").close()
        except FileExistsError:
            return number
        (SIGNS / "new").write_text(str(os.getpid()))
        (SIGNS / "new").rename(SIGNS / "waits")
        time.sleep(300)
    return number


def add(total, number):
    total.value += number.value
    return [Int64Value(value=number.value)]


flow = Flow({name!r}, state_partitions={parts})
second = (
    flow.source({topic!r}, Int64Value)
    .map(wait_once)
    .aggregate("keys", key=key_of, state=Int64Value, fold=add)
    .aggregate("lines", key=line_of, state=Int64Value, fold=add)
)
second.to({out!r}, partitions=2)
'''

SHARED = f"""
def key_of(number):
    return f"k{{number.value % {KEYS}}}"


def line_of(number):
    return f"l{{number.value % {LINES}}}"
"""

DRIVER = """
import pathlib
import sys
import time
import uuid

from user_flows.counting import flow
from sqe_chain.engines.spark import SparkEngine, Tuning, open_session
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.protocol.services import service_of
from sqe_chain.plans.environment import Environment, Ports
from sqe_chain.plans.events import PUBLISH
from sqe_chain.plans.settings import Settings
from sqe_chain.adapters import open_store
from sqe_chain.testing.clock import SteppingClock

bootstrap, url, master, signs = sys.argv[1:]


class Observer:
    sealed = 0

    def step(self, number, when):
        if (number, when) == (PUBLISH, "before"):
            self.sealed += 1
            if self.sealed == 2:
                (pathlib.Path(signs) / "sealed").touch()
                while (pathlib.Path(signs) / "sealed").exists():
                    time.sleep(0.05)

    def event(self, event):
        print(event.name, event.fields(), flush=True)


session = open_session(master, "cluster-test", {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
})
log, stores = KafkaLog(bootstrap), {"": open_store(url)}
engine = SparkEngine(flow, log, stores, session, tuning=Tuning(inline_bytes=0, records_per_task=500, small_records=0))
service = service_of(Environment(
    flow, Ports(log, stores), engine, Observer(), SteppingClock(), lambda: uuid.uuid4().hex,
    Settings(max_records=4000),
))
service.start()
while service.batch().worked:
    pass
service.leave()
session.stop()
"""


@pytest.fixture
def workers() -> Iterator[tuple[str, list[SparkWorker]]]:
    with SparkMaster() as master, SparkWorker(master.url) as worker, SparkWorker(master.url) as two:
        yield master.url, [worker, two]


@pytest.mark.alone
def test_two_stages_stay_exact_while_executors_are_killed(
    kafka: str, redis_url: str, workers: tuple[str, list[SparkWorker]], tmp_path: Path
) -> None:
    master, machines = workers
    unique = uuid.uuid4().hex[:8]
    name, topic, out = f"counting-{unique}", f"in-{unique}", f"out-{unique}"
    signs, home = tmp_path / "signs", tmp_path / "home"
    (home / "user_flows").mkdir(parents=True)
    signs.mkdir()
    (home / "user_flows" / "__init__.py").touch()
    text = MODULE.format(
        signs=str(signs), special=SPECIAL, name=name, parts=STATE_PARTITIONS, topic=topic, out=out
    )
    (home / "user_flows" / "counting.py").write_text(textwrap.dedent(text))
    (home / "shared_code.py").write_text(SHARED)
    (home / "driver.py").write_text(DRIVER)
    log = KafkaLog(kafka)
    log.create_topic(topic, INPUT_PARTITIONS)
    log.create_topic(out, 2)
    feed(log, topic)

    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with (tmp_path / "driver.log").open("w+") as output:
        driver = subprocess.Popen(
            [sys.executable, "driver.py", kafka, redis_url, master, str(signs)],
            cwd=home,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            # In the middle of the first batch: the executor whose worker holds the special message.
            assert wait_until((signs / "waits").exists, 240), output_of(output.name)
            victim = executor_of(int((signs / "waits").read_text()))
            assert victim in {executor.pid for worker in machines for executor in worker.executors()}
            os.kill(victim, signal.SIGKILL)
            # Between seal and publication of the second batch: all of them, with all that is cached.
            assert wait_until((signs / "sealed").exists, 240), output_of(output.name)
            victims = [executor for worker in machines for executor in worker.executors()]
            assert victims
            for executor in victims:
                os.kill(executor.pid, signal.SIGKILL)
            (signs / "sealed").unlink()
            assert driver.wait(timeout=PATIENCE_S) == 0, output_of(output.name)
        finally:
            driver.kill()
            driver.wait()

    store = open_store(redis_url)
    for stage, number in (("keys", KEYS), ("lines", LINES)):
        totals = {
            key: Int64Value.FromString(data).value
            for part in range(STATE_PARTITIONS)
            for key, data in store.scan(name, stage, part)
        }
        prefix = stage[0].encode()
        assert totals == {prefix + b"%d" % n: sum(range(n, MESSAGES, number)) for n in range(number)}
    emitted = published(log, out)
    assert sorted(emitted.values()) == list(range(MESSAGES)), "each event once, by lane and position"
    store.close()
    log.close()


def feed(log: KafkaLog, topic: str) -> None:
    writer = log.writer()
    outputs: list[Output] = []
    for number in range(MESSAGES):
        key = b"g%d" % (number % 11)
        value = wrap(Int64Value(value=number), key=key, timestamp_ms=number)
        outputs.append((topic, partition_of(key, INPUT_PARTITIONS), key, value, None, 1 + number))
    writer.write(outputs)
    writer.flush()
    writer.close()


def published(log: KafkaLog, topic: str) -> dict[tuple[int, int, bytes], int]:
    """What remains when replays are ignored: value by partition, lane and position."""
    about = log.describe([topic])[topic]
    found: dict[tuple[int, int, bytes], int] = {}
    places = [(topic, partition) for partition in range(about.partitions)]
    for (_, partition), bounds in log.bounds(places).items():
        for block in log.read(Range(topic, about.topic_id, partition, bounds.begin, bounds.stable_end)):
            for message in block:
                envelope = read(message.value(), strict=True)
                value = envelope.payload_as(Int64Value).value
                place = partition, envelope.lane, envelope.position
                assert found.setdefault(place, value) == value, "a replay says something else"
    return found


def output_of(name: str) -> str:
    return Path(name).read_text(errors="replace")[-6000:]
