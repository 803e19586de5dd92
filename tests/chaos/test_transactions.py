"""Goal: a plain reader of committed records sees each output of a transactional service once, whatever kills the service.

Method: a few random kills; `python -m tests.lab.transactional_kills` does hundreds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.transactional_kills import Trial


@pytest.mark.parametrize(
    ("engine", "flow"), [("inprocess", "staged"), ("inprocess", "republisher"), ("workers", "staged")]
)
def test_killed_services_publish_each_output_once(
    kafka: str, redis_url: str, tmp_path: Path, engine: str, flow: str
) -> None:
    trial = Trial(kafka, redis_url, tmp_path, engine, flow, seed=1)
    try:
        assert trial.run(kills=5) == []
        assert trial.found["events"] > trial.fed
    finally:
        trial.close()
