"""Goal: services that go through many faults on real servers, and through a long time without any, are exact.

Method: a small piece of the campaign, and a minute of the soak; `python -m tests.lab.campaign` and `python -m tests.lab.soak` run more.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sqe_chain.ext.dev import KafkaServer, RedisServer
from tests.lab.campaign.piece import Piece
from tests.lab.campaign.servers import running
from tests.lab.soak import Soak

pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize(
    ("store", "engine", "faults"),
    [
        ("redis", "inprocess", 6),
        pytest.param("postgres", "workers", 20, marks=pytest.mark.release),
        pytest.param("cassandra", "spark", 12, marks=pytest.mark.release),
    ],
)
@pytest.mark.alone
def test_a_piece_of_the_campaign_is_exact(tmp_path: Path, store: str, engine: str, faults: int) -> None:
    with (
        running(store, tmp_path) as servers,
        closing(Piece(servers, tmp_path, engine, seed=1)) as piece,
    ):
        assert piece.run(faults) == []
        assert piece.found["inputs"] >= faults * 200


@pytest.mark.release
@pytest.mark.alone
def test_memory_stays_flat_and_totals_are_right(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "kafka") as broker, RedisServer(tmp_path / "redis") as store:
        soak = Soak(broker, store, tmp_path, (), seed=1)
        with closing(soak.deployment):
            assert soak.run(minutes=1, rate=3_000) == []
            assert len(soak.memory["totals"]) > 1
