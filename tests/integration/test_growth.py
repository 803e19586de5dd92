"""Goal: the tables of growth measure what they claim, and notice what is wrong. Method: small cases on real servers.

No time is asserted.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.growth.cases import Case
from benchmarks.growth.child import SMALL_BATCHES, Arguments, measure, prepare
from benchmarks.growth.records import FEW, robot
from benchmarks.growth.running import ROOT
from services._proto.fastening_pb2 import LineTotal
from sqe_chain.adapters import open_store
from sqe_chain.envelope.partitioner import partition_of

CASE = Case("small", keys=5_000, changed=100, batch=500, batches=3)


def test_a_batch_reads_and_writes_the_keys_that_it_changes_however_many_there_are(
    kafka: str, redis_url: str
) -> None:
    case = replace(CASE, lanes=20, links=3)
    arguments = Arguments({}, "growth-keys", kafka, redis_url)
    prepare(case, arguments)
    for start in (0, case.records + SMALL_BATCHES * FEW):  # the second round begins with a restart
        found = measure(case, replace(arguments, start=start))
        assert (found.records, found.batches) == (1_000, 2)
        # A batch takes the same number of records from each partition, so it may take some of the next hundred keys.
        assert 100 <= found.rows_written / found.batches <= 200
        assert found.rows_read == found.rows_written
        assert found.plan_bytes > 20 * case.partitions * 100


@pytest.mark.parametrize("case", [replace(CASE, stages=3), replace(CASE, stages=0)])
def test_other_flows_are_measured_too(kafka: str, redis_url: str, case: Case) -> None:
    arguments = Arguments({}, f"growth-{case.stages}", kafka, redis_url)
    prepare(case, arguments)
    found = measure(case, arguments)
    assert found.records == 1_000
    assert (found.rows_written > 0, found.plan_bytes > 0) == (case.stages > 0, case.stages > 0)


def test_a_wrong_state_is_found(kafka: str, redis_url: str) -> None:
    """As if an event had been counted twice."""
    arguments = Arguments({}, "growth-wrong", kafka, redis_url)
    prepare(CASE, arguments)
    store = open_store(redis_url)
    for number in range(100):
        key = robot(number * 7_919 % CASE.keys).encode()
        part = partition_of(key, CASE.state_partitions)
        (header,) = store.headers(arguments.name, "stage-1", [part])
        assert header is not None
        rows = [(key, LineTotal(events=2).SerializeToString())]
        assert store.write(arguments.name, "stage-1", part, header, header, rows) == header
    with pytest.raises(AssertionError):
        measure(CASE, arguments)


@pytest.mark.release
def test_the_command_prints_a_table() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "growth", "--growth", "lanes", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lanes of each of 4 input partitions" in done.stdout
    assert "backlog:" not in done.stdout  # nothing else was measured


def test_an_unknown_table_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "growth", "--growth", "wings"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown: wings" in done.stderr
