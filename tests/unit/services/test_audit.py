"""The audit finds whatever is off: missing, extra and wrong keys, and which way a count is wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from services import audit
from services._proto.fastening_pb2 import LineTotal, RawReport, RobotTotal
from services.expected import Expected, Total, expected
from services.fastening import to_fastenings
from services.naive import count, table
from services.reports import reports
from services.stored import StoredRow, stored_states
from sqe_chain.envelope.message import wrap

ROBOT = "robot-0001"


@pytest.fixture(scope="module")
def truth() -> Expected:
    return expected(reports(7, 500))


def robot_state(key: str, total: Total, **changed: Any) -> bytes:
    fields: dict[str, Any] = {
        "robot": key,
        "line": total.line,
        "events": total.events,
        "fastened": total.fastened,
        "failed": total.failed,
        "torque_mnm": total.torque_mnm,
        "last_report": total.last_report,
    }
    return RobotTotal(**fields | changed).SerializeToString()


def line_state(key: str, total: Total) -> bytes:
    return LineTotal(
        line=key,
        robots=total.robots,
        events=total.events,
        fastened=total.fastened,
        failed=total.failed,
        torque_mnm=total.torque_mnm,
    ).SerializeToString()


def robot_states(truth: Expected) -> dict[str, StoredRow]:
    return {key: StoredRow(0, key.encode(), robot_state(key, total)) for key, total in truth.robots.items()}


def audited(states: dict[str, StoredRow], truth: Expected) -> audit.StageAudit:
    return audit.audit_stage("per-robot", states.values(), truth.robots, audit.read_robot)


def test_what_is_right_has_no_findings(truth: Expected) -> None:
    found = audited(robot_states(truth), truth)

    assert audit.is_exact([found])
    assert (found.keys, found.events, found.missing, found.doubled) == (len(truth.robots), truth.events, 0, 0)


def test_lines_are_compared_too(truth: Expected) -> None:
    states = [StoredRow(0, key.encode(), line_state(key, total)) for key, total in truth.lines.items()]

    assert audit.is_exact([audit.audit_stage("per-line", states, truth.lines, audit.read_line)])
    assert not audit.is_exact([audit.audit_stage("per-line", states[1:], truth.lines, audit.read_line)])


def test_a_missing_key_is_found_with_its_events(truth: Expected) -> None:
    states = robot_states(truth)
    del states[ROBOT]

    found = audited(states, truth)

    assert [(finding.key, finding.problem) for finding in found.findings] == [(ROBOT, "missing key")]
    assert (found.missing, found.doubled) == (truth.robots[ROBOT].events, 0)


def test_an_extra_key_is_found(truth: Expected) -> None:
    states = robot_states(truth)
    states["robot-9999"] = StoredRow(0, b"robot-9999", robot_state("robot-9999", Total("line-1", events=3)))

    found = audited(states, truth)

    assert [(finding.key, finding.problem) for finding in found.findings] == [("robot-9999", "extra key")]
    assert (found.missing, found.doubled) == (0, 3)


def test_a_key_in_two_state_partitions_is_found(truth: Expected) -> None:
    states = robot_states(truth)
    states["again"] = StoredRow(3, ROBOT.encode(), states[ROBOT].state)

    found = audited(states, truth)

    assert [(finding.key, finding.problem) for finding in found.findings] == [(ROBOT, "extra key")]


@pytest.mark.parametrize(
    ("beyond", "problem", "missing", "doubled"), [(-2, "missing events", 2, 0), (3, "doubled events", 0, 3)]
)
def test_a_wrong_count_is_found_with_its_sign(
    truth: Expected, beyond: int, problem: str, missing: int, doubled: int
) -> None:
    total = truth.robots[ROBOT]
    states = robot_states(truth)
    state = robot_state(ROBOT, total, events=total.events + beyond)
    states[ROBOT] = StoredRow(0, ROBOT.encode(), state)

    found = audited(states, truth)

    assert [(finding.key, finding.problem) for finding in found.findings] == [(ROBOT, problem)]
    assert (found.missing, found.doubled) == (missing, doubled)


@pytest.mark.parametrize(
    "changed",
    [
        {"torque_mnm": 1},
        {"fastened": 0},
        {"failed": 99},
        {"last_report": 0},
        {"line": "line-x"},
        {"robot": "robot-0002"},
        {"out_of_order": 1},
    ],
    ids=str,
)
def test_any_wrong_value_is_found_although_the_count_agrees(truth: Expected, changed: dict[str, Any]) -> None:
    states = robot_states(truth)
    states[ROBOT] = StoredRow(0, ROBOT.encode(), robot_state(ROBOT, truth.robots[ROBOT], **changed))

    found = audited(states, truth)

    assert [(finding.key, finding.problem) for finding in found.findings] == [(ROBOT, "wrong value")]


def test_what_is_no_state_is_found(truth: Expected) -> None:
    states = robot_states(truth)
    states[ROBOT] = StoredRow(0, ROBOT.encode(), b"\xff\xff\xff")

    found = audited(states, truth)

    assert [finding.problem for finding in found.findings if finding.key == ROBOT] == [
        "unreadable",
        "missing key",
    ]


def test_sqlite_is_read_by_its_documented_schema(tmp_path: Path, truth: Expected) -> None:
    store = f"sqlite://{tmp_path}/states.db"
    connection = sqlite3.connect(tmp_path / "states.db")
    connection.executescript(
        """
        CREATE TABLE homes (flow TEXT, number INTEGER);
        CREATE TABLE plans (flow TEXT, number INTEGER, plan BLOB);
        CREATE TABLE states (flow TEXT, stage TEXT, part INTEGER, key BLOB, state BLOB);
        """
    )
    connection.executemany(
        "INSERT INTO states VALUES (?, ?, ?, ?, ?)",
        [(audit.FLOW, "per-robot", row.part, row.key, row.state) for row in robot_states(truth).values()]
        + [(audit.FLOW, "per-line", 1, b"line", b"state"), ("another", "per-robot", 1, b"x", b"y")],
    )
    connection.commit()
    connection.close()

    read = {row.key.decode(): row for row in stored_states(store, audit.FLOW, "per-robot")}

    assert read == robot_states(truth)


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("memory://x", "Expected redis://, cassandra://, postgres:// or sqlite://"),
        ("sqlite:///no/such/file.db", "/no/such/file.db: no such file"),
        ("redis://127.0.0.1:1", "127.0.0.1:1"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused_in_one_line(
    store: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        audit.main(["--store", store, "--messages", "1"])

    assert ended.value.code == 2
    assert why in capsys.readouterr().err.splitlines()[-1]


def envelopes(report: RawReport) -> list[bytes]:
    return [wrap(fastening, key=fastening.robot, timestamp_ms=1) for fastening in to_fastenings(report)]


def test_a_plain_consumer_counts_what_was_published_twice(truth: Expected) -> None:
    plant = list(reports(7, 500))
    messages = [value for report in plant for value in envelopes(report)]
    again = [value for report in plant[:50] for value in envelopes(report)]

    exact, naive = count(messages, truth), count(messages + again, truth)

    assert (exact.too_many, exact.wrong_robots, exact.worst_by) == (0, 0, 0)
    assert naive.too_many == len(again)
    assert naive.events == truth.events + len(again)
    assert 0 < naive.wrong_robots <= 2 * 50
    assert naive.worst_by > 0
    assert table(naive, truth).row_count == 1


def test_the_last_line_sums_up_the_audit(truth: Expected) -> None:
    states = robot_states(truth)
    right = audited(states, truth)
    keys, events = len(truth.robots), truth.events
    assert (
        audit.last_line([right], 12)
        == f"exact: {keys} keys, {events} events, 12 replays ignored, 0 missing, 0 doubled"
    )
    lost = truth.robots[states.popitem()[0]].events

    wrong = audit.last_line([audited(states, truth)])

    assert wrong == f"not exact: {keys - 1} keys, {events - lost} events, {lost} missing, 0 doubled"
