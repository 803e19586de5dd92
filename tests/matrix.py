"""Runs what a store, a broker and a whole service must do, on other versions of the servers: `make test-matrix`.

    python -m tests.matrix [ROW...]

Each row is one server of one version, and all others as usual. It runs the contract of its port, then a demo with kills, and what
came of them is noted in tests/versions.jsonl. Kafka and
Cassandra come from Maven Central. Redis, Valkey and PostgreSQL of a newer Debian run from the root that scripts/test-python made
(`make test-python PYTHON=3.14`): their programs start with that Debian's loader and libraries.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unittest import mock

from sqe_chain.ext.dev import cache_directory
from sqe_chain.ext.dev.packages import fetch_postgres, fetch_redis
from tests import versions
from tests.support.other_debian import NotHere, program_of

FORKY: Final = cache_directory() / "python-3.14"
_LOG: Final = ("tests/contract/test_log.py", "tests/integration/test_kafka_log.py")
_REDIS: Final = ("tests/contract/test_state_store.py", "-k", "TestRedis and not Cluster")
_POSTGRES: Final = (
    "tests/contract/test_state_store.py",
    "tests/integration/test_postgres_store.py",
    "-k",
    "ostgres",
)
_CASSANDRA: Final = (
    "tests/contract/test_state_store.py",
    "tests/integration/test_cassandra_store.py",
    "-k",
    "assandra",
)
_DEMO: Final = ("--engine", "inprocess", "--messages", "30000", "--kills", "2", "--timeout", "1200")


@dataclass(frozen=True)
class Program:
    """A program of another Debian, under the name that sqe-chain looks for.

    Args:
        name: what sqe-chain looks for.
        path: below the root.
        more: arguments before all others.
    """

    name: str
    path: str
    more: str = ""


@dataclass(frozen=True)
class Row:
    """One version of one server.

    Args:
        tests: arguments of pytest.
        demo: arguments of the demo.
        variables: of the environment.
        programs: what comes first on the path.
        shared: files of the root that programs find beside themselves.
    """

    tests: Sequence[str]
    demo: Sequence[str] = _DEMO
    variables: Mapping[str, str] = field(default_factory=dict)
    programs: Sequence[Program] = ()
    shared: Sequence[str] = ()


def _kafka(version: str) -> Row:
    return Row(_LOG, variables={"SQE_CHAIN_KAFKA_VERSION": version})


def _cassandra(version: str) -> Row:
    return Row(_CASSANDRA, (*_DEMO, "--store", "cassandra"), {"SQE_CHAIN_CASSANDRA_VERSION": version})


_POSTGRES_18: Final = "usr/lib/postgresql/18"
ROWS: Final = {
    "Kafka 3.9": _kafka("3.9.1"),
    "Kafka 4.1": _kafka("4.1.0"),
    "Kafka 4.4": _kafka("4.4.0"),
    "Redis 7": Row(_REDIS),
    "Redis 8": Row(_REDIS, programs=[Program("redis-server", "usr/bin/redis-server")]),
    "Valkey 9": Row(_REDIS, programs=[Program("redis-server", "usr/bin/valkey-server")]),
    "Redis without CONFIG": Row(
        _REDIS, programs=[Program("redis-server", "usr/bin/redis-server", "--rename-command CONFIG ''")]
    ),
    "PostgreSQL 15": Row(_POSTGRES, (*_DEMO, "--store", "postgres")),
    "PostgreSQL 18": Row(
        _POSTGRES,
        (*_DEMO, "--store", "postgres"),
        programs=[
            Program(name, f"{_POSTGRES_18}/bin/{name}") for name in ("postgres", "initdb", "pg_basebackup")
        ],
        shared=(f"{_POSTGRES_18}/lib", "usr/share/postgresql/18"),
    ),
    "Cassandra 5.0": _cassandra("5.0.9"),
    "Cassandra 4.1": _cassandra("4.1.10"),
}


def put_programs(row: Row, directory: Path) -> Path:
    """Write what starts the programs of a row with the loader and the libraries of the other Debian.

    Args:
        row: its programs.
        directory: an empty one.

    Returns:
        The directory of the programs.

    Raises:
        NotHere: the other Debian, or a program of it, is not here.
    """
    beside = directory / Path(row.programs[0].path).parent if row.shared else directory / "bin"
    beside.mkdir(parents=True)
    for program in row.programs:
        loader, *options = program_of(FORKY, program.path, "make test-python PYTHON=3.14")
        started = beside / program.name
        # A server that gets more than that starts instead of showing its version.
        started.write_text(
            f"""#!/bin/sh
[ "$*" = --version ] || set -- {program.more} "$@"
exec {loader} --argv0 "$0" {shlex.join(options)} "$@"
"""
        )
        started.chmod(0o755)
    for name in row.shared:  # a program of PostgreSQL finds them from its own path
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).symlink_to(FORKY / name)
    return beside


def run(name: str) -> int:
    """Run the tests and the demo of a row, and note what came of them; returns the exit status.

    Raises:
        NotHere: this machine has not what it needs.
    """
    row = ROWS[name]
    with tempfile.TemporaryDirectory(prefix="sqe-matrix-") as directory:
        environment = {**os.environ, **row.variables}
        if row.programs:
            environment["PATH"] = f"{put_programs(row, Path(directory))}:{os.environ['PATH']}"
        version = f"{name} ({_version(row, environment)})"
        tests = [sys.executable, "-m", "pytest", "-q", *row.tests]
        if status := versions.run("servers", version, versions.CONTRACT, tests, environment):
            return status
        demo = [sys.executable, "-m", "services.demo", *row.demo]
        return versions.run("servers", version, versions.DEMO, demo, environment)


def _version(row: Row, environment: Mapping[str, str]) -> str:
    """What runs: a version that the row chooses, else the one that its server shows."""
    if row.variables:
        return ", ".join(row.variables.values())
    with mock.patch.dict(os.environ, environment):  # those that sqe-chain looks for
        program = fetch_postgres() / "postgres" if row.tests is _POSTGRES else fetch_redis().path
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.[\d.]*\d", shown)
    assert found, shown
    return found[0]


def main(names: Sequence[str]) -> int:
    """Run the rows with these names, or all; returns the exit status."""
    if unknown := set(names) - set(ROWS):
        sys.stderr.write(f"unknown: {', '.join(sorted(unknown))}. Expected {', '.join(ROWS)}\n")
        return 2
    status = 0
    for name in names or ROWS:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        try:
            status |= bool(run(name))
        except NotHere as missing:
            sys.stdout.write(f"{name} is skipped: {missing}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
