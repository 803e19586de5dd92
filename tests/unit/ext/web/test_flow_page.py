"""Goal: the page of a flow has batches by step, its last error, what event time waits for, and its open plan.

Method: a real server in front of flows in memory, with the history of a service that ran beside it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import errors
from sqe_chain.errors import Unavailable
from sqe_chain.ext.web import application
from sqe_chain.ext.web.command import serve
from sqe_chain.ext.web.history import BATCHES, EVENTS, History
from sqe_chain.ext.web.records import TopicRecords
from sqe_chain.ext.web.runbook import entries, entry_of
from sqe_chain.flow import Flow
from sqe_chain.plans.events import COMMIT, PERSIST, PROCESS, PUBLISH, SEAL, Committed, Waiting
from sqe_chain.plans.results import BatchResult
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash
from tests.support.environments import environment_of
from tests.unit.ext.explain.test_trace import waiting
from tests.unit.ext.web.test_pages import Client, client, totals

__all__ = ["client"]


@contextmanager
def page_of(service: Rehearsal, history: History | None = None, *, loaded: bool = True) -> Iterator[Client]:
    flows = {service.flow.name: service.flow} if loaded else {}
    with serve(service.log, service.stores, flows, "127.0.0.1", 0, history=history) as port:
        yield Client(port, service)


def committed(plan: int, inputs: int = 1) -> Committed:
    return Committed.of(BatchResult(worked=True, plan=plan, inputs=inputs, batch_ms=7))


class Clock:
    """Each step takes as many seconds as its number."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, history: History, number: int) -> None:
        history.step(number, "before")
        self.now += number
        history.step(number, "after")


def test_steps_belong_to_their_batch_though_it_is_committed_during_the_next_one() -> None:
    clock = Clock()
    history = History(clock, lambda: 5)
    for number in (PROCESS, PROCESS, SEAL, PUBLISH):
        clock.run(history, number)
    clock.run(history, PROCESS)
    history.event(committed(1))
    for number in (SEAL, COMMIT):
        clock.run(history, number)
    history.event(committed(2))
    first, second = history.batches()
    assert (first["number"], first["steps"]) == (1, {"process": 6_000, "seal": 4_000, "publish": 5_000})
    assert (second["number"], second["steps"]) == (2, {"process": 3_000, "seal": 4_000, "commit": 7_000})


def test_a_history_is_bounded() -> None:
    clock = Clock()
    history = History(clock, lambda: 5)
    for number in range(1_000):
        clock.run(history, PROCESS)
        clock.run(history, SEAL)
        history.event(committed(number))
    assert [batch["number"] for batch in history.batches()] == list(range(1_000 - BATCHES, 1_000))
    assert len(history.events()) == EVENTS


def test_batches_of_the_service_beside_have_their_steps_and_its_last_error() -> None:
    service, history = Rehearsal(totals(), partitions={"numbers": 2}), History()
    for number in range(20):
        service.feed("numbers", Int64Value(value=number), partition=number % 2, timestamp_ms=number)
    env = environment_of(service)
    env.observer = history
    run = StagedService(env)
    run.start()
    while run.batch().worked:
        pass
    env.commits.settle()
    with page_of(service, history) as page:
        found = page.get("/api/flows/totals")
        assert sum(batch["records"] for batch in found["batches"]) == 20
        assert {*found["batches"][-1]["steps"]} == {"process", "seal", "publish", "persist", "commit"}
        assert found["last_error"]["entry"] == "PoisonError"  # seven failed in the first attempt
        history.event(Waiting("read the store", "no <b>answer", 5))
        error = page.get("/api/flows/totals")["last_error"]
        assert (error["entry"], error["text"]) == ("Unavailable", "waiting to read the store: no <b>answer")
        assert "did not answer" in page.get(f"/api/runbook/{error['entry']}")["text"]
        page.get("/api/runbook/Nothing", 404)


