"""Goal: who only wraps messages pays for nothing else. Method: import in a fresh interpreter, look at what came along."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support.commit import TREE

DRIVERS = {
    "confluent_kafka",
    "pyspark",
    "py4j",
    "pandas",
    "numpy",
    "pyarrow",
    "redis",
    "cassandra",
    "psycopg",
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


def imports_of(module: str) -> set[str]:
    """What a file of the repository imports, by its text."""
    path = TREE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in modules if TREE.joinpath(*name.split(".")).with_suffix(".py").exists()}
            found.add(node.module)
    return found


def reached_from(package: str) -> set[str]:
    """Modules of the product that the files of a package of the tests import, directly or by other tests."""
    waiting = [f"{package}.{file.stem}" for file in sorted(TREE.joinpath(*package.split(".")).glob("*.py"))]
    waiting = [module.removesuffix(".__init__") for module in waiting]
    seen, product = set(waiting), set[str]()
    while waiting:
        imported = imports_of(waiting.pop())
        product |= {name for name in imported if name.partition(".")[0] == "sqe_chain"}
        fresh = {name for name in imported if name.startswith("tests.")} - seen
        seen |= fresh
        waiting += sorted(fresh)
    return product


def test_the_reference_model_shares_nothing_with_what_it_judges_but_the_wire_format() -> None:
    shared = {name for name in reached_from("tests.lab.reference") if ".envelope" not in name}
    assert shared == {"sqe_chain.chain", "sqe_chain.errors"}
    assert "sqe_chain.testing.rehearsal" in reached_from("tests.lab.simulator"), (
        "the walk sees what is imported"
    )
