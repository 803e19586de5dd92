"""The stack of docker-compose.yml under load with a few faults: real containers, evidence for each fault, an audit.

The long form is `make chaos-compose`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.compose_chaos.__main__ import NO_DOCKER

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.alone
@pytest.mark.timeout(2400)  # images may have to be built first
def test_a_stack_with_faults_ends_exact(tmp_path: Path) -> None:
    """A pair killed, a takeover, a disconnection, a single kill, everything restarted: all counted, once.

    How many replays that brings depends on the moment of a single kill; tests/chaos/test_demo.py asks for them.
    """
    command = [sys.executable, "-m", "services.compose_chaos", "--faults", "5", "--directory", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2300, check=False)
    if run.returncode == NO_DOCKER:
        pytest.skip(run.stdout.strip())

    assert run.returncode == 0, run.stdout + run.stderr
    last = run.stdout.splitlines()[-1]
    found = re.fullmatch(
        r"exact: 249 keys, (\d+) events, (\d+) replays ignored, 0 missing, 0 doubled; 5 faults took hold",
        last,
    )
    assert found, run.stdout
    assert int(found[1]) > 10_000
    assert re.search(r"pid \d+ -> \d+", run.stdout)
    assert "the paused one ended with status 4" in run.stdout
