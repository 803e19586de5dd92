"""The stack of docker-compose.yml under load with a few faults: real containers, evidence for each fault, an audit.

Which faults these are changes with the commit; `make chaos-compose` strikes with all of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.compose_chaos.__main__ import NO_DOCKER
from tests.support.commit import TREE, drawn

FAULTS = 2
ALL = 22
"""So many have every kind, every pair and every victim among them."""


@pytest.mark.alone
@pytest.mark.timeout(2400)  # images may have to be built first
def test_a_stack_with_faults_ends_exact(tmp_path: Path) -> None:
    """Two neighbours of the 22 faults: each leaves evidence that it took hold, and all is counted, once.

    How many replays that brings depends on the moment of a single kill; tests/chaos/test_demo.py asks for them.
    """
    first = str(1 + drawn("faults in compose", ALL - FAULTS + 1))
    which = ("--first", first, "--faults", str(FAULTS))
    command = [sys.executable, "-m", "services.compose_chaos", *which, "--directory", str(tmp_path)]
    run = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=2300, check=False)
    if run.returncode == NO_DOCKER:
        pytest.skip(run.stdout.strip())

    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.splitlines()[-1]
    found = re.fullmatch(
        r"exact: 249 keys, (\d+) events, (\d+) replays ignored, 0 missing, 0 doubled; 2 faults took hold",
        last,
    )
    assert found, run.stdout
    assert int(found[1]) > 10_000
