"""Goal: alerts and dashboard use metrics that exist. Method: names in the files are looked up among those that services register."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from sqe_chain.runtime.metrics import Metrics

OBSERVE = Path(__file__).parents[3] / "docker" / "observe"
NAME = re.compile(r"\bsqe_chain_[a-z_]+")


def registered() -> set[str]:
    """All metrics, as Prometheus stores them."""
    registry = CollectorRegistry()
    Metrics("totals", registry)
    return {
        sample
        for metric in registry.collect()
        for sample in (
            metric.name,
            f"{metric.name}_total",
            *(f"{metric.name}_{part}" for part in ("bucket", "count", "sum")),
        )
    } | {"sqe_chain_audit_differences_total", "sqe_chain_audited_keys_total"}


def named(text: str) -> set[str]:
    return set(NAME.findall(text))


def test_alerts_use_metrics_that_exist() -> None:
    rules = yaml.safe_load((OBSERVE / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert len(rules) >= 9
    for rule in rules:
        assert named(rule["expr"]) <= registered(), rule["alert"]
        assert rule["annotations"]["description"]


def test_the_dashboard_uses_metrics_that_exist() -> None:
    board = json.loads((OBSERVE / "grafana" / "dashboards" / "sqe-chain.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) >= 12
    for expression in expressions:
        assert named(expression)
        assert named(expression) <= registered(), expression


@pytest.mark.parametrize(
    ("number", "label"),
    [*enumerate(("claim", "recover", "process", "seal", "publish", "persist", "commit"), 1)],
)
def test_each_step_is_timed_under_a_label_that_never_changes(number: int, label: str) -> None:
    registry, now = CollectorRegistry(), [100.0]
    metrics = Metrics("totals", registry, lambda: now[0]).statistics
    metrics.step(number, "before")
    now[0] = 102.5
    metrics.step(number, "after")
    labels = {"flow": "totals", "step": label}
    assert registry.get_sample_value("sqe_chain_step_seconds_sum", labels) == 2.5


@pytest.mark.release
def test_prometheus_accepts_rules_and_settings(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    settings = (OBSERVE / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "alerts.yml").write_text(
        (OBSERVE / "alerts.yml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "prometheus.yml").write_text(
        settings.replace("/etc/prometheus", str(tmp_path)), encoding="utf-8"
    )
    registry = CollectorRegistry()
    Metrics("totals", registry)
    for command, given in (
        ([promtool, "check", "config", str(tmp_path / "prometheus.yml")], b""),
        ([promtool, "check", "metrics"], generate_latest(registry)),
    ):
        checked = subprocess.run(command, input=given, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
