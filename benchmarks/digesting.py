"""`python -m benchmarks.digesting`: what it costs that a plan has digests of what its batch gives, and what a first skip costs.

No server: what tasks do with records, from reading to outputs and changed states. Processes take turns, half of them with digests
that look at nothing. A service publishes and stores besides, so its share is smaller.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.envelopes import NOW_MS, Record
from benchmarks.folding import records
from benchmarks.machine import facts
from benchmarks.peers import flows
from sqe_chain.chain import root_position
from sqe_chain.engines.task import collect_rarely
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.flow import Flow
from sqe_chain.ports import Header, Range
from sqe_chain.task import level, results
from sqe_chain.task.event_times import EventTimes
from sqe_chain.task.reading import Reading
from sqe_chain.task.results import Job, Portion
from sqe_chain.task.states import Claim, Transition
from sqe_chain.testing import Rehearsal

WORKLOADS: dict[str, Callable[..., Flow]] = {"W1": flows.flat_map, "W2": flows.fold}
CARRIERS = ("JSON", "envelopes")
TOPIC, TOPIC_ID, BLOCK, REPEATS = "in", b"i" * 16, 1_000, 12
SKIPPING, SKIP_ROUNDS = 20_000, 5


@dataclass(slots=True)
class Given(Record):
    """A record of the one partition, by the key of its robot."""

    robot: bytes

    def topic(self) -> str:
        """See `Message`."""
        return TOPIC

    def partition(self) -> int:
        """See `Message`."""
        return 0

    def key(self) -> bytes:  # type: ignore[override]
        """See `Message`."""
        return self.robot


class _Empty:
    """A store without states."""

    def read(self, *where: Any) -> tuple[Header, list[None], Header]:  # noqa: ANN401 - see `StateStore`
        header = Header(1, "run", 0, "0")
        return header, [None] * len(where[-1]), header


def run_tasks(workload: str, carrier: str) -> float:
    """Nanoseconds of processor time a record takes, in the best of several repetitions."""
    declared = WORKLOADS[workload]("digesting", TOPIC, "out", raw=carrier == "JSON")
    if workload == "W2":
        declared.state_partitions = 1
    flow, values, store = declared.compile(), records(), _Empty()
    codec: Any = flow.sources[0].codec
    upstream = OutputTemplate(lane=0, topic="raw", topic_id=b"r" * 16, partition=0, output="up/in")
    given = []
    for at, value in enumerate(values):
        key, data = value.robot.encode(), msgspec.json.encode(value)
        if carrier == "envelopes":
            position = root_position(1, at)
            data = upstream.encode(b"", at, 1, 0, 1, position, NOW_MS + at, key, codec.type_name, [data])[0]
        given.append(Given(at, data, key))
    blocks: Any = [given[begin : begin + BLOCK] for begin in range(0, len(given), BLOCK)]
    stores: Any = lambda _stage: store  # noqa: E731 - one line
    job = Job(Transition(flow.name, Claim(1, "run"), 0, "0"), NOW_MS, in_place=workload == "W2")
    best = float("inf")
    collect_rarely()
    for _ in range(REPEATS):
        marks = PartitionMarks(TOPIC, TOPIC_ID, 0)
        portion = Portion(Range(TOPIC, TOPIC_ID, 0, 0, len(given)), marks, times=EventTimes(0))
        reading = Reading(flow, job, stores)
        began = time.process_time_ns()
        for _block in (*reading.read(portion, blocks), *reading.finish()):
            pass
        best = min(best, (time.process_time_ns() - began) / len(given))
        if reading.report.fresh != len(given) or reading.report.mispartitioned:
            raise AssertionError("each record counts once, in its own state partition")
    return best


def look_at_nothing() -> None:
    """Replace the digests of outputs and states by empty ones, in this process."""
    module: Any
    for module, name, nothing in (
        (results, "outputs_digests", lambda _records: {}),
        (level, "rows_digest", lambda _rows: 0),
    ):
        if not hasattr(module, name):
            raise AssertionError(f"{module.__name__} has no {name}")
        setattr(module, name, nothing)


def first_skips(failing: int) -> float:
    """Seconds of processor time of a batch in which a fold newly fails on some inputs; the median of several."""

    def fold(state: dict[str, int], value: dict[str, int]) -> None:
        if value["bad"]:
            raise ValueError
        state["n"] = state.get("n", 0) + 1

    taken = []
    for _ in range(SKIP_ROUNDS):
        flow = Flow("skipping", state_partitions=1, poison="skip")
        source = flow.source(TOPIC, dict, raw=True)
        source.aggregate("sums", key=lambda value: str(value["n"] % 1_000), state=dict, fold=fold)
        rehearsal = Rehearsal(flow, partitions={TOPIC: 1})
        rehearsal.start()
        for number in range(SKIPPING):
            bad = int(number % (SKIPPING // max(failing, 1)) == 0 and failing > 0)
            rehearsal.feed(TOPIC, {"n": number, "bad": bad})
        began = time.process_time()
        rehearsal.batch()
        taken.append(time.process_time() - began)
    return median(taken)


def compare(workload: str, carrier: str, rounds: int) -> list[tuple[float, float]]:
    """Nanoseconds a record takes without and with digests, of each round; in every second round the other one begins."""
    pairs = []
    for number in range(rounds):
        costs = {}
        for state in (("off", "on"), ("on", "off"))[number % 2]:
            command = [sys.executable, "-m", "benchmarks.digesting", "--run", f"{workload} {carrier} {state}"]
            costs[state] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        pairs.append((costs["off"], costs["on"]))
    return pairs


def show(out: Console, rounds: int) -> None:
    """Print both tables."""
    for name, fact in facts().items():
        out.print(f"{name}: {fact}")
    table = Table("workload", "without ns", "with ns", "ratio", "target", title="digests, a record")
    for workload, carrier in product(WORKLOADS, CARRIERS):
        pairs = compare(workload, carrier, rounds)
        without, having = (median(side) for side in zip(*pairs, strict=True))
        ratio = median(off / on for off, on in pairs)
        table.add_row(
            f"{workload}, {carrier}", f"{without:,.0f}", f"{having:,.0f}", f"{ratio:.3f}", ">= 0.97"
        )
    out.print(table)
    table = Table(
        "newly failing", "ms", "to a batch without", title=f"a batch of {SKIPPING:,} with poison='skip'"
    )
    sound_s = first_skips(0)
    for failing in (0, 1, 10):
        taken_s = first_skips(failing)
        table.add_row(str(failing), f"{taken_s * 1e3:,.0f}", f"{taken_s / sound_s:.2f}")
    out.print(table)


def main(
    rounds: Annotated[int, typer.Option(help="Runs of each, in turn.")] = 5,
    run: Annotated[
        str, typer.Option(help="One run: workload, carrier, and whether digests are on or off.")
    ] = "",
) -> None:
    """Measure, without servers."""
    if not run:
        show(Console(highlight=False, soft_wrap=True), rounds)
        return
    workload, carrier, state = run.split()
    if state == "off":
        look_at_nothing()
    print(run_tasks(workload, carrier))


if __name__ == "__main__":
    typer.run(main)
