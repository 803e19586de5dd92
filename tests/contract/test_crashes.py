"""Goal: a crash costs repeated work and nothing else, whatever the store. Method: log in memory, stores real.

The same pipeline as in tests/protocol/test_crash_at_every_step.py; mixed: the first stage in Redis, which is the
metadata store too, the second in Cassandra.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqe_chain.adapters import open_store
from tests.support.memory_pipeline import CRASH_POINTS, TotalsPipeline, feed_with_replays, totals_flow

KINDS = ["mixed", "sqlite", "redis", "redis-cluster", "cassandra"]
SMALL = "max_rows=2"
"""Small, so that each persist needs several chunks."""


@pytest.fixture
def urls(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> dict[str, str]:
    """Name of a store -> its address."""
    if kind == "sqlite":
        return {"": f"sqlite://{tmp_path}/states.db"}
    if kind == "mixed":
        return {"": request.getfixturevalue("redis_url"), "large": request.getfixturevalue("cassandra_url")}
    return {"": request.getfixturevalue(f"{kind.replace('-', '_')}_url")}


@pytest.fixture
def pipelines(urls: dict[str, str]) -> Iterator[list[TotalsPipeline]]:
    """Pipelines whose stores are closed after the test."""
    made: list[TotalsPipeline] = []
    yield made
    for pipeline in made:
        for store in pipeline.totals.stores.values():
            store.close()


def pipeline_on(
    urls: dict[str, str], stages: int, pipelines: list[TotalsPipeline], options: str = ""
) -> TotalsPipeline:
    """A pipeline whose totals are kept in these stores."""
    name = f"totals-{uuid.uuid4().hex}"
    flow = totals_flow(
        stages, state_partitions=3, name=name, second_store="large" if "large" in urls else None
    )
    stores = {name: open_store(f"{url}?{options}" if options else url) for name, url in urls.items()}
    pipelines.append(TotalsPipeline(flow, mid=3, store=stores))
    return pipelines[-1]


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [2, 1])
def test_a_crash_before_and_after_every_step(
    urls: dict[str, str], stages: int, pipelines: list[TotalsPipeline]
) -> None:
    pipeline = pipeline_on(urls, stages, pipelines)
    feed_with_replays(pipeline)
    pipeline.totals.run_until_caught_up()
    crashes = 0
    for step, when in CRASH_POINTS:
        for passes in range(stages if step == 6 else 1):
            pipeline.totals.crash(step=step, when=when, after_passes=passes)  # type: ignore[arg-type]
            if step <= 2:
                pipeline.totals.service = None
            feed_with_replays(pipeline)
            pipeline.totals.run_until_caught_up()
            crashes += 1
            assert pipeline.totals.crashes == crashes
            pipeline.check()


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_every_single_write(
    urls: dict[str, str], when: str, pipelines: list[TotalsPipeline]
) -> None:
    """One batch crashes at its first write, the next at its second, … until a batch has no more writes."""
    pipeline = pipeline_on(urls, 2, pipelines, SMALL)
    feed_with_replays(pipeline)
    pipeline.totals.run_until_caught_up()
    for number in range(1_000):
        feed_with_replays(pipeline)
        pipeline.totals.crash_at_write(number, when)  # type: ignore[arg-type]
        before = pipeline.totals.crashes
        pipeline.totals.run_until_caught_up()
        pipeline.check()
        if pipeline.totals.crashes == before:
            break
    assert pipeline.totals.crashes > 10
