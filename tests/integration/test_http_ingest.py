"""Goal: what the example endpoint answered with 202 counts once. Method: real requests over loopback, a real Kafka, kills."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from sqe_chain import Flow, run, states
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev.process import spawn, wait_until
from sqe_chain.ext.wal import epoch_of, log_of, sequence_of
from tests.support.ports import own_port
from tests.support.service_processes import ROOT
from tests.support.waiting import PATIENCE_S, eventually

CLIENTS = 16
REQUESTS = 60
"""Of each client, in each life of the server."""


class Endpoint:
    """The endpoint as a process.

    Args:
        directory: of its log, and of what it prints.
        kafka: broker.
        topic: where events go.
        more: further environment variables.
    """

    def __init__(self, directory: Path, kafka: str, topic: str, **more: str) -> None:
        self.port = own_port()
        settings = {
            "INGEST_KAFKA": kafka,
            "INGEST_DIRECTORY": str(directory / "log"),
            "INGEST_TOPIC": topic,
            "PYTHONPATH": str(ROOT),
            **more,
        }
        where = ["--port", str(self.port)]
        command = [sys.executable, "-m", "services.http_server", *where]
        self._output = directory / f"{self.port}.txt"
        self.process = spawn(command, log=self._output, detached=False, environment=settings)

    def wait_until_up(self) -> None:
        assert wait_until(lambda: self._listens() or self.process.poll() is not None, PATIENCE_S)
        assert self.process.poll() is None, self._output.read_text(encoding="utf-8")

    def _listens(self) -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def client(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def wait_until_published(self) -> None:
        with closing(self.client()) as client:
            eventually(lambda: asked(client, "GET", "/health")[1]["waiting"] == 0, "all is published")

    def end(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        self.process.wait(PATIENCE_S)


@contextmanager
def endpoint(directory: Path, kafka: str, topic: str, **more: str) -> Iterator[Endpoint]:
    one = Endpoint(directory, kafka, topic, **more)
    try:
        one.wait_until_up()
        yield one
    finally:
        one.end(signal.SIGKILL)


def asked(
    client: http.client.HTTPConnection, method: str, path: str, body: bytes = b""
) -> tuple[int, Any, http.client.HTTPMessage]:
    client.request(method, path, body)
    answer = client.getresponse()
    content = answer.read()
    try:
        return answer.status, json.loads(content), answer.headers
    except ValueError:
        return answer.status, content.decode(), answer.headers


class Events(msgspec.Struct):
    ids: list[str] = msgspec.field(default_factory=list)


def note(state: Events, event: dict[str, Any]) -> None:
    state.ids.append(event["id"])


def counted(kafka: str, topic: str, store: str) -> dict[Any, list[str]]:
    """What a flow counts: client -> ids of its events."""
    flow = Flow(f"{topic}.counted", state_partitions=2)
    source = flow.source(topic, dict, raw=True)
    once = source.drop_stale("once", sequence=sequence_of, epoch=epoch_of, producer=log_of)
    once.aggregate("events", key=lambda event: event["client"], state=Events, fold=note)
    run(flow, kafka=kafka, store=store, engine="inprocess", once=True)
    with states(flow, "events", store) as found:
        return {key: state.ids for key, state in found.to_dict().items()}


def send(one: Endpoint, life: int, client: int, taken: list[str], enough: threading.Semaphore) -> None:
    """Send events, until the endpoint is gone; every tenth time several at once."""
    with closing(one.client()) as connection:
        for number in range(REQUESTS):
            ids = [f"{life}-{number:04}-{part}" for part in range(3 if number % 10 == 0 else 1)]
            events = [{"client": f"client-{client}", "id": name} for name in ids]
            body = json.dumps(events if len(ids) > 1 else events[0]).encode()
            path = "/batches" if len(ids) > 1 else "/events"
            try:
                status, _, _ = asked(connection, "POST", f"{path}/client-{client}", body)
            except (OSError, http.client.HTTPException):
                return
            assert status == 202
            taken += ids
            enough.release()


@pytest.mark.parametrize("kills", [2])
def test_under_load_and_kills_what_was_taken_counts_once(kafka: str, tmp_path: Path, kills: int) -> None:
    topic = f"ingest-{uuid4().hex[:8]}"
    KafkaLog(kafka).create_topic(topic, 4)
    taken: list[list[str]] = [[] for _ in range(CLIENTS)]
    for life in range(kills + 1):
        enough = threading.Semaphore(0)
        with endpoint(tmp_path, kafka, topic) as one, ThreadPoolExecutor(CLIENTS) as pool:
            sending = [
                pool.submit(send, one, life, client, taken[client], enough) for client in range(CLIENTS)
            ]
            if life < kills:
                for _ in range(CLIENTS * REQUESTS // 3):
                    assert enough.acquire(timeout=PATIENCE_S)
                one.end(signal.SIGKILL)
            for each in sending:
                each.result(PATIENCE_S)
            if life == kills:
                one.wait_until_published()
                one.end(signal.SIGTERM)
    found = counted(kafka, topic, f"sqlite://{tmp_path}/states.db")
    for number, ids in enumerate(taken):
        listed = found[f"client-{number}"]
        assert len(listed) == len(set(listed)), "something counts twice"
        assert set(ids) <= set(listed), f"lost: {set(ids) - set(listed)}"
        assert listed == sorted(listed), "the order of a client's events has changed"


def test_what_cannot_be_taken_is_refused_with_the_right_status(kafka: str, tmp_path: Path) -> None:
    topic = f"ingest-{uuid4().hex[:8]}"
    KafkaLog(kafka).create_topic(topic, 4)
    with endpoint(tmp_path, kafka, topic) as one, closing(one.client()) as client:
        for body in (b"", b"{", b'{"a": NaN}', b"[" * 5_000, b"\xff"):
            assert asked(client, "POST", "/events/key", body)[0] == 400, body
        assert asked(client, "POST", "/batches/key", b'{"a": 1}')[0] == 400
        assert asked(client, "POST", "/batches/key", b"[{]")[0] == 400
        large = json.dumps("x" * 1_100_000).encode()
        status, answer, _ = asked(client, "POST", "/events/key", large)
        assert (status, "max_record_bytes" in str(answer)) == (413, True)
        assert asked(client, "GET", "/events/key")[0] == 405
        assert asked(client, "POST", "/batches/key", b"[]")[1] == {"taken": 0}
        status, answer, _ = asked(client, "POST", "/events/key", b'{"screws": 3}')
        assert (status, answer["sequence"]) == (202, 0)
        assert asked(client, "GET", "/health")[0] == 200


def test_back_pressure_is_503_with_a_time_to_try_again(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{own_port()}"
    with (
        endpoint(tmp_path, nobody, "events", INGEST_MAX_BYTES="65536") as one,
        closing(one.client()) as client,
    ):
        answers: list[tuple[int, Any, http.client.HTTPMessage]] = []
        while not answers or answers[-1][0] == 202:
            answers.append(asked(client, "POST", "/events/key", json.dumps("x" * 1_000).encode()))
        status, answer, headers = answers[-1]
        assert (status, headers["Retry-After"]) == (503, "5")
        assert "is full" in answer["error"]
        assert len(answers) > 20
        eventually(lambda: asked(client, "GET", "/health")[0] == 503, "it reports that Kafka is away")
        assert asked(client, "GET", "/health")[1]["waiting"] == len(answers) - 1
