"""Several engines, one result: what a flow publishes and stores does not depend on the engine that runs its tasks.

Every flow here runs twice on the same real input, once in one process and once spread, under names of its own. Then all
that it published (payloads, chains, positions, previous positions) and stored is compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from pyspark.sql import DataFrame, SparkSession

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.spark import SparkEngine, Tuning
from sqe_chain.engines.spark.tasks import ARGUMENTS
from sqe_chain.engines.workers import Team, WorkersEngine
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import ConfigurationError, PoisonError, Unavailable
from sqe_chain.features.noting import CodecNotes
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Engine
from sqe_chain.ports import StateStore
from tests.support import engine_runs
from tests.support.engine_runs import (
    FLOWS,
    INPUT_PARTITIONS,
    Declare,
    Made,
    Names,
    Run,
    comparable_events,
    feed,
    in_order,
    in_process,
    sending_poison_away,
    skipping,
    stateless,
    two_stages,
    two_stages_unshuffled,
    without_junk,
)

TUNINGS = {
    "small": Tuning(),
    "large": Tuning(inline_bytes=0, records_per_task=1, small_records=0),
    "swollen": Tuning(small_bytes=1),
}
"""Spark engines for which every batch is small; is large and cached; or is large although it looked small."""


@pytest.fixture(params=["workers", "small", "large"])
def spread(request: pytest.FixtureRequest) -> Made:
    """Engines that spread the tasks: over worker processes, and over those of Spark."""
    if request.param == "workers":
        team: Team = request.getfixturevalue("team")
        return lambda flow, log, stores: WorkersEngine(flow.compile(), log, stores, team)
    spark: SparkSession = request.getfixturevalue("spark")
    return lambda flow, log, stores: SparkEngine(
        flow.compile(), log, stores, spark, tuning=TUNINGS[request.param]
    )


@pytest.fixture
def inputs(log: KafkaLog) -> tuple[str, str]:
    prefix = f"in-{uuid.uuid4().hex[:8]}"
    topics = f"{prefix}.one", f"{prefix}.two"
    for topic in topics:
        log.create_topic(topic, INPUT_PARTITIONS)
    return topics


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[[str], StateStore]:
    """A SQLite file for each run; workers on the same machine can open it."""
    return lambda name: open_store(f"sqlite://{tmp_path}/{name}.db")


# --- the tests -----------------------------------------------------------------------------------


EVERY_WAY = [(way, declare) for declare in FLOWS for way in ("workers", "small", "large")]
SWOLLEN = [("swollen", declare) for declare in (two_stages, two_stages_unshuffled)]


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("spread", "declare"),
    [*EVERY_WAY, *SWOLLEN],
    indirect=["spread"],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_engines_publish_and_store_the_same(
    log: KafkaLog,
    inputs: tuple[str, str],
    make_store: Callable[[str], StateStore],
    spread: Made,
    declare: Declare,
) -> None:
    names = [Names(f"{who}-{uuid.uuid4().hex[:8]}", inputs) for who in ("a", "b")]
    decodable = declare in (sending_poison_away, skipping, stateless)
    feed(log, inputs, 0, 100) if decodable else without_junk(log, inputs)
    runs = [
        Run(declare(names[0]), log, make_store("a"), in_process),
        Run(declare(names[1]), log, make_store("b"), spread),
    ]
    for run in runs:
        run.until_caught_up()
    feed(log, inputs, 101, 49)
    for run in runs:
        run.until_caught_up()
        run.until_caught_up(at_end=True)

    reference, found = runs
    assert len(found.published()) > 0
    assert found.published() == reference.published()
    assert found.states() == reference.states()
    for node in found.flow.compile().outputs:
        lanes: dict[object, bytes] = {}
        for lane, position in in_order(log, node.topic):
            assert lanes.get(lane, b"") < position, "a lane lost its order"
            lanes[lane] = position
        assert lanes, f"nothing was published to {node.topic}"
    assert [event for event in comparable_events(found) if event[0] != "notice"] == [
        event for event in comparable_events(reference) if event[0] != "notice"
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize("server", ["redis", "cassandra"])
def test_a_store_on_the_network_serves_driver_and_workers(
    request: pytest.FixtureRequest, log: KafkaLog, inputs: tuple[str, str], spread: Made, server: str
) -> None:
    store = open_store(request.getfixturevalue(f"{server}_url"))
    names = [Names(f"{who}-{uuid.uuid4().hex[:8]}", inputs) for who in ("a", "b")]
    runs = [Run(two_stages(names[0]), log, store, in_process)]
    runs.append(Run(two_stages(names[1]), log, store, spread))
    without_junk(log, inputs)
    for run in runs:
        run.until_caught_up()
    assert runs[1].published() == runs[0].published()
    assert runs[1].states() == runs[0].states()


@pytest.mark.few(1)
def test_an_error_in_a_task_comes_back_by_its_own_name(
    log: KafkaLog, inputs: tuple[str, str], make_store: Callable[[str], StateStore], spread: Made
) -> None:
    """In the first level and after two shuffles."""
    flow = engine_runs.poisoned(Names(f"a-{uuid.uuid4().hex[:8]}", inputs), "stop")
    run = Run(flow, log, make_store("a"), spread)
    feed(log, inputs, 17, 1)
    with pytest.raises(PoisonError, match="seventeen") as caught:
        run.service.batch()
    assert f"[{partition_of(b'k3', INPUT_PARTITIONS)}]@0" in str(caught.value)
    assert f"{engine_runs.__file__}:" in str(caught.value), "the line of the user's own code"
    assert "in add_but_17 (aggregate 'digits'" in str(caught.value)
    feed(log, inputs, 13, 1)
    with pytest.raises(PoisonError, match="thirteen"):
        run.service.batch()


@pytest.mark.few(1)
def test_an_outage_of_a_function_in_a_task_is_waited_for(
    log: KafkaLog, inputs: tuple[str, str], make_store: Callable[[str], StateStore], spread: Made
) -> None:
    """No record is skipped for it: the error reaches the service as `Unavailable`."""
    run = Run(engine_runs.asking(Names(f"a-{uuid.uuid4().hex[:8]}", inputs)), log, make_store("a"), spread)
    clock: Any = run.service.env.clock
    clock.waits = 97  # of 100, after which it is asked to stop
    feed(log, inputs, 17, 1)
    with pytest.raises(Unavailable, match=r"@0: NoAnswer: the registry does not answer"):
        run.service.batch()
    assert [event.name for event in run.observer.events].count("waiting") == 3


@pytest.mark.few(1)
def test_what_codecs_have_met_in_tasks_is_in_the_plan(
    log: KafkaLog, inputs: tuple[str, str], make_store: Callable[[str], StateStore], spread: Made
) -> None:
    run = Run(engine_runs.meeting(Names(f"m-{uuid.uuid4().hex[:8]}", inputs)), log, make_store("m"), spread)
    feed(log, inputs, 0, 10)
    run.service.batch()
    last = run.service.last
    assert last is not None
    assert CodecNotes.of(last).notes.keys() == {f"digit {digit}" for digit in range(10)}


def test_nothing_stays_cached_after_a_batch_or_an_error(
    log: KafkaLog, inputs: tuple[str, str], make_store: Callable[[str], StateStore], spark: SparkSession
) -> None:
    """While a batch runs, results are cached: otherwise this would prove nothing."""
    frames: list[DataFrame] = []

    class Watched(SparkEngine):
        def publish(self) -> None:
            frames.extend(self._frames.values())
            assert all(frame.storageLevel.useMemory for frame in frames)
            super().publish()

        def _spread(self, *arguments: Any) -> Any:
            try:
                return super()._spread(*arguments)
            finally:
                frames.extend(self._frames.values())

    def large(flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> Engine:
        return Watched(flow.compile(), log, stores, spark, tuning=Tuning(inline_bytes=0, small_records=0))

    feed(log, inputs, 20, 10)
    Run(two_stages(Names(f"a-{uuid.uuid4().hex[:8]}", inputs)), log, make_store("a"), large).until_caught_up()
    poison = Run(
        engine_runs.poisoned(Names(f"b-{uuid.uuid4().hex[:8]}", inputs), "stop"), log, make_store("b"), large
    )
    feed(log, inputs, 17, 1)
    with pytest.raises(PoisonError, match="seventeen"):
        poison.service.batch()
    assert len(frames) >= 6
    assert not any(frame.storageLevel.useMemory for frame in frames)


@pytest.mark.parametrize("property_bytes", [0, 1 << 20])
def test_small_batches_are_one_plan_if_their_arguments_fit_a_property(
    log: KafkaLog,
    inputs: tuple[str, str],
    make_store: Callable[[str], StateStore],
    spark: SparkSession,
    property_bytes: int,
) -> None:
    """Either way each batch carries out its own task, and not that of another batch."""
    plans: list[DataFrame] = []

    class Watched(SparkEngine):
        def _reading(self, *arguments: Any) -> DataFrame:
            plans.append(super()._reading(*arguments))
            return plans[-1]

    def small(flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> Engine:
        return Watched(flow.compile(), log, stores, spark, tuning=Tuning(property_bytes=property_bytes))

    without_junk(log, inputs)
    run = Run(stateless(Names(f"a-{uuid.uuid4().hex[:8]}", inputs)), log, make_store("a"), small)
    beside = Run(stateless(Names(f"b-{uuid.uuid4().hex[:8]}", inputs)), log, make_store("b"), in_process)
    for first in (0, 20, 40):
        feed(log, inputs, first, 10)
        run.until_caught_up()
        beside.until_caught_up()
    assert run.published() == beside.published()
    assert len(plans) == (1 if property_bytes else 3)
    assert spark.sparkContext.getLocalProperty(ARGUMENTS) is None, "other jobs do not carry it"


def test_a_warm_up_changes_nothing(
    log: KafkaLog, inputs: tuple[str, str], make_store: Callable[[str], StateStore], spark: SparkSession
) -> None:
    feed(log, inputs, 0, 10)
    names, store = Names(f"a-{uuid.uuid4().hex[:8]}", inputs), make_store("a")

    def warm(flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> Engine:
        return SparkEngine(flow.compile(), log, stores, spark)

    run = Run(two_stages(names), log, store, warm)
    states, home = run.states(), store.home(run.flow.name)
    commits = log.committed(run.flow.name, [(topic, 0) for topic in inputs])
    run.engine.warm_up()
    assert (run.states(), store.home(run.flow.name)) == (states, home)
    assert log.committed(run.flow.name, [(topic, 0) for topic in inputs]) == commits
    assert run.published() == []
    run.until_caught_up()
    assert run.published() != [], "otherwise this would prove nothing"


def test_a_flow_that_cannot_be_sent_is_refused_before_anything_runs(
    log: KafkaLog, inputs: tuple[str, str], spark: SparkSession
) -> None:
    flow = Flow("unsendable")
    flow.source(inputs, Int64Value).map(lambda value: (spark.version, value)[1]).to("t", partitions=1)
    with pytest.raises(ConfigurationError, match="cannot be sent"):
        SparkEngine(flow.compile(), log, {}, spark)
