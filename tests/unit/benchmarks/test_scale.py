"""Goal: what the driver does for a batch grows at most with the number of partitions. Method: small sizes in memory, no time asserted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.driving import STEPS, Figures, World, measure
from benchmarks.scale import Cluster, Fit, main

SIZES = (8, 32)
EACH = {World.SILENT: {"write"}}
"""Calls that the driver makes for each partition."""
LINEAR = [World.FOLD, World.SILENT, World.REPUBLISH]


@pytest.fixture(scope="module")
def found() -> Mapping[tuple[World, int], Figures]:
    return {(world, size): measure(world, size, 1) for world in LINEAR for size in SIZES}


@pytest.mark.parametrize("world", LINEAR)
def test_the_driver_makes_as_many_calls_for_many_partitions_as_for_few(
    found: Mapping[tuple[World, int], Figures], world: World
) -> None:
    few, many = (
        {name: n for name, n in found[world, size].calls.items() if name not in EACH.get(world, ())}
        for size in SIZES
    )
    assert few == many
    assert sum(many.values()) < SIZES[0]


@pytest.mark.parametrize("world", LINEAR)
def test_bytes_grow_at_most_with_the_number_of_partitions(
    found: Mapping[tuple[World, int], Figures], world: World
) -> None:
    few, many = (found[world, size] for size in SIZES)
    for name in ("plan_bytes", "commit_bytes", "task_bytes"):
        of_few, of_many = (getattr(one, name) / one.partitions for one in (few, many))
        assert of_many <= of_few * 1.1, name
    assert many.longest_metadata <= few.longest_metadata * 1.1


def test_lanes_of_a_batch_grow_with_the_square_of_partitions() -> None:
    few, many = (measure(World.LANES, size, 1).plan_bytes for size in SIZES)
    assert many / few > (SIZES[1] / SIZES[0]) ** 2 * 0.7


def test_a_fit_finds_what_grows() -> None:
    sizes = (16, 64, 256, 1_000)
    fit = Fit.of([(n, 2.0 + 0.5 * n) for n in sizes])
    assert (fit.constant, fit.each, fit.squared) == pytest.approx((2.0, 0.5, 0.0), abs=1e-6)
    assert Fit.of([(n, 3.0 * n * n) for n in sizes]).at(4_000) == pytest.approx(48e6)
    assert Fit.of([(n, 4.0) for n in sizes]).growth == "4"


def test_a_cluster_with_more_cores_needs_larger_batches() -> None:
    figures = Figures(World.FOLD, 1_000, dict.fromkeys(STEPS, 5_000.0), {"set_home": 1}, 1, 1, 1, 1, 1_000)
    few, many = (Cluster().batch(figures, cores, 400_000) for cores in (1, 100))
    assert few.tasks_s > 50 * many.tasks_s
    assert few.driver_s == many.driver_s == pytest.approx(0.05)
    assert many.seconds == pytest.approx(many.driver_s + many.calls_s + many.starts_s)


def test_the_program_prints_tables_and_draws_all_worlds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg, figures = tmp_path / "scale.svg", tmp_path / "scale.json"
    main("4,16", ",".join(World), 1, figures, svg)
    shown = capsys.readouterr().out
    assert "at 1,000" in shown
    assert "by the model" in shown
    drawn = svg.read_text(encoding="utf-8")
    assert all(f">{world}</text>" in drawn for world in World)
    assert figures.read_text(encoding="utf-8").count('"world"') == len(World) * 2 - 1
