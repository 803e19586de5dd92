"""Goal: on every engine, what services by event time give depends on the facts alone, through kills, rebuilds and rewinds.

Method: worlds of `tests.lab.event_time_worlds` on a real broker, judged by their oracles, which share no code with the package.
`python -m tests.lab.event_time_worlds --worlds 100 --engine spark` runs more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqe_chain.engines.spark import SparkEngine
from tests.lab.event_time_worlds.__main__ import verdict
from tests.lab.event_time_worlds.exploded import EXPLODED
from tests.lab.event_time_worlds.on_engines import MadeEngine, OnEngine, draw_for_engines, engine_named
from tests.lab.event_time_worlds.world import KINDS

SEEDS = {"in-process": range(3), "workers": range(8, 10), "spark": range(16, 18)}
"""A few of them, since each takes seconds: a real broker is asked before each batch."""


@pytest.fixture(params=SEEDS)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, MadeEngine]]:
    name: str = request.param
    if name == "spark":
        session: SparkSession = request.getfixturevalue("spark")
        yield name, lambda flow, log, stores: SparkEngine(flow, log, stores, session)
        return
    with engine_named(name) as made:
        yield name, made


def test_worlds_give_what_their_facts_give(
    kafka: str, tmp_path: Path, engine: tuple[str, MadeEngine]
) -> None:
    name, made = engine
    for seed in SEEDS[name]:
        world = draw_for_engines(seed, (*KINDS, *EXPLODED))
        difference = verdict(world, OnEngine(kafka, tmp_path, made))
        assert not difference, f"seed {seed}: {difference}\n{world.text()}"
