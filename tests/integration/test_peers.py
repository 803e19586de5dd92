"""Goal: every system of the comparison computes what it should, and what is wrong is found. Method: few records, real servers.

No time is asserted. A system that cannot be installed here is skipped, with its reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import measure, write_input
from benchmarks.peers.installing import Missing
from benchmarks.peers.records import Records
from benchmarks.peers.results import LATER, Results
from benchmarks.peers.running import Place, Wrong
from benchmarks.peers.systems import IN_PROCESS, JSON, ROOT, SYSTEMS, Job, Plain, SqeChain, System
from benchmarks.peers.workloads import Workload
from sqe_chain.ext.dev import KafkaServer, RedisServer

pytestmark = [pytest.mark.release, pytest.mark.timeout(1500)]

RECORDS = 12_000  # two windows, and some that are sent again
PATIENCE_S = 600.0  # only what hangs takes so long, whatever else this machine does
BY_NAME = {system.name: system for system in SYSTEMS}
FLAT_MAP, FOLD, TWO_STAGES, WINDOWS, CHAIN, FILTER = Workload

RUNS = [  # each system, and each workload with each kind of system
    ("kafka-streams", FLAT_MAP),
    ("kafka-streams", TWO_STAGES),  # folds, too
    ("quix", TWO_STAGES),
    ("plain", FOLD),
    ("sqe-json-inprocess", FLAT_MAP),
    ("sqe-json-inprocess", TWO_STAGES),
    ("sqe-envelopes", FOLD),
    ("sqe-declared-inprocess", FOLD),
    ("sqe-json-workers2", TWO_STAGES),
    ("flink", FLAT_MAP),
    ("flink", WINDOWS),
    ("kafka-streams", WINDOWS),
    ("kafka-streams-4.4", CHAIN),
    ("kafka-streams-4.4-transactional", FILTER),
    ("sqe-json-inprocess", WINDOWS),
    ("sqe-envelopes-workers2", WINDOWS),
    ("sqe-declared-inprocess", WINDOWS),
    ("sqe-json-inprocess", CHAIN),
    ("sqe-envelopes", FILTER),
    ("sqe-json-workers2", FILTER),
]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with KafkaServer(fast_boot=True) as kafka, RedisServer() as redis:
        found = Place(kafka, redis, RECORDS, stall_s=PATIENCE_S)
        write_input(found)
        yield found


def installed(system: System) -> System:
    """The system, or the reason why there is none."""
    try:
        system.install(print)
    except Missing as error:
        pytest.skip(f"{system.name}: {error}")
    return system


@pytest.mark.parametrize(("name", "workload"), RUNS)
def test_results_are_right(place: Place, name: str, workload: Workload) -> None:
    results = Results()
    measure(place, [installed(BY_NAME[name])], [workload], 1, results)
    assert results.wrong == {}
    row = results.row(name, workload)
    assert row is not None
    assert row.records_per_s > 0
    assert row.cpu_us_per_record > 0


def test_batches_after_the_first_have_a_row_of_their_own(place: Place) -> None:
    system = SqeChain("sqe-small-batches", JSON, (*IN_PROCESS, "--max-records", "500"))
    results = Results()
    measure(place, [system], [FOLD], 1, results)
    whole, later = results.rows([system])
    assert (whole.system, later.system) == ("sqe-small-batches", "sqe-small-batches" + LATER)
    run = place.run(system, FOLD, "small-batches-again", FOLD.expected(Records(RECORDS)))
    assert run.whole.records == RECORDS
    assert run.later is not None
    assert 0 < run.later.records < RECORDS
    assert run.later.seconds < run.whole.seconds


def test_wrong_results_are_found(place: Place) -> None:
    """As if one record had been counted twice."""
    expected = dict(FOLD.expected(Records(RECORDS)))
    key, (events, fastened, failed) = expected.popitem()
    expected[key] = (events, fastened + 1, failed)
    with pytest.raises(Wrong, match=f"1 of 1,000 keys are wrong: '{key}' has"):
        place.run(installed(Plain()), FOLD, "wrong-results", expected)


class Ending(System):
    """Ends at once."""

    name = "ending"
    guarantee = "none"

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-c", "import sys; sys.exit('out of ideas')"]]


class Idle(Ending):
    """Begins, and does nothing."""

    name = "idle"

    def commands(self, job: Job) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-c", "import time; print('first', flush=True); time.sleep(600)"]]


@pytest.mark.parametrize(
    ("system", "reason"),
    [(Ending(), "ended with status 1:\nout of ideas"), (Idle(), "0 of 12,0")],
)
def test_a_system_that_does_not_get_there_is_reported(place: Place, system: System, reason: str) -> None:
    impatient = Place(place.kafka, place.redis, place.records, stall_s=1.0)
    results = Results()
    measure(impatient, [system], [FLAT_MAP, FOLD], 2, results)
    assert set(results.wrong) == {(system.name, FLAT_MAP), (system.name, FOLD)}
    assert all(reason in text for text in results.wrong.values())


def test_the_command_writes_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    chosen = ("--systems", "plain,sqe-json-inprocess", "--workloads", "w2-fold")
    command = [sys.executable, "-m", "benchmarks.peers", "--records", "1000", "--rounds", "2", *chosen]
    done = subprocess.run(
        [*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "skipped: plain" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [(row["system"], row["workload"]) for row in rows] == [
        ("plain", "w2-fold"),
        ("sqe-json-inprocess", "w2-fold"),
    ]
    assert all(row["ratio_to_kafka_streams"] is None for row in rows)  # it was not asked for


def test_an_unknown_name_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.peers", "--systems", "beam"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown: beam" in done.stderr
