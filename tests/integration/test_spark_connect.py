"""On Spark Connect a flow publishes and stores what it does in one process; and what is missing is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs_examples import ROOT
from tests.support.engine_runs import FLOWS
from tests.support.spark_cluster import SparkConnectServer


@pytest.fixture(scope="module")
def server() -> Iterator[SparkConnectServer]:
    with SparkConnectServer() as started:
        yield started


@pytest.mark.release
@pytest.mark.timeout(900)
def test_flows_give_the_same_on_spark_connect(server: SparkConnectServer, kafka: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.connect_runs", server.url, kafka, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    assert len(done.stdout.splitlines()) == 2 * len(FLOWS), done.stdout
