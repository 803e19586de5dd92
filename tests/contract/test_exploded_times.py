"""Goal: on every engine rows of one input count each at its own time.

Method: drawn uploads on a real broker, in processes, workers and Spark, judged by the oracle of `tests.lab.event_time_worlds.exploded`.
"""

from __future__ import annotations

import json
import uuid
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ports import Output
from tests.lab.event_time_worlds.drawing import draw
from tests.lab.event_time_worlds.exploded import (
    compare_results,
    exploded_reader,
    exploding,
    first_rows,
    upload_of,
)
from tests.lab.event_time_worlds.world import BEGIN_MS, Hop, World
from tests.support.engine_runs import Made, Run, everything

PARTITIONS, STATE_PARTITIONS = 3, 4
KINDS = ("tumbling", "hopping", "sessions", "distinct", "deduplicate")
WORLDS = 3
"""Of each kind and engine; every second one has a republisher."""


def write(log: KafkaLog, topic: str, world: World) -> dict[int, int]:
    """Append the uploads, each partition in the order of places; returns number -> place."""
    clock_ms, last_ms, times_ms = BEGIN_MS, dict[int, int](), dict[int, int]()
    outputs: list[Output] = []
    for number, fact in enumerate(world.facts):
        clock_ms += fact.gap_ms
        partition = fact.partition % PARTITIONS
        at_ms = max(last_ms.get(partition, 0), clock_ms - fact.age_ms)
        last_ms[partition] = times_ms[number] = at_ms
        value = json.dumps(upload_of(world, number, fact, at_ms)).encode()
        outputs.append((topic, partition, None, value, None, at_ms))
    writer = log.writer()
    writer.write(outputs)
    writer.flush()
    writer.close()
    return times_ms


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_count_each_at_its_own_time(log: KafkaLog, tmp_path: Path, engine: Made, kind: str) -> None:
    seeds = count()
    for number in range(WORLDS):
        world = next(
            drawn
            for drawn in (draw(seed, kinds=(f"exploded-{kind}",)) for seed in seeds)
            if drawn.exploded == "earliest" and len(drawn.facts) > 10
        )
        world = replace(world, named=False)
        name = f"exploded-{uuid.uuid4().hex[:8]}"
        root, middle = f"{name}.root", f"{name}.middle"
        log.create_topic(root, PARTITIONS)
        times_ms = write(log, root, world)
        sources = ((root, True),)
        if number % 2:
            hop = Hop(2, 10, by_number=False, max_records=100)
            flow = exploding(
                f"{name}.hop", root, middle, hop=hop, raw=True, order=world.exploded, separate=world.separate
            )
            Run(flow, log, open_store(f"sqlite://{tmp_path}/{name}.hop.db"), engine).until_caught_up()
            sources = ((middle, False),)
        flow = exploded_reader(f"{name}.reader", (kind, world.exploded, False), sources, STATE_PARTITIONS)
        run = Run(flow, log, open_store(f"sqlite://{tmp_path}/{name}.db"), engine)
        run.until_caught_up()
        run.until_caught_up(at_end=True)
        if kind in ("tumbling", "hopping", "sessions"):
            while run.service.batch(at_end=True, final=True).worked:
                pass
        topic = sources[0][0]
        rows = sorted(first_rows(world, times_ms, topic, (message for _, message in everything(log, topic))))
        given = [message for _, message in everything(log, f"{flow.name}.out")]
        assert given
        compare_results(kind, given, rows, f"{kind} {number}", closed=True)
