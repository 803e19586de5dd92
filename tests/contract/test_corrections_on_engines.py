"""Goal: on every engine each root counts by the corrected functions alone, with what had failed and was released.

Method: two republishers and a reader on a real broker, in processes, workers and Spark. Both are corrected; one sum over numbers judges.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sqe_chain import Flow, states
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.flow import Context, Timer
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.ports import StateStore
from sqe_chain.protocol.without_plans import Republisher
from tests.support.engine_runs import Made, Run

COUNT, SEAM_CLEAN, SEAM_KEYED, STEP_MS = 60, 24, 36, 1_000
BEGIN_MS = 1_700_000_000_000


def fails(number: int, revision: int) -> bool:
    return number % 7 == revision


def code_of(revision: int, *, fixed: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def note(value: dict[str, Any]) -> dict[str, Any]:
        if fails(value["n"], revision) and not fixed and not value["made"]:
            raise ValueError(value["n"])
        return {"n": value["n"], "made": [*value["made"], revision]}

    return note


def republisher(name: str, source: str, target: str, revision: int, *, fixed: bool = False) -> Flow:
    flow = Flow(name, poison="dead_letter")
    values = flow.source(source, dict, raw=source.endswith(".raw")).map(code_of(revision, fixed=fixed))
    # Each revision gives a number to another partition.
    values.to(target, key=lambda value: str(value["n"] + revision), partitions=2, revision=revision)
    return flow


def hold(state: dict[str, Any], value: dict[str, Any], context: Context) -> None:
    state.setdefault("held", []).append(value)
    context.set_timer(context.timestamp_ms + 2 * STEP_MS)


def give(state: dict[str, Any], _: Timer) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = state.pop("held", [])
    return given


def add(state: dict[str, Any], value: dict[str, Any]) -> None:
    state.setdefault("seen", []).append(value)


def reader(name: str, source: str) -> Flow:
    """It keeps what waits for a timer, and what has come out of it."""
    flow = Flow(name, state_partitions=2)
    kept = flow.source(source, dict).aggregate("held", key=_key, state=dict, fold=hold, on_timer=give)
    kept.aggregate("all", key=_key, state=dict, fold=add)
    return flow


def _key(value: dict[str, Any]) -> str:
    return str(value["n"] % 3)


def counted(run: Run, store: str) -> list[tuple[int, list[int]]]:
    found: list[dict[str, Any]] = []
    for stage, member in (("held", "held"), ("all", "seen")):
        with states(run.flow, stage, store) as stored:
            for state in stored.values():
                found += state.get(member, [])
    return sorted((value["n"], value["made"]) for value in found)


def feed(log: KafkaLog, topic: str, numbers: range) -> None:
    writer = log.writer()
    writer.connect([topic])
    for number in numbers:
        value = json.dumps({"n": number, "made": []}).encode()
        writer.write([(topic, number % 2, None, value, None, BEGIN_MS + number * STEP_MS)])
    writer.flush()
    writer.close()


@pytest.mark.few(3)
def test_each_root_counts_by_the_corrected_functions(log: KafkaLog, tmp_path: Path, engine: Made) -> None:
    name = f"corrected-{uuid.uuid4().hex[:8]}"
    raw, good, fine = f"{name}.raw", f"{name}.good", f"{name}.fine"
    log.create_topic(raw, 2)

    def store(flow: str) -> StateStore:
        return open_store(f"sqlite://{tmp_path}/{flow}.db")

    def deployed(flow: Flow) -> Run:
        run = Run(flow, log, store(flow.name), engine)
        run.until_caught_up()
        run.until_caught_up(at_end=True)
        return run

    def corrected(before: Run, flow: Flow, seam: int) -> None:
        before.service.leave()
        made = engine(flow, log, {})
        env = replace(before.service.env, flow=flow.compile(), engine=made)
        service = Republisher(env)
        service.correct(BEGIN_MS + seam * STEP_MS)
        service.leave()

    where = f"sqlite://{tmp_path}/{name}.totals.db"
    feed(log, raw, range(COUNT - 10))
    clean = deployed(republisher(f"{name}.clean", raw, good, 1))
    keyed = deployed(republisher(f"{name}.keyed", good, fine, 1))
    totals = deployed(reader(f"{name}.totals", fine))
    assert counted(totals, where) == [(n, [1, 1]) for n in range(COUNT - 10) if not fails(n, 1)]

    corrected(clean, republisher(f"{name}.clean", raw, good, 2), SEAM_CLEAN)
    feed(log, raw, range(COUNT - 10, COUNT))
    clean = deployed(republisher(f"{name}.clean", raw, good, 2))
    keyed.until_caught_up()
    corrected(keyed, republisher(f"{name}.keyed", good, fine, 2), SEAM_KEYED)
    letters = FailedLetters(
        republisher(f"{name}.clean", raw, good, 2, fixed=True).compile(),
        log,
        lambda: BEGIN_MS,
        lambda: uuid.uuid4().hex,
    )
    released = letters.release()
    failed = [n for n in range(COUNT) if fails(n, 2 if n >= SEAM_CLEAN else 1)]
    assert released.released == len(failed)
    deployed(republisher(f"{name}.keyed", good, fine, 2)).service.leave()

    totals.service.leave()
    env = totals.service.env
    Rebuild(env, lambda flow: engine(flow, log, env.ports.stores)).run()  # type: ignore[arg-type]
    totals = deployed(reader(f"{name}.totals", fine))
    # What was released later is made by the code of now, also before the seams.
    assert counted(totals, where) == [
        (n, [2 if n >= SEAM_CLEAN or n in failed else 1, 2 if n >= SEAM_KEYED or n in failed else 1])
        for n in range(COUNT)
    ]
    totals.service.leave()
