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


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: scripts/system-packages prometheus")
    return found


def test_prometheus_accepts_rules_and_settings(promtool: str, tmp_path: Path) -> None:
    settings = (OBSERVE / "prometheus.yml").read_text(encoding="utf-8")
    shutil.copy(OBSERVE / "alerts.yml", tmp_path)
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


HEALTHY = {
    'up{job="sqe-chain", instance="totals:9400"}': "1x90",
    'sqe_chain_lag{flow="totals"}': "0x90",
    'sqe_chain_batches_total{flow="totals"}': "0+10x90",
    'sqe_chain_excluded_total{flow="totals"}': "0x90",
    'sqe_chain_filtered_total{flow="totals", stage="t", reason="duplicate"}': "0+3x90",
    'sqe_chain_epoch{flow="totals"}': "7x90",
    'sqe_chain_waits_total{flow="totals"}': "0x30 1x60",
    'sqe_chain_held{flow="totals"}': "0x90",
    'sqe_chain_audit_differences_total{flow="totals", stage="t"}': "0x90",
}
"""One value a minute, for an hour and a half, of a service that is well. It reads replays and waits for a server once."""

PLANTED = {
    "SqeChainDown": {'up{job="sqe-chain", instance="totals:9400"}': "1x80 0x10"},
    "SqeChainNoBatches": {
        'sqe_chain_lag{flow="totals"}': "5x90",
        'sqe_chain_batches_total{flow="totals"}': "0+10x60 600x30",
    },
    "SqeChainLagGrows": {'sqe_chain_lag{flow="totals"}': "0+500x90"},
    "SqeChainSkipsRecords": {'sqe_chain_excluded_total{flow="totals"}': "0x85 1x5"},
    "SqeChainDropsRecords": {'sqe_chain_filtered_total{flow="totals", stage="t", reason="late"}': "_x85 1x5"},
    "SqeChainRestarts": {'sqe_chain_epoch{flow="totals"}': "7x70 8+1x20"},
    "SqeChainServerAway": {'sqe_chain_waits_total{flow="totals"}': "0x60 0+5x30"},
    "SqeChainEventTimeHeldBack": {
        'sqe_chain_held{flow="totals"}': "0x30 4x60",
        'sqe_chain_watermark_timestamp_seconds{flow="totals", topic="in", partition="0"}': "_x30 600x60",
    },
    "SqeChainWrongState": {
        'sqe_chain_audit_differences_total{flow="totals", stage="u"}': "_x80 1x10",
    },
}
"""What is different where an alert should fire, and no other one."""

FIRST_SEEN_WITH_A_VALUE = {
    "SqeChainSkipsRecords": {'sqe_chain_excluded_total{flow="new"}': "_x85 1x5"},
}


def test_each_alert_is_planted() -> None:
    rules = yaml.safe_load((OBSERVE / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == PLANTED.keys()


@pytest.mark.parametrize(
    ("alert", "series"),
    [("", {}), *PLANTED.items(), *FIRST_SEEN_WITH_A_VALUE.items()],
)
def test_an_alert_fires_for_its_fault_alone(
    promtool: str, tmp_path: Path, alert: str, series: dict[str, str]
) -> None:
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    test = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in {**HEALTHY, **series}.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "89m",
                "exp_samples": expected,
            }
        ],
    }
    shutil.copy(OBSERVE / "alerts.yml", tmp_path)
    rules = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    tested = subprocess.run(
        [promtool, "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
