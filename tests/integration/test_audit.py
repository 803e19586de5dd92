"""The audit against a real Redis, a real Cassandra and a real SQLite file, written by the stores of sqe-chain themselves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy

from services import audit
from services._proto.fastening_pb2 import LineTotal, RobotTotal
from services.expected import Expected, expected
from services.reports import reports
from services.stored import stored_states
from sqe_chain.adapters import open_store
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.ports import Header, Home, StateStore

STATE_PARTITIONS = 4
REPORTS = 2000
PROFILES = {EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())}
SEED = 11


@pytest.fixture(scope="module")
def truth() -> Expected:
    return expected(reports(SEED, REPORTS))


@pytest.fixture(params=["redis", "cassandra", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a store without any state of the fastening flow."""
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/states.db"
        return
    address = str(request.getfixturevalue(f"{request.param}_url"))
    if request.param == "cassandra":
        with emptied(address):
            yield address
        return
    yield address
    with redis.Redis.from_url(address) as client:
        for name in client.scan_iter(match=f"sqe:{{{audit.FLOW}/*"):
            client.delete(name)


@contextmanager
def emptied(address: str) -> Iterator[None]:
    """Delete afterwards what this module's tests have written."""
    yield
    parts = urlsplit(address)
    with Cluster(
        [parts.hostname], port=parts.port, protocol_version=5, execution_profiles=PROFILES
    ) as cluster:
        session = cluster.connect(parts.path.strip("/"))
        for stage in ("per-robot", "per-robot-2", "per-line"):
            for part in range(STATE_PARTITIONS):
                delete = "DELETE FROM sqe_states WHERE flow = %s AND stage = %s AND part = %s"
                session.execute(delete, (audit.FLOW, stage, part))


def states(truth: Expected) -> dict[str, dict[bytes, bytes]]:
    """Stage -> key -> state, all correct."""
    robots = {
        key: RobotTotal(
            robot=key,
            line=total.line,
            events=total.events,
            fastened=total.fastened,
            failed=total.failed,
            torque_mnm=total.torque_mnm,
            last_report=total.last_report,
        )
        for key, total in truth.robots.items()
    }
    lines = {
        key: LineTotal(
            line=key,
            robots=total.robots,
            events=total.events,
            fastened=total.fastened,
            failed=total.failed,
            torque_mnm=total.torque_mnm,
        )
        for key, total in truth.lines.items()
    }
    named: dict[str, dict[str, Any]] = {"per-robot": robots, "per-line": lines}
    return {
        stage: {key.encode(): state.SerializeToString() for key, state in rows.items()}
        for stage, rows in named.items()
    }


def write(store: StateStore, stages: dict[str, dict[bytes, bytes]], flow: str = audit.FLOW) -> None:
    """Write states as a service would: a state partition at a time, with a header."""
    for stage, rows in stages.items():
        for part in range(STATE_PARTITIONS):
            mine = sorted(
                (key, state) for key, state in rows.items() if partition_of(key, STATE_PARTITIONS) == part
            )
            header = Header(1, "run", 0, uuid.uuid4().hex)
            assert store.write(flow, stage, part, None, header, mine) == header
    store.close()


def run_audit(url: str) -> int:
    return audit.main(["--store", url, "--seed", str(SEED), "--messages", str(REPORTS)])


def test_a_right_store_is_exact(url: str, truth: Expected, capsys: pytest.CaptureFixture[str]) -> None:
    write(open_store(url), states(truth))

    assert run_audit(url) == 0
    printed = capsys.readouterr().out
    assert "per-robot" in printed
    assert "findings" not in printed


def test_states_that_were_folded_again_are_found_under_their_new_name(url: str, truth: Expected) -> None:
    store = open_store(url)
    write(store, {"per-robot": {}, "per-line": {}})
    again = f"{audit.FLOW}.again-{uuid.uuid4().hex[:8]}"
    write(store, states(truth), again)
    stages = {name: {"flow": again} for name in ("per-robot", "per-line")}
    home, _ = store.home(audit.FLOW)
    number = home.number + 1 if home else 0
    plan = json.dumps({"layout": {"stages": stages}}).encode()
    after = Home(1, "run", "", number, "p")
    assert store.set_home(audit.FLOW, home, after, plan) == after
    try:
        assert audit.is_exact(audit.audit({"": url}, truth))
    finally:  # later tests use the old name again
        plan = json.dumps({"layout": {"stages": {}}}).encode()
        store.set_home(audit.FLOW, after, Home(1, "run", "", number + 1, "p"), plan)
        store.close()


def test_every_wrong_key_is_found(url: str, truth: Expected, capsys: pytest.CaptureFixture[str]) -> None:
    stages = states(truth)
    robots, lines = stages["per-robot"], stages["per-line"]
    del robots[b"robot-0003"]
    robots[b"robot-9999"] = robots[b"robot-0004"]
    doubled = RobotTotal.FromString(robots[b"robot-0005"])
    doubled.events += 2
    robots[b"robot-0005"] = doubled.SerializeToString()
    short = LineTotal.FromString(lines[b"line-1"])
    short.events -= 1
    lines[b"line-1"] = short.SerializeToString()
    write(open_store(url), stages)

    found = [finding for stage in audit.audit({"": url}, truth) for finding in stage.findings]

    assert {(finding.stage, finding.key, finding.problem) for finding in found} == {
        ("per-robot", "robot-0003", "missing key"),
        ("per-robot", "robot-9999", "extra key"),
        ("per-robot", "robot-0005", "doubled events"),
        ("per-line", "line-1", "missing events"),
    }
    assert run_audit(url) == 1
    assert "4 findings" in capsys.readouterr().out


def test_an_empty_store_lacks_everything(url: str, truth: Expected) -> None:
    write(open_store(url), {"other": {b"key": b"state"}}, flow=f"other-{uuid.uuid4().hex[:8]}")

    robots, lines = audit.audit({"": url}, truth)

    assert (robots.keys, robots.missing, len(robots.findings)) == (0, truth.events, len(truth.robots))
    assert (lines.keys, lines.missing, len(lines.findings)) == (0, truth.events, len(truth.lines))


def test_large_stages_are_read_completely_and_other_flows_skipped(url: str) -> None:
    store = open_store(url)
    rows = {b"key-%d" % number: b"state" for number in range(3000)}
    write(store, {"per-robot": rows, "per-robot-2": {b"other": b"stage"}})

    found = list(stored_states(url, audit.FLOW, "per-robot"))

    assert {row.key: row.state for row in found} == rows
    assert len(found) == len(rows)
    assert {row.part for row in found} == set(range(STATE_PARTITIONS))
