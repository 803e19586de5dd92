"""Stages that go by event time, against the aggregate without a shuffle over the same messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.backlog import WARM_UP, Backlog
from benchmarks.checks import check_count, check_totals
from benchmarks.flows import ALERT_EACH, PARTITIONS, aggregation, joined, windows
from services._proto.fastening_pb2 import LineTotal
from sqe_chain.adapters import open_store
from sqe_chain.stages import results_in

if TYPE_CHECKING:
    from benchmarks.__main__ import Bench
    from benchmarks.service import Run, Timed

MIB = 1 << 20
CHANGE_MS = 100
"""Event time from one change of the table to the next; from one message to the next it is 1 ms."""


def compare_windows(bench: Bench) -> None:
    """Sums by key and minute, retained for an hour."""
    bench.warm_up(windows("bench-warm-windows", "bench.warm"))

    def ours(number: int) -> Run:
        name = f"bench-windows-{number}"
        run = bench.ours(windows(name, bench.backlog.topic))
        _check_windows(bench.redis, name, bench.backlog)
        return run

    bench.compare("windows of a minute, by key", ours, _aggregate(bench, "windows"), 0.67)


def compare_joins(bench: Bench) -> None:
    """Each message with a table's value for its key; one result of a hundred is published."""
    warm = _table(bench, "bench.warm", WARM_UP)
    bench.warm_up(joined("bench-warm-join", "bench.warm", warm.topic, "bench.warm-alerts"))
    table = _table(bench, bench.backlog.topic, bench.backlog.messages)

    def ours(number: int) -> Run:
        target = f"bench.alerts-{number}"
        flow = joined(f"bench-join-{number}", bench.backlog.topic, table.topic, target)
        run = bench.ours(flow, inputs=bench.backlog.messages + table.messages)
        check_count(bench.bootstrap, target, -(-bench.backlog.messages // ALERT_EACH))
        bench.drop(target)
        return run

    bench.compare("join with a table", ours, _aggregate(bench, "join"), 0.5)


def memory(bench: Bench) -> None:
    """What windows take while a backlog is worked off in batches, and while one four times as long is."""
    bench.warm_up(windows("bench-warm-memory", "bench.warm"))
    short = Backlog("bench.short", bench.backlog.messages // 4, bench.backlog.keys)
    bench.topic(short.topic)
    short.write(bench.bootstrap)
    for backlog in (short, bench.backlog):
        name = f"bench-memory-{backlog.messages}"
        run = bench.ours(windows(name, backlog.topic), inputs=backlog.messages)
        _check_windows(bench.redis, name, backlog)
        bench.table.add_row(
            f"memory, windows over {backlog.messages:,} messages",
            f"{run.spent.peak_rss / MIB:,.0f} MiB",
            "",
            "",
            "",
            f"all Python processes, resident; {len(run.notes.inputs)} batches of at most {max(run.notes.inputs):,}",
        )


def _aggregate(bench: Bench, beside: str) -> Callable[[int], Timed]:
    """The aggregate, in the same round."""

    def run(number: int) -> Timed:
        name = f"bench-beside-{beside}-{number}"
        found = bench.ours(aggregation(name, bench.backlog.topic))
        check_totals(bench.redis, name, bench.backlog)
        return found.timed

    return run


def _table(bench: Bench, topic: str, messages: int) -> Backlog:
    """The changes of a table, written: as long as the messages go on, and at last one for each key after all of them."""
    changes = Backlog(
        f"{topic}.table", messages // CHANGE_MS + bench.backlog.keys, bench.backlog.keys, CHANGE_MS
    )
    bench.topic(changes.topic)
    changes.write(bench.bootstrap)
    return changes


def _check_windows(url: str, flow: str, backlog: Backlog) -> None:
    """The windows of every key, together, have the events and the sum that it should have."""
    store, events, sums = open_store(url), Counter[bytes](), Counter[bytes]()
    for part in range(PARTITIONS):
        rows = {row: content for row, content in store.scan(flow, "per-minute", part) if content is not None}
        for key, _, total in results_in(rows, LineTotal):
            events[key] += total.events
            sums[key] += total.fastened
    assert {key: (events[key], sums[key]) for key in events} == backlog.expected()
