"""Goal: each table of growth varies one thing, over the records it claims. Method: made-up rounds, no processes."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.growth.cases import BASE, Case, Comparison, Growth, comparisons
from benchmarks.growth.child import Figures
from benchmarks.growth.records import numbers_of_keys
from benchmarks.growth.running import Row

ALL = comparisons() + comparisons(quick=True)


def test_every_table_exists_once() -> None:
    for quick in (False, True):
        assert [one.growth for one in comparisons(quick=quick)] == list(Growth)


@pytest.mark.parametrize("comparison", ALL, ids=lambda one: one.growth)
def test_a_table_varies_one_thing(comparison: Comparison) -> None:
    rows = [asdict(case) for case in comparison.cases]
    varied = {name for name in rows[0] if len({row[name] for row in rows}) > 1}
    expected = {"batch", "batches"} if comparison.growth is Growth.BATCH else varied - {"label"}
    assert varied == {"label", *expected}
    assert len(expected) == (2 if comparison.growth is Growth.BATCH else 1)
    assert len({row["label"] for row in rows}) == len(rows) > 1


@pytest.mark.parametrize("case", [case for one in ALL for case in one.cases], ids=lambda case: case.label)
def test_a_batch_names_as_many_keys_as_it_changes(case: Case) -> None:
    for number in (0, 1, 7):
        found = numbers_of_keys(case, number * case.batch, (number + 1) * case.batch)
        assert len(np.unique(found)) == min(case.changed, case.batch, case.keys)
        assert 0 <= found.min() <= found.max() < case.keys


def test_in_time_every_key_is_changed() -> None:
    case = Case("", keys=10_000, changed=1_000, batch=5_000)
    assert len(np.unique(numbers_of_keys(case, 0, 10 * case.batch))) == case.keys


def figures(seconds: float, rows_read: int = 40) -> Figures:
    return Figures(seconds, 2 * seconds, 1_000, 4, rows_read, 20, 1_500, 5.0, 100.0, 3 << 20)


def test_rows_are_medians_and_ratios_to_the_first_row() -> None:
    first = Row(replace(BASE, label="few"), "first", [figures(1.0), figures(9.0), figures(0.5)])
    other = Row(replace(BASE, label="many"), "other", [figures(2.0, -1)], key_bytes=83.4)
    assert first.cells(first) == ["few", "1.0", "2,000.00", "1.00", "10", "5", "1.5", "5.0", "100", "3", ""]
    assert other.cells(first) == ["many", "0.5", "4,000.00", "0.50", "", "5", "1.5", "5.0", "100", "3", "83"]


def test_a_flow_without_plans_shows_none() -> None:
    row = Row(replace(BASE, label="1", stages=0), "row", [replace(figures(1.0), plan_bytes=-1)])
    assert row.cells(row)[4:7] == ["", "", ""]
