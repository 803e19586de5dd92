"""Goal: the pods of the Kubernetes manifest stop, take over and answer probes as the docs promise, and count exactly.

Method: the image of the Dockerfile runs in Docker as the manifest describes its container: arguments, user, file system, rights,
secret, probes, grace period. No kubelet is there: the test sends its requests and signals.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Producer

from services.compose_chaos.daemon import NoDocker, daemon
from services.compose_chaos.docker import Docker
from sqe_chain import Flow, states
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import RedisServer
from tests.support import docs_examples
from tests.support.ports import own_port
from tests.support.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "docker" / "kubernetes" / "totals.yaml"
PASSWORD = "hush: hush/hush"  # noqa: S105 - of a server that lives as long as the test
BUILT_WITHIN_S = 1_800.0
SUPERSEDED = 4

MODULE = """
import pathlib
import time

from sqe_chain import Flow

GATE = pathlib.Path("/gate/open")


def key(screw):
    return screw["robot"]


def add(state, screw):
    if screw["waits"] and not GATE.exists():
        print("in the middle of a batch", flush=True)
        while not GATE.exists():
            time.sleep(0.01)
    state["screws"] = state.get("screws", 0) + screw["screws"]


totals = Flow("{name}", state_partitions=2)
totals.source("{name}.raw", dict, raw=True).aggregate("per-robot", key=key, state=dict, fold=add).changes().to(
    "{name}.totals", partitions=1
)
"""


@dataclass
class Pods:
    """Containers as the manifest describes them."""

    docker: Docker
    directory: Path
    kafka: str
    redis: RedisServer
    name: str = field(default_factory=lambda: f"pods-{uuid4().hex[:8]}")
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        deployment, _ = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
        self.pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]
        (self.directory / "gate").mkdir()
        self._make_secret()
        self._build()
        log = KafkaLog(self.kafka)
        log.create_topic(f"{self.name}.raw", 2)
        log.create_topic(f"{self.name}.totals", 1)

    def _make_secret(self) -> None:
        """A file as the kubelet makes it: of root and of the pod's group."""
        folder = self.directory / "secret"
        folder.mkdir()
        file = folder / "password"
        file.write_text(PASSWORD, encoding="utf-8")
        (volume,) = [volume["secret"] for volume in self.pod["volumes"] if "secret" in volume]
        os.chown(file, 0, self.pod["securityContext"]["fsGroup"])
        file.chmod(volume["defaultMode"])

    def _build(self) -> None:
        """The image of the Dockerfile, and one with a flow and the entry point of the docs from it."""
        self.docker.command([str(ROOT / "scripts" / "stand-in-images"), "python"], BUILT_WITHIN_S)
        base = ("--quiet", "--network", "host")
        self.docker.run(
            *("build", *base, "--target", "inprocess", "--tag", "sqe-chain:inprocess", "."),
            timeout_s=BUILT_WITHIN_S,
        )
        context = self.directory / "image"
        context.mkdir()
        (context / "screws.py").write_text(MODULE.format(name=self.name), encoding="utf-8")
        page = docs_examples.block_with(ROOT / "docs" / "production.md", "ENTRYPOINT").text
        entry = re.findall(r"^ENTRYPOINT .*$", page, re.MULTILINE)[0]
        lines = ["FROM sqe-chain:inprocess", "COPY screws.py /app/", entry]
        (context / "Dockerfile").write_text("\n".join(lines), encoding="utf-8")
        self.docker.run("build", "--quiet", "--tag", self.name, str(context))

    def start(self, pod: str) -> None:
        """Start a pod's container."""
        self.ports[pod] = port = own_port()
        security, of_pod = self.container["securityContext"], self.pod["securityContext"]
        options = ["--network", "host", "--user", f"{of_pod['runAsUser']}:{of_pod['fsGroup']}"]
        if self.pod["shareProcessNamespace"]:
            options.append("--init")
        if security["readOnlyRootFilesystem"]:
            options.append("--read-only")
        if not security["allowPrivilegeEscalation"]:
            options += ["--security-opt", "no-new-privileges"]
        options += [f"--cap-drop={right}" for right in security["capabilities"]["drop"]]
        options += ["--memory", self.container["resources"]["limits"]["memory"].removesuffix("i").lower()]
        places = {mount["name"]: mount["mountPath"] for mount in self.container["volumeMounts"]}
        for volume in self.pod["volumes"]:
            place = places[volume["name"]]
            options += (
                [f"--tmpfs={place}"]
                if "emptyDir" in volume
                else [f"--volume={self.directory}/secret:{place}:ro"]
            )
        for variable in self.container["env"]:
            value = variable["value"].replace("redis:6379", f"127.0.0.1:{self.redis.port}")
            options += ["--env", f"{variable['name']}={value}"]
        arguments = [text.replace("kafka:9092", self.kafka) for text in self.container["args"]]
        self.docker.run(
            *("run", "--detach", "--name", self._named(pod), f"--volume={self.directory}/gate:/gate:ro"),
            *options,
            *(self.name, *arguments, "--interval", "100ms", "--metrics-port", str(port)),
        )

    def _named(self, pod: str) -> str:
        return f"{self.name}-{pod}"

    def probe(self, pod: str, kind: str) -> tuple[int, str]:
        """What a probe of the manifest, or a path, answers; status 0: nothing answers in time."""
        path = self.container[kind]["httpGet"]["path"] if kind in self.container else kind
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[pod]}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode().strip()
        except OSError:
            return 0, ""

    def probes(self, pod: str) -> dict[str, int]:
        kinds = ("livenessProbe", "readinessProbe", "/ready")
        return {kind: self.probe(pod, kind)[0] for kind in kinds}

    def wait_until_at_work(self, pod: str) -> None:
        at_work = {"livenessProbe": 200, "readinessProbe": 200, "/ready": 200}
        eventually(lambda: self.probes(pod) == at_work, f"{pod} is at work: {self.text(pod)}")

    def wait_until_standby(self, pod: str) -> None:
        standby = {"livenessProbe": 200, "readinessProbe": 200, "/ready": 503}
        eventually(lambda: self.probes(pod) == standby, f"{pod} is a standby: {self.text(pod)}")
        assert self.probe(pod, "/ready")[1] == "standby"

    def text(self, pod: str) -> str:
        # Logs are on standard error, and Docker keeps the streams apart.
        command = ["docker", "logs", self._named(pod)]
        shown = subprocess.run(
            command, env=self.docker._environment, capture_output=True, text=True, check=False
        )
        return shown.stdout + shown.stderr

    def events(self, pod: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text(pod).splitlines() if line.startswith("{")]

    def status(self, pod: str) -> int:
        """Wait until it has ended."""
        return int(self.docker.run("wait", self._named(pod), timeout_s=PATIENCE_S))

    def stop(self, pod: str) -> subprocess.Popen[bytes]:
        """Begin what the kubelet does: SIGTERM, and SIGKILL after the grace period."""
        grace_s = str(self.pod["terminationGracePeriodSeconds"])
        command = ["docker", "stop", "--time", grace_s, self._named(pod)]
        return subprocess.Popen(command, env=self.docker._environment, stdout=subprocess.DEVNULL)

    def send(self, command: str, pod: str) -> None:
        self.docker.run(command, self._named(pod))

    def produce(self, count: int, *, waits: bool = False) -> None:
        """Append records of one screw each; with `waits`, the one in the middle waits for the gate."""
        producer = Producer({"bootstrap.servers": self.kafka, "acks": "all"})
        for number in range(count):
            value = {"robot": f"r{number % 3}", "screws": 1, "waits": waits and number == count // 2}
            producer.produce(f"{self.name}.raw", json.dumps(value).encode(), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0

    def counted(self) -> int:
        flow = Flow(self.name, state_partitions=2)
        flow.source(f"{self.name}.raw", dict, raw=True).aggregate(
            "per-robot", key=str, state=dict, fold=lambda *_: None
        )
        url = f"redis://127.0.0.1:{self.redis.port}?password_file={self.directory}/secret/password"
        with states(flow, "per-robot", url) as stored:
            return sum(state["screws"] for state in stored.to_dict().values())


@pytest.fixture
def pods(tmp_path: Path, kafka: str) -> Iterator[Pods]:
    with ExitStack() as stack:
        try:
            docker = stack.enter_context(daemon())
        except NoDocker as error:
            pytest.skip(str(error))
        redis = stack.enter_context(RedisServer(extra_args=("--requirepass", PASSWORD)))
        made = Pods(docker, tmp_path, kafka, redis)
        try:
            yield made
        finally:
            for pod in made.ports:
                made.docker.run("rm", "--force", "--volumes", made._named(pod))
            made.docker.run("image", "rm", "--force", made.name)


@pytest.mark.alone
@pytest.mark.release
@pytest.mark.timeout(2400)  # images may have to be built first
@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_pods_hand_over_and_count_exactly(pods: Pods) -> None:
    pods.start("first")
    pods.wait_until_at_work("first")
    pods.start("second")
    pods.wait_until_standby("second")

    # An update or a drain: SIGTERM in the middle of a batch.
    pods.produce(40, waits=True)
    eventually(lambda: "in the middle of a batch" in pods.text("first"), "the batch is under way")
    stopping = pods.stop("first")
    (pods.directory / "gate" / "open").touch()
    assert stopping.wait(PATIENCE_S) == 0
    assert pods.status("first") == 0, pods.text("first")
    assert [line["event"] for line in pods.events("first")][-2:] == ["committed", "stopped"], pods.text(
        "first"
    )
    pods.wait_until_at_work("second")
    eventually(lambda: pods.counted() == 40, "what came later is counted by the second one")

    # The node is lost: SIGKILL.
    pods.start("third")
    pods.wait_until_standby("third")
    pods.produce(30)
    pods.send("kill", "second")
    pods.wait_until_at_work("third")
    eventually(lambda: pods.counted() == 70, "the third one counts the rest")

    # The node hangs: no probe is answered. When it goes on, the claim is another pod's.
    pods.start("fourth")
    pods.wait_until_standby("fourth")
    pods.send("pause", "third")
    assert pods.probes("third") == {"livenessProbe": 0, "readinessProbe": 0, "/ready": 0}
    pods.wait_until_at_work("fourth")
    pods.produce(20)
    pods.send("unpause", "third")
    assert pods.status("third") == SUPERSEDED, pods.text("third")
    eventually(lambda: pods.counted() == 90, "the fourth one counts the rest")

    assert pods.stop("fourth").wait(PATIENCE_S) == 0
    assert pods.status("fourth") == 0, pods.text("fourth")
    assert pods.counted() == 90
    assert PASSWORD not in "".join(pods.text(pod) for pod in pods.ports)
