"""The stack of docker-compose.yml under load with a few faults: real containers, evidence for each fault, an audit.

`make chaos-compose` strikes with all of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.compose_chaos.__main__ import NO_DOCKER
from tests.support.commit import TREE

FAULTS = 2


@pytest.mark.alone
@pytest.mark.release
@pytest.mark.timeout(2400)  # images may have to be built first
def test_a_stack_with_faults_ends_exact(tmp_path: Path) -> None:
    """The first two of the 29 faults: each leaves evidence that it took hold, and all is counted, once.

    How many replays that brings depends on the moment of a single kill; tests/chaos/test_demo.py asks for them.
    """
    where = ("--faults", str(FAULTS), "--directory", str(tmp_path))
    command = [sys.executable, "-m", "services.compose_chaos", *where]
    run = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=2300, check=False)
    if run.returncode == NO_DOCKER:
        pytest.skip(run.stdout.strip())

    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.splitlines()[-1]
    match = re.fullmatch(
        r"exact: 249 keys, (\d+) events, (\d+) replays ignored, 0 missing, 0 doubled; 2 faults took hold",
        last,
    )
    assert match, run.stdout
    assert int(match[1]) > 10_000
