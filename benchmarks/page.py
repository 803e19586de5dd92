"""What the page costs the service beside it: its throughput without the page, with it, and with event streams open.

The service folds a backlog in this process. The readers of the streams are a process of their own.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.backlog import Backlog
from benchmarks.checks import check_totals
from benchmarks.flows import PARTITIONS, aggregation
from benchmarks.service import Service, Timed
from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer, RedisServer
from sqe_chain.ext.web.command import serve
from sqe_chain.ext.web.history import History
from sqe_chain.runtime.observers import Observers

ROOT = Path(__file__).resolve().parent.parent
STREAMS = (None, 1_000)
"""Event streams of each side; None: there is no page."""
RECORDS = 50_000
"""Of one batch."""


def page(out: Console, kafka: KafkaServer, redis: RedisServer, messages: int, rounds: int) -> None:
    """Measure all sides in turn, and print their throughput and its ratio to that without the page.

    Args:
        out: where the table goes.
        kafka: the brokers.
        redis: the store.
        messages: of the backlog.
        rounds: how often each side runs.
    """
    backlog = Backlog("bench.page", messages, 1_000)
    KafkaLog(kafka.bootstrap).create_topic(backlog.topic, PARTITIONS)
    backlog.write(kafka.bootstrap)
    sides: dict[int | None, list[Timed]] = {streams: [] for streams in STREAMS}
    for number in range(rounds + 1):  # the first one warms up
        for streams in STREAMS:
            timed = fold(f"bench-page-{number}-{streams}", backlog, kafka.bootstrap, redis.url, streams)
            if number:
                sides[streams].append(timed)
                out.print(
                    f"  round {number}, {streams} streams: {timed.seconds:.2f} s, {timed.cpu_s:.2f} s of processor",
                    style="dim",
                )
    table = Table(
        "side",
        "records/s",
        "ratio",
        "processor time",
        "ratio",
        title="what the page costs the service beside it",
    )
    for streams, side in sides.items():
        pairs = list(zip(sides[None], side, strict=True))
        name = "without the page" if streams is None else f"with the page, {streams:,} event streams"
        rate, cpu = (
            messages / median(one.seconds for one in side),
            median(one.cpu_s for one in side) / messages * 1e6,
        )
        table.add_row(
            name,
            f"{rate / 1e3:,.0f} k/s",
            shown([plain.seconds / one.seconds for plain, one in pairs]),
            f"{cpu:.2f} µs",
            shown([plain.cpu_s / one.cpu_s for plain, one in pairs]),
        )
    out.print(table)


def shown(ratios: list[float]) -> str:
    """The median of ratios, and all of them."""
    return f"{median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"


def fold(name: str, backlog: Backlog, bootstrap: str, redis: str, streams: int | None) -> Timed:
    """What a service spends to fold the backlog."""
    service = Service(aggregation(name, backlog.topic), None, bootstrap, redis, RECORDS)
    with ExitStack() as stack:
        if streams is not None:
            history, flow = History(), service.protocol.env.flow
            service.protocol.env.observer = Observers(service.notes, history)
            port = stack.enter_context(
                serve(
                    KafkaLog(bootstrap),
                    {"": open_store(redis)},
                    {flow.name: flow},
                    "127.0.0.1",
                    0,
                    history=history,
                )
            )
            stack.enter_context(readers(port, streams))
        run = service.work_off()
    assert sum(run.notes.inputs) == backlog.messages
    check_totals(redis, name, backlog)
    return run.timed


@contextmanager
def readers(port: int, count: int) -> Iterator[None]:
    """Read event streams of the page in another process, from when each has got its first event."""
    command = [sys.executable, "-m", "benchmarks.page", str(port), str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


def read(port: int, count: int) -> None:
    """Read event streams until this process is killed."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port), 60)
        connection.sendall(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        selector.register(connection, selectors.EVENT_READ, [])
    waiting = count
    while waiting:
        waiting -= _receive(selector)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        _receive(selector)


def _receive(selector: selectors.BaseSelector) -> int:
    """Take what has come. Returns how many streams got their first event."""
    begun = 0
    for key, _ in selector.select(1.0):
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        block = connection.recv(1 << 16)
        assert block, "the page has closed a stream"
        if not key.data and b"data: " in block:
            key.data.append(True)
            begun += 1
    return begun


if __name__ == "__main__":
    read(int(sys.argv[1]), int(sys.argv[2]))
