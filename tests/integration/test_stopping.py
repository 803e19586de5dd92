"""Goal: a service finishes its batch, whichever of its processes gets SIGTERM. Method: signals as supervisors send them.

systemd sends it to all processes of a service (KillMode=control-group), a container's init may forward it to its
process group, a shell's `kill -- -PGID` too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import wrap
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev.process import ProcessIdentity, wait_until
from tests.support.waiting import PATIENCE_S

COMMAND = Path(sys.executable).with_name("sqe-chain")
WORDS = 40
OPTIONS = {
    "spark": ("--master", "local[2]", "--spark-conf", "spark.driver.memory=512m"),
    "workers": ("--workers", "2"),
}

# The batch waits in the middle until it may go on: signals arrive there, and have been acted on before it ends.
FLOW = """
import pathlib, time
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from sqe_chain.flow import Flow

HERE = pathlib.Path({directory!r})


def add(total, word):
    if word.value == "middle":
        (HERE / "in-the-middle").touch()
        while not (HERE / "go-on").exists():
            time.sleep(0.01)
    total.value += 1


counts = Flow("{name}", state_partitions=1)
counts.source("{name}.words", StringValue).aggregate(
    "per-word", key=lambda word: word.value, state=Int64Value, fold=add
).changes().to("{name}.totals", partitions=1)
"""


class Service:
    """A service in its own process group, in the middle of its first batch."""

    def __init__(self, directory: Path, kafka: str, engine: str) -> None:
        self.directory, self.name = directory, f"stopping-{uuid4().hex[:8]}"
        (directory / "flows.py").write_text(FLOW.format(directory=str(directory), name=self.name))
        log = KafkaLog(kafka)
        log.create_topic(f"{self.name}.words", 1)
        log.create_topic(f"{self.name}.totals", 1)
        producer = Producer({"bootstrap.servers": kafka, "acks": "all"})
        for number in range(WORDS):
            word = "middle" if number == WORDS // 2 else "word"
            producer.produce(
                f"{self.name}.words", wrap(StringValue(value=word), key=word, timestamp_ms=number), key=word
            )
        assert producer.flush(PATIENCE_S) == 0
        self._where = (
            "--kafka",
            kafka,
            "--store",
            f"sqlite:///{directory}/totals.db",
            "--engine",
            "spark" if engine == "spark" else "inprocess",
        )
        self._options = OPTIONS.get(engine, ())
        self._log = directory / "service.log"
        self.started: list[subprocess.Popen[bytes]] = []
        self.process = self.start()
        found = wait_until(
            lambda: (directory / "in-the-middle").exists() or self.process.poll() is not None, PATIENCE_S
        )
        assert found, self.text
        assert self.process.poll() is None, self.text

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as stderr:
            process = subprocess.Popen(
                [COMMAND, "run", "flows:counts", *self._where, *self._options, "--log-json", *more],
                cwd=self.directory,
                stderr=stderr,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def events(self, event: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def tree(self) -> list[ProcessIdentity]:
        """The service and all its descendants."""
        pids, found = [self.process.pid], list[ProcessIdentity]()
        while pids:
            pid = pids.pop()
            identity = ProcessIdentity.of(pid)
            if identity is not None:
                found.append(identity)
                pids += _children(pid)
        return found

    def go_on(self) -> None:
        (self.directory / "go-on").touch()

    def counted(self) -> dict[str, int]:
        shown = subprocess.run(
            [COMMAND, "state", "flows:counts", "per-word", *self._where[2:4], "--json"],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        lines = [json.loads(line) for line in shown.stdout.splitlines()]
        return {line["key"]: int(line["state"]) for line in lines}


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


ON_SPARK = pytest.param("spark", marks=pytest.mark.release)


@pytest.fixture(params=["inprocess", "workers", ON_SPARK])
def service(request: pytest.FixtureRequest, tmp_path: Path, kafka: str) -> Iterator[Service]:
    found = Service(tmp_path, kafka, request.param)
    tree = found.tree()
    yield found
    found.go_on()
    for one in tree:
        if one.alive():
            os.kill(one.pid, signal.SIGKILL)
    for process in found.started:
        process.kill()
        process.wait(PATIENCE_S)


def finished(service: Service, tree: list[ProcessIdentity], reason: str = "SIGTERM") -> None:
    """The batch is complete, and no process is left."""
    assert service.process.wait(PATIENCE_S) == 0, service.text
    assert "Traceback" not in service.text
    assert "Py4J" not in service.text
    (stopped,) = service.events("stopped")
    assert stopped["reason"] == reason
    assert [line["inputs"] for line in service.events("committed")] == [WORDS]
    assert service.counted() == {"word": WORDS - 1, "middle": 1}
    assert wait_until(lambda: not any(one.alive() for one in tree), PATIENCE_S)


def test_sigterm_to_the_whole_group_lets_the_batch_finish(service: Service) -> None:
    tree = service.tree()
    os.killpg(service.process.pid, signal.SIGTERM)
    service.go_on()
    finished(service, tree)


def test_sigterm_to_every_process_at_once_lets_the_batch_finish(service: Service) -> None:
    tree = service.tree()
    for one in reversed(tree):
        os.kill(one.pid, signal.SIGTERM)
    service.go_on()
    finished(service, tree)


def test_sigterm_to_the_parent_alone_lets_the_batch_finish(service: Service) -> None:
    tree = service.tree()
    os.kill(service.process.pid, signal.SIGTERM)
    service.go_on()
    finished(service, tree)


@pytest.mark.parametrize("service", ["workers"], indirect=True)
def test_sigterm_ends_a_standby_and_leaves_the_service_at_work(service: Service) -> None:
    tree = service.tree()
    standby = service.start()
    assert wait_until(lambda: bool(service.events("standby")) or standby.poll() is not None, PATIENCE_S)
    os.killpg(standby.pid, signal.SIGTERM)
    assert standby.wait(PATIENCE_S) == 0, service.text
    assert [line["reason"] for line in service.events("stopped")] == ["SIGTERM"]
    assert all(one.alive() for one in tree)
    service.go_on()
    assert wait_until(lambda: bool(service.events("committed")), PATIENCE_S), service.text
    os.kill(service.process.pid, signal.SIGTERM)
    assert service.process.wait(PATIENCE_S) == 0, service.text
    assert service.counted() == {"word": WORDS - 1, "middle": 1}
    assert wait_until(lambda: not any(one.alive() for one in tree), PATIENCE_S)


def test_nobody_outlives_a_service_that_is_killed(service: Service) -> None:
    tree = service.tree()
    os.kill(service.process.pid, signal.SIGKILL)
    service.go_on()
    assert service.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert wait_until(lambda: not any(one.alive() for one in tree), PATIENCE_S)


@pytest.mark.parametrize("service", ["workers"], indirect=True)
def test_workers_end_with_a_killed_service_in_the_middle_of_a_task(service: Service) -> None:
    tree = service.tree()
    assert len(tree) == 3
    os.kill(service.process.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(one.alive() for one in tree[1:]), PATIENCE_S)


@pytest.mark.parametrize("service", ["workers"], indirect=True)
def test_ctrl_c_in_a_terminal_lets_the_batch_finish(service: Service) -> None:
    tree = service.tree()
    os.killpg(service.process.pid, signal.SIGINT)
    service.go_on()
    finished(service, tree, "SIGINT")


@pytest.mark.parametrize("service", ["workers"], indirect=True)
def test_a_killed_worker_is_replaced(service: Service) -> None:
    busy = service.tree()[1:]
    os.kill(busy[0].pid, signal.SIGKILL)
    os.kill(busy[1].pid, signal.SIGKILL)
    service.go_on()
    assert wait_until(lambda: bool(service.events("committed")), PATIENCE_S), service.text
    assert len(service.events("waiting")) == 1
    tree = service.tree()
    os.kill(service.process.pid, signal.SIGTERM)
    finished(service, tree)


@pytest.mark.parametrize("service", [ON_SPARK], indirect=True)
@pytest.mark.parametrize("asked", [True, False])
def test_when_spark_is_gone_all_the_same_the_next_start_goes_on(service: Service, asked: bool) -> None:
    """The status means "start again", or success if it was asked to end with nothing left to do; one line gives the reason."""
    tree = service.tree()
    (java,) = [one for one in tree if "java" in Path(f"/proc/{one.pid}/cmdline").read_text().split("\0")[0]]
    if asked:
        service.process.send_signal(signal.SIGTERM)
    os.kill(java.pid, signal.SIGKILL)
    assert service.process.wait(PATIENCE_S) == (0 if asked else 5), service.text
    assert "Traceback" not in service.text
    assert "Py4J" not in service.text
    service.go_on()
    assert service.start("--once").wait(PATIENCE_S) == 0, service.text
    assert service.counted() == {"word": WORDS - 1, "middle": 1}
    assert wait_until(lambda: not any(one.alive() for one in tree), PATIENCE_S)
