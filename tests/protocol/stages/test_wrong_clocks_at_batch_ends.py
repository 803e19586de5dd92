"""Goal: one record of a wrong clock costs no other record its window, wherever batches end.

Method: lanes in order, but for records that are months ahead. A naive fold puts each of the others into its own window.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal

Event = dict[str, Any]
BEGIN_MS = 1_700_000_000_000
AHEAD_MS = 120 * 86_400_000
SIZE_MS = 50


def collect(state: Event, event: Event) -> None:
    state.setdefault("n", []).append(event["n"])


def draw_records(draw: random.Random, partitions: int) -> list[tuple[int, int, bool]]:
    """Partition, time, and whether the clock is wrong. The last record of each partition is right."""
    at_ms, records = BEGIN_MS, []
    for _ in range(draw.randrange(5, 30)):
        at_ms += draw.choice((0, 1, 20, 60))
        records.append((draw.randrange(partitions), at_ms, draw.random() < 0.15))
    records += [(partition, at_ms + SIZE_MS, False) for partition in range(partitions)]
    return records


@pytest.mark.parametrize("seed", range(150))
def test_each_other_record_is_in_its_own_window(seed: int) -> None:
    draw = random.Random(seed)
    partitions, cut = draw.choice((1, 2, 3)), draw.choice((0.2, 0.5, 1))
    flow = Flow("clocks", state_partitions=draw.choice((1, 2)))
    stage = flow.source("in", dict, raw=True).windowed(
        "windows", Tumbling(SIZE_MS), key=lambda event: event["k"], state=dict, fold=collect
    )
    stage.map(lambda window: [window.start_ms, *window.state["n"]]).to("out", partitions=1)
    stage.dropped().to("dropped", partitions=1)
    rehearsal = Rehearsal(flow, now_ms=BEGIN_MS + 1_000, partitions={"in": partitions})
    expected: dict[tuple[int, str], list[int]] = defaultdict(list)
    wrong = set()
    for number, (partition, at_ms, ahead) in enumerate(draw_records(draw, partitions)):
        key = f"k{draw.randrange(2)}"
        if ahead:
            wrong.add(number)
        else:
            expected[at_ms // SIZE_MS * SIZE_MS, key].append(number)
        time_ms = at_ms + ahead * (AHEAD_MS + number)
        rehearsal.feed("in", {"n": number, "k": key}, partition=partition, timestamp_ms=time_ms)
        if draw.random() < cut:
            rehearsal.batch()
    rehearsal.run_until_caught_up()
    rehearsal.close_windows()
    given = [window for it in rehearsal.published("out") for window in it.payloads_as(list) if window]
    found = sorted([start_ms, *sorted(numbers)] for start_ms, *numbers in given if not wrong & {*numbers})
    assert found == sorted([start_ms, *numbers] for (start_ms, _), numbers in expected.items())
    assert not rehearsal.published("dropped")
