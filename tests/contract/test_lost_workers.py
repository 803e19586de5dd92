"""Goal: a worker process that dies costs only repeated work. Method: SIGKILL from within, at each step, on real Kafka and Redis.

The same flow runs in one process, on the same batches; both must store the same, and publish the same messages. Those that
were published before a worker died come twice, at positions that receivers know.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.workers import Team, WorkersEngine
from sqe_chain.engines.workers.team import MOST_LOSSES
from sqe_chain.errors import EngineLost
from sqe_chain.flow import Flow
from sqe_chain.plans.events import Waiting
from sqe_chain.ports import Log, StateStore
from tests.support.dying_workers import DyingLog, DyingStore, Kills
from tests.support.engine_runs import (
    INPUT_PARTITIONS,
    Declare,
    Made,
    Names,
    Run,
    add_and_emit,
    feed,
    in_process,
    last_digit,
    stateless,
    two_stages,
    two_stages_unshuffled,
)
from tests.support.suites import some

STATEFUL = (
    "read",
    "load {0}",
    "load {1}",
    "publish",
    "published",
    "before {1}",
    "after {1}",
    "before {0}",
    "after {0}",
)
STATELESS = ("read", "publish", "published")


@pytest.fixture
def inputs(log: KafkaLog) -> tuple[str, str]:
    prefix = f"in-{uuid.uuid4().hex[:8]}"
    topics = f"{prefix}.one", f"{prefix}.two"
    for topic in topics:
        log.create_topic(topic, INPUT_PARTITIONS)
    return topics


@pytest.fixture
def team() -> Iterator[Team]:
    found = Team(2, "workers of a test")
    yield found
    found.close()


@pytest.fixture
def kills(tmp_path: Path) -> Kills:
    directory = tmp_path / "kills"
    directory.mkdir()
    return Kills(directory)


@pytest.fixture
def dying(team: Team, kills: Kills) -> Made:
    """Engines whose workers die at the calls that `kills` names."""

    def made(flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> WorkersEngine:
        deadly = {name: cast("StateStore", DyingStore(store, kills)) for name, store in stores.items()}
        return WorkersEngine(flow.compile(), cast("Log", DyingLog(log, kills)), deadly, team)

    return made


def pair(
    declare: Declare, log: KafkaLog, inputs: tuple[str, str], redis_url: str, dying: Made
) -> tuple[Run, Run]:
    """A flow in one process, and on workers."""
    store = open_store(redis_url)
    names = [Names(f"{who}-{uuid.uuid4().hex[:8]}", inputs) for who in ("a", "b")]
    return Run(declare(names[0]), log, store, in_process), Run(declare(names[1]), log, store, dying)


def alike(reference: Run, run: Run) -> None:
    assert run.states() == reference.states()
    assert set(map(repr, run.published())) == set(map(repr, reference.published()))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("declare", "points"),
    [(two_stages, STATEFUL), (two_stages_unshuffled, STATEFUL), (stateless, STATELESS)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_worker_killed_at_any_step_costs_only_repeated_work(
    log: KafkaLog,
    inputs: tuple[str, str],
    redis_url: str,
    dying: Made,
    kills: Kills,
    team: Team,
    declare: Declare,
    points: tuple[str, ...],
) -> None:
    reference, found = pair(declare, log, inputs, redis_url, dying)
    stages = [stage.name for stage in found.flow.compile().stages]
    for number, point in enumerate(some("steps that kill a worker", points, 4)):
        feed(log, inputs, 100 * number, 40)
        kills.arm(point.format(*stages))
        before, emitted = team.generation, len(found.observer.events)
        reference.until_caught_up()
        found.until_caught_up()
        assert kills.armed() == [], point
        assert team.generation == before + 1
        waits = [event for event in found.observer.events[emitted:] if isinstance(event, Waiting)]
        assert ["was killed by SIGKILL" in event.reason for event in waits] == [True], point
        alike(reference, found)


@pytest.mark.few(1)
@pytest.mark.parametrize("point", ["read", "before signs"])
def test_a_batch_on_which_workers_die_again_and_again_ends_the_run_and_the_next_one_is_exact(
    log: KafkaLog, inputs: tuple[str, str], redis_url: str, dying: Made, kills: Kills, point: str
) -> None:
    reference, found = pair(two_stages, log, inputs, redis_url, dying)
    feed(log, inputs, 0, 40)
    reference.until_caught_up()
    kills.arm(point, 2 * MOST_LOSSES)  # both may die at once
    with pytest.raises(EngineLost, match="start the service again"):
        found.until_caught_up()
    kills.disarm()
    found.service.leave()
    following = Run(found.flow, log, found.store, dying)
    following.until_caught_up()
    alike(reference, following)


def test_losses_in_different_batches_do_not_add_up(
    log: KafkaLog, inputs: tuple[str, str], redis_url: str, dying: Made, kills: Kills
) -> None:
    reference, found = pair(two_stages, log, inputs, redis_url, dying)
    for number in range(MOST_LOSSES + 1):
        feed(log, inputs, 100 * number, 10)
        kills.arm("read", MOST_LOSSES - 1)
        reference.until_caught_up()
        found.until_caught_up()
    alike(reference, found)


def test_what_comes_out_differently_the_second_time_is_not_written(
    log: KafkaLog, inputs: tuple[str, str], redis_url: str, dying: Made, kills: Kills, tmp_path: Path
) -> None:
    """User code that fails now, on what it took before the seal: recovery has to judge that."""
    trouble = tmp_path / "trouble"

    def moody(value: Int64Value) -> Int64Value:
        if trouble.exists() and value.value == 7:
            raise ValueError("not now")
        return value

    def declare(names: Names) -> Flow:
        flow = Flow(names.flow, state_partitions=4, poison="skip")
        source = flow.source(names.inputs, Int64Value).map(moody)
        source.aggregate("digits", key=last_digit, state=Int64Value, fold=add_and_emit).to(
            names.outputs[0], partitions=2
        )
        return flow

    reference, found = pair(declare, log, inputs, redis_url, dying)
    feed(log, inputs, 0, 20)
    reference.until_caught_up()
    kills.arm("published")
    publish = found.engine.publish

    def publish_in_trouble() -> None:
        trouble.touch()
        publish()

    cast("Any", found.engine).publish = publish_in_trouble
    with pytest.raises(EngineLost, match="came out differently"):
        found.until_caught_up()
    assert all(states == {} for states in found.states().values())
    trouble.unlink()
    found.service.leave()
    following = Run(found.flow, log, found.store, dying)
    following.until_caught_up()
    alike(reference, following)