def test_without_a_service_beside_the_newest_skipped_record_is_the_last_error(client: Client) -> None:
    found = client.get("/api/flows/totals")
    assert found["batches"] == []
    error = found["last_error"]
    assert (error["error"], error["entry"]) == ("ValueError", "PoisonError")
    assert re.fullmatch(r"numbers\[[01]\]@\d+", error["record"])
    place = error["record"].replace("[", "/").replace("]@", "/")
    assert client.get(f"/api/flows/totals/why-not/{place}")["verdict"] == "skipped"


def test_errors_of_skipped_records_have_their_entry_of_the_runbook_or_that_of_functions() -> None:
    assert len(entries()) > 25
    assert {name for name in entries() if not hasattr(errors, name)} == set()
    assert {name: entry_of(name) for name in ("OutputTooLarge", "WrongChecksum", "KeyError")} == {
        "OutputTooLarge": "OutputTooLarge",
        "WrongChecksum": "PoisonError",
        "KeyError": "PoisonError",
    }
    assert all(text and "### " not in text for text in entries().values())


def test_what_event_time_waits_for_is_named() -> None:
    service = waiting()
    with page_of(service) as page:
        found = page.get("/api/flows/hours")["event_time"]
        assert found == {"waiting": 11, "taken_to_ms": 0, "holder": "numbers[1]", "known_to_ms": 0}
    with page_of(service, loaded=False) as page:
        assert page.get("/api/flows/hours")["event_time"]["holder"] is None


def test_a_plan_that_is_not_persisted_everywhere_is_open(client: Client) -> None:
    assert client.get("/api/flows/totals")["open_plan"] is None
    service = client.service
    service.feed("numbers", Int64Value(value=1), partition=0, timestamp_ms=50)
    service.crash(step=PERSIST)
    with pytest.raises(Crash):
        service.batch()
    found = client.get("/api/flows/totals")
    assert found["open_plan"] == found["plan"]


def test_a_trace_is_refused_with_a_text_while_another_one_runs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> None:
        begun.set()
        end.wait(20)
        raise Unavailable("interrupted")

    monkeypatch.setattr(application, "trace", slow)
    path, answers = "/api/flows/totals/stages/total/trace/k0", list[Any]()
    first = threading.Thread(target=lambda: answers.append(client.ask(path)))
    first.start()
    assert begun.wait(20)
    for other in (path, "/api/flows/totals/why-not/numbers/0/0"):
        status, _, body = client.ask(other)
        assert status == 429
        assert json.loads(body)["text"] == "a trace or why-not is under way. Try again when it has ended"
    end.set()
    first.join(20)
    assert "event: failed" in answers[0][2].decode()


def test_a_topic_of_dead_letter_records_is_described_once_however_many_partitions_it_has() -> None:
    flow = Flow("many", poison="dead_letter", dead_letter_partitions=50)
    flow.source("numbers", Int64Value).map(lambda value: value).to("copies", partitions=1)
    service, calls = Rehearsal(flow), list[str]()

    class Counting:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            calls.append(name)
            return getattr(service.log, name)  # type: ignore[no-any-return]

    texts = {
        "flow": "many",
        "topic": "numbers",
        "topic-id": "00" * 16,
        "partition": "0",
        "offset": "0",
        "lane": "0",
    }
    texts |= {"position": "00", "timestamp": "0", "error": "ValueError", "text": "no"}
    headers: list[tuple[str, bytes | None]] = [(f"sqe-{name}", text.encode()) for name, text in texts.items()]
    for partition in range(50):
        service.log.append(
            "many.dead-letters", partition, b"x", headers=headers, timestamp_ms=100 - partition
        )
    log: Any = Counting()
    found = TopicRecords(log, {"many": replace(service.flow)}).dead_letters("many", 10)
    assert [calls.count(name) for name in ("describe", "bounds")] == [1, 1]
    assert [str(record["at"]) for record in found["records"]] == [  # type: ignore[attr-defined]
        f"many.dead-letters[{partition}]@0" for partition in range(9, -1, -1)
    ]
