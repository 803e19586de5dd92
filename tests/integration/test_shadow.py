"""Goal: new code takes the place of a flow on real servers and goes back, through kills, and totals are exact. Method: processes; plain sums as an oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqe_chain.ext.dev.process import wait_until
from tests.support.service_processes import KILLED
from tests.support.totals_deployment import TotalsDeployment
from tests.support.waiting import PATIENCE_S

ENGINE = ("--engine", "inprocess")
WORKERS = (*ENGINE, "--workers", "2")
SUPERSEDED = 4
"""Status of a service that a newer run has ended."""
NOT_KNOWN = 3
"""Status of a report that has not compared all, and found no difference."""


@pytest.fixture
def deployed(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[TotalsDeployment]:
    deployed = TotalsDeployment(kafka, redis_url, tmp_path)
    yield deployed
    deployed.close()


def report(deployed: TotalsDeployment) -> tuple[int, list[dict[str, object]]]:
    """The status of `shadow report`, and its lines of stages."""
    process = deployed.start_command("totals", "shadow report", "--json")
    status = process.wait()
    lines = [json.loads(line) for line in process.text.splitlines() if line.startswith("{")]
    return status, [line for line in lines if "stage" in line and "equal" in line]


def test_new_code_follows_is_killed_takes_the_place_of_the_flow_and_goes_back(
    deployed: TotalsDeployment,
) -> None:
    deployed.feed()
    deployed.run_once("standard")
    totals = deployed.start("totals")
    deployed.wait_for_no_lag(totals)
    for kill_at in ("sealed", "persisted"):
        shadow = deployed.start_command("totals", "shadow start", *ENGINE, signal_at=f"{kill_at}:SIGKILL")
        assert shadow.wait() == KILLED, shadow.text
    deployed.feed()
    deployed.run_once("standard")
    deployed.wait_for_no_lag(totals)
    assert report(deployed)[0] == NOT_KNOWN, "the shadow is behind"
    shadow = deployed.start_command("totals", "shadow start", *ENGINE)
    deployed.feed()
    deployed.republish_and_die()  # the republisher publishes these again
    deployed.run_once("standard")
    deployed.wait_for_no_lag(totals)
    assert wait_until(lambda: report(deployed)[0] == 0, PATIENCE_S), (report(deployed), shadow.text)
    assert [(one["stage"], one["different"]) for one in report(deployed)[1]] == [
        ("per-robot", 0),
        ("per-line", 0),
    ]
    killed = deployed.start_command("totals", "shadow switch", *ENGINE, signal_at="sealed:SIGKILL")
    assert killed.wait() == KILLED, killed.text
    assert totals.wait() == SUPERSEDED, "a switch ends the service between two batches"
    switched = deployed.start_command("totals", "shadow switch", *WORKERS)  # by another engine
    assert switched.wait() == 0, switched.text
    assert shadow.wait() != 0, "it was fenced off"
    deployed.feed()
    deployed.run_once("standard")
    deployed.run_once("totals")
    deployed.check_totals()
    deployed.check_receivers()
    killed = deployed.start_command("totals", "shadow switch", "--back", *ENGINE, signal_at="sealed:SIGKILL")
    assert killed.wait() == KILLED, killed.text
    back = deployed.start_command("totals", "shadow switch", "--back", *ENGINE)
    assert back.wait() == 0, back.text
    deployed.feed()
    deployed.run_once("standard")
    deployed.run_once("totals")
    deployed.check_totals()
    deployed.check_receivers()


def test_new_code_begins_at_an_export_and_takes_the_place_of_the_flow(deployed: TotalsDeployment) -> None:
    deployed.feed()
    deployed.run_once("standard")
    deployed.run_once("totals")
    file = deployed.directory / "totals.export"
    exported = deployed.start_command("totals", "export", str(file))
    assert exported.wait() == 0, exported.text
    totals = deployed.start("totals")
    begins = ("--from-export", str(file), *ENGINE)
    killed = deployed.start_command("totals", "shadow start", *begins, signal_at="claimed:SIGKILL")
    assert killed.wait() == KILLED, killed.text
    shadow = deployed.start_command("totals", "shadow start", *begins)
    deployed.feed()
    deployed.republish_and_die()  # the republisher publishes these again
    deployed.run_once("standard")
    deployed.wait_for_no_lag(totals)
    assert wait_until(lambda: report(deployed)[0] == 0, PATIENCE_S), (report(deployed), shadow.text)
    switched = deployed.start_command("totals", "shadow switch", *ENGINE)
    assert switched.wait() == 0, switched.text
    assert totals.wait() == SUPERSEDED
    deployed.feed()
    deployed.run_once("standard")
    deployed.run_once("totals")
    deployed.check_totals()
    deployed.check_receivers()
