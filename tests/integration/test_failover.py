"""Goal: a flow goes from a broker that was killed under load to its mirror, and counts and publishes each record once.

Method: two real brokers and MirrorMaker 2. What the flow holds is compared with what a naive reader finds in the first topic. What it
has published is compared with what a reader of the other cluster counts by lanes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import sqe_chain
from sqe_chain.ext.dev.process import wait_until
from tests.lab.failovers import PATIENCE_S, Deployed, failovers
from tests.support.mirror_maker import MirrorMaker
from tests.support.mirrored import INPUT, republished_words, totals_of_words

FAILOVERS = int(os.environ.get("SQE_CHAIN_FAILOVERS", "2"))


@pytest.mark.release
@pytest.mark.timeout(FAILOVERS * 600)
def test_brokers_killed_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployed, named = Deployed(tmp_path, totals_of_words), 0
    standard = sqe_chain.running(republished_words(), kafka=deployed.first.bootstrap, engine="inprocess")
    mirrored = MirrorMaker(deployed.first.bootstrap, deployed.second.bootstrap, INPUT, tmp_path)
    try:
        with mirrored as mirror, standard:
            assert wait_until(deployed.is_mirrored, PATIENCE_S)
            for number in range(FAILOVERS):
                deployed.kill_first_under_load()
                lanes = deployed.fail_over(deployed.second, (INPUT, f"first.{INPUT}"))
                named += bool(lanes)
                mirror.kill()
                deployed.first.start()
                mirror.restart()
                deployed.run_until_counted(deployed.second)
                deployed.fail_over(deployed.first)
                deployed.run_until_counted(deployed.first)
                with capsys.disabled():
                    text = f"failover {number + 1}: {sum(deployed.counted().values())} words; the mirror lagged in {named}"
                    sys.stderr.write(text + "\n")
    finally:
        deployed.stop()


@pytest.mark.release
@pytest.mark.timeout(FAILOVERS * 600)
def test_a_flow_with_outputs_goes_on_or_names_the_lanes(tmp_path: Path) -> None:
    """`python -m tests.lab.failovers` runs more."""
    with failovers(tmp_path) as made:
        assert made.run(FAILOVERS) == []
        assert made.found["failovers"] == FAILOVERS
