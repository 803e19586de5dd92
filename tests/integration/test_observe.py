"""Goal: Prometheus with the project's settings sees a service, its alerts fire, and the dashboard shows figures.

Method: a real Prometheus scrapes a real service and a real audit. Panels are queried as Grafana queries them.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Producer

from sqe_chain.adapters.kafka import KafkaLog
from tests.support.ports import own_port
from tests.support.waiting import PATIENCE_S, eventually

OBSERVE = Path(__file__).parents[2] / "docker" / "observe"
COMMAND = Path(sys.executable).with_name("sqe-chain")
MINUTE_MS = 60_000

FLOW = """
from sqe_chain import Flow
from sqe_chain.stages import Tumbling


def key(load):
    return load["machine"]


def add(state, load):
    state["loads"] = state.get("loads", 0) + 1


flow = Flow("{name}", state_partitions=2, poison="skip")
loads = flow.source("{name}.raw", dict, raw=True)
loads.windowed("minutes", Tumbling(60_000), key=key, state=dict, fold=add).to("{name}.minutes", partitions=1)
loads.aggregate("totals", key=key, state=dict, fold=add)
"""


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - of this machine
        return str(answer.read().decode())


def answers(url: str) -> bool:
    try:
        get(url)
    except (URLError, OSError):
        return False
    return True


class Observed:
    """A service, an audit of it, and a Prometheus that scrapes both."""

    def __init__(self, directory: Path, kafka: str, stack: ExitStack) -> None:
        self.directory, self.stack = directory, stack
        self.name, self._kafka = f"observe-{uuid4().hex[:8]}", kafka
        (directory / "flows.py").write_text(FLOW.format(name=self.name), encoding="utf-8")
        log = KafkaLog(kafka)
        log.create_topic(f"{self.name}.raw", 2)
        log.create_topic(f"{self.name}.minutes", 1)
        self.service, self.audit, self.prometheus = own_port(), own_port(), own_port()
        where = ("--kafka", kafka, "--store", f"sqlite:///{directory}/states.db")
        self.produce([(minute, b'{"machine": "m"}') for minute in range(5)])
        more = ("--engine", "inprocess", "--interval", "100ms", "--metrics-port", str(self.service))
        self.start(COMMAND, "run", "flows:flow", *where, *more)
        eventually(lambda: answers(f"http://127.0.0.1:{self.service}/ready"), "the service is ready")
        more = ("--stage", "totals", "--every", "1s", "--metrics-port", str(self.audit))
        self.start(COMMAND, "audit", "flows:flow", *where, *more)
        self.start(*self._prometheus_command())

    def start(self, *command: str | Path) -> None:
        """Start a program that ends with the test."""
        with (self.directory / "programs.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)

        def end() -> None:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)

        self.stack.callback(end)

    def _prometheus_command(self) -> list[str]:
        """The shipped settings, with addresses of this machine, and shorter intervals."""
        settings: dict[str, Any] = yaml.safe_load((OBSERVE / "prometheus.yml").read_text(encoding="utf-8"))
        shutil.copy(OBSERVE / "alerts.yml", self.directory)
        assert settings["rule_files"] == ["/etc/prometheus/alerts.yml"]
        settings["rule_files"] = [str(self.directory / "alerts.yml")]
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (job,) = settings["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in (self.service, self.audit)]}]
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        return [
            *("prometheus", f"--config.file={self.directory}/prometheus.yml"),
            *(
                f"--web.listen-address=127.0.0.1:{self.prometheus}",
                f"--storage.tsdb.path={self.directory}/tsdb",
            ),
        ]

    def produce(self, records: list[tuple[int, bytes]]) -> None:
        """Append values with these minutes as their times, to both partitions."""
        producer = Producer({"bootstrap.servers": self._kafka, "acks": "all"})
        for partition in (0, 1):
            for minute, value in records:
                at_ms = 1_700_000_000_000 + minute * MINUTE_MS
                producer.produce(f"{self.name}.raw", value, partition=partition, timestamp=at_ms)
        assert producer.flush(PATIENCE_S) == 0

    def api(self, path: str) -> Any:
        answer = json.loads(get(f"http://127.0.0.1:{self.prometheus}/api/v1/{path}"))
        assert answer["status"] == "success"
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api(f"query?query={quote(expression)}")["result"]
        return found

    def firing(self) -> set[str]:
        return {
            alert["labels"]["alertname"]
            for alert in self.api("alerts")["alerts"]
            if alert["state"] == "firing"
        }


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, kafka: str) -> Iterator[Observed]:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed: scripts/system-packages prometheus")
    with ExitStack() as stack:
        made = Observed(tmp_path_factory.mktemp("observe"), kafka, stack)
        ready = f"http://127.0.0.1:{made.prometheus}/-/ready"
        eventually(lambda: answers(ready), "Prometheus is ready")
        eventually(
            lambda: {target["health"] for target in made.api("targets")["activeTargets"]} == {"up"},
            "both are scraped",
        )
        eventually(lambda: bool(made.query("sqe_chain_audited_keys_total > 0")), "an audit was scraped")
        yield made


def panels() -> Iterator[tuple[str, str]]:
    board = json.loads((OBSERVE / "grafana" / "dashboards" / "sqe-chain.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$flow", ".*")


def test_all_rules_are_loaded_and_healthy(observed: Observed) -> None:
    shipped = yaml.safe_load((OBSERVE / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]

    def loaded() -> dict[str, str]:
        (group,) = observed.api("rules")["groups"]
        return {rule["name"]: rule["health"] for rule in group["rules"]}

    eventually(lambda: loaded() == {rule["alert"]: "ok" for rule in shipped}, "each rule was evaluated")


def test_every_metric_of_dashboard_and_alerts_is_served(observed: Observed) -> None:
    pages = [get(f"http://127.0.0.1:{port}/metrics") for port in (observed.service, observed.audit)]
    served = set[str]()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", "\n".join(pages), re.MULTILINE):
        parts = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        served |= {name + part for part in parts}
    texts = [
        (OBSERVE / "alerts.yml").read_text(encoding="utf-8"),
        *(expression for _, expression in panels()),
    ]
    assert set(re.findall(r"\bsqe_chain_[a-z_]+", "\n".join(texts))) - served == set()


@pytest.mark.parametrize(("title", "expression"), list(panels()), ids=lambda text: text[:30])
def test_a_panel_shows_figures_of_the_service(observed: Observed, title: str, expression: str) -> None:
    if "reason" in expression:  # nothing was dropped yet
        assert observed.query(expression) == []
        observed.produce([(0, b'{"machine": "m"}')])
    eventually(lambda: bool(observed.query(expression)), f"panel {title!r} has figures")


def test_a_planted_fault_fires_its_alert_alone(observed: Observed) -> None:
    assert "SqeChainSkipsRecords" not in observed.firing()
    observed.produce([(5, b"no JSON")])
    eventually(lambda: "SqeChainSkipsRecords" in observed.firing(), "the alert fires")
    late = {"SqeChainDropsRecords"}  # by the test before
    assert observed.firing() - late == {"SqeChainSkipsRecords"}
