"""Goal: the plugin gives tests a bounded `prove`, and a failure shows the seed. Method: pytest runs a small test module."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

from sqe_chain.testing import pytest_plugin

ROOT = Path(__file__).resolve().parents[3]

MODULE = """
import random
from sqe_chain import Flow

def flow_of(function):
    flow = Flow("plugged")
    flow.source("in", bytes, raw=True).map(function).to("out", partitions=1)
    return flow

def test_exact(prove):
    proof = prove(flow_of(bytes.upper), {"in": [b"a", b"b"]}, schedules=4, other_processes=False)
    assert (proof.seed, proof.schedules) == (7, 4)

def test_not_exact(prove):
    prove(flow_of(lambda value: random.randbytes(8)), {"in": [b"a", b"b"]}, other_processes=False)
"""


def test_a_failure_shows_the_seed(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    options = ["-q", "-p", "no:cacheprovider", "-p", pytest_plugin.__name__, "--sqe-chain-seed", "7"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
        *options,
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "NotDeterministic" in done.stdout
    assert "calls Random.getrandbits() at test_module.py:15" in done.stdout
    assert "--sqe-chain-seed=7" in done.stdout


def test_it_is_found_by_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert pytest_plugin.__name__ in project["entry-points"]["pytest11"].values()


def test_seeds_are_numbers_or_drawn() -> None:
    parser = Mock()
    pytest_plugin.pytest_addoption(parser)
    seed_of = parser.getgroup().addoption.call_args.kwargs["type"]
    assert seed_of("12") == 12
    assert seed_of("random") != seed_of("random")
    with pytest.raises(ValueError, match="invalid literal"):
        seed_of("x")
