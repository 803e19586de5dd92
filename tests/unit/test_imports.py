"""Goal: who only wraps messages pays for nothing else. Method: import in a fresh interpreter, look at what came along."""

from __future__ import annotations

import subprocess
import sys

import pytest

DRIVERS = {
    "confluent_kafka",
    "pyspark",
    "py4j",
    "pandas",
    "numpy",
    "pyarrow",
    "redis",
    "cassandra",
    "sqlite3",
}
"""What only adapters load, and only when one is used."""

COMMAND = {"typer", "rich", "structlog", "prometheus_client"}
"""What only the command loads."""


def modules_loaded_by(module: str) -> set[str]:
    """Top-level names in sys.modules after the import, in an interpreter of its own."""
    program = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["sqe_chain", "sqe_chain.envelope", "sqe_chain.flow", "sqe_chain.ports", "sqe_chain.ext.wal"]
)
def test_the_core_loads_no_driver(module: str) -> None:
    assert modules_loaded_by(module) & (DRIVERS | COMMAND) == set()


def test_servers_of_one_machine_need_no_client() -> None:
    assert modules_loaded_by("sqe_chain.ext.dev") & (DRIVERS | COMMAND) == set()


def test_the_check_sees_a_driver() -> None:
    assert modules_loaded_by("sqlite3") & DRIVERS == {"sqlite3"}
