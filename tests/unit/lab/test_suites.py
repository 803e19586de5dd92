"""Goal: every commit runs the same tests, and of a family those that differ most. Method: cases of invented tests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.mutants.catalogue import CATALOGUE
from tests.support import suites
from tests.support.suites import cases_that_differ, deselected, ordered, points, run_suite, some


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = suites._suite
    monkeypatch.setattr(
        suites, "_durations", lambda: {"tests/unit/a.py::test_slow": 0.5, "tests/b.py::test_long": 9.0}
    )
    yield
    run_suite(before)


class Item:
    """What is looked at of a collected test."""

    def __init__(self, nodeid: str, mark: pytest.MarkDecorator | None = None) -> None:
        self.nodeid, self.path, self._mark = nodeid, Path(nodeid.partition("::")[0]), mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._mark.mark if self._mark and self._mark.name == name else None


def ran(suite: str, items: list[Item]) -> list[str]:
    run_suite(suite)
    without = deselected(items)  # type: ignore[arg-type]
    return [item.nodeid.rpartition("::")[2] for item in items if item not in without]  # type: ignore[comparison-overlap]


def test_each_value_comes_before_any_pair_of_values_and_each_pair_before_any_repetition() -> None:
    cases = [
        f"a.py::test[{store}-{when}]"
        for store in ("redis", "sqlite", "memory")
        for when in ("before", "after")
    ]
    three = cases_that_differ(cases, 3)
    assert {case[:-1].partition("[")[2] for case in three} == {
        "redis-before",
        "sqlite-after",
        "memory-before",
    }
    assert cases_that_differ(cases[::-1], 6) == cases_that_differ(cases, 60) == {*cases}
    assert cases_that_differ([f"a.py::test[{seed}]" for seed in range(9)], 2) == {
        "a.py::test[0]",
        "a.py::test[1]",
    }


def test_tests_that_share_a_name_are_one_family_and_tests_for_a_release_are_skipped() -> None:
    shared = pytest.mark.few(1, of="kills on Spark")
    items = [
        Item("tests/c.py::test_always"),
        *(Item(f"tests/c.py::test_product[{number}]", pytest.mark.few(2)) for number in range(5)),
        Item("tests/c.py::test_kills[spark]", shared),
        Item("tests/d.py::test_joins", shared),
        Item("tests/d.py::test_compose", pytest.mark.release),
    ]
    assert ran("commit", items) == ["test_always", "test_product[0]", "test_product[1]", "test_kills[spark]"]
    assert ran("everything", items) == [item.nodeid.rpartition("::")[2] for item in items]


def test_of_a_test_that_takes_long_as_many_cases_run_as_fit_into_its_time() -> None:
    items = [
        Item(f"tests/unit/a.py::test_{name}[{number}]") for name in ("slow", "many") for number in range(5)
    ]
    assert ran("commit", items) == [
        "test_slow[0]",
        "test_slow[1]",
        *(f"test_many[{number}]" for number in range(5)),
    ]
    assert ran("everything", items) == [item.nodeid.rpartition("::")[2] for item in items]


def test_the_fast_suite_skips_slow_tests_and_the_tests_of_the_tools() -> None:
    items = [
        Item("tests/unit/a.py::test_slow[1]"),
        *(Item(f"tests/unit/a.py::test_many[{number}]") for number in range(9)),
        *(Item(f"tests/unit/a.py::test_few[{number}]", pytest.mark.few(1)) for number in range(3)),
        Item("tests/unit/lab/test_simulator.py::test_one"),
    ]
    assert ran("fast", items) == ["test_many[0]", "test_many[1]", "test_many[2]", "test_few[0]"]


def test_what_is_fast_comes_first_and_then_the_files_with_the_longest_tests() -> None:
    names = (
        "tests/c.py::test_x",
        "tests/unit/a.py::test_slow",
        "tests/b.py::test_y",
        "tests/b.py::test_long",
        "tests/unit/a.py::test_z",
    )
    assert [item.nodeid for item in ordered([Item(name) for name in names])] == [  # type: ignore[misc]
        "tests/unit/a.py::test_z",
        "tests/b.py::test_y",
        "tests/b.py::test_long",
        "tests/unit/a.py::test_slow",
        "tests/c.py::test_x",
    ]


def test_loops_take_one_point_in_six_and_always_the_same_ones_at_changing_distances() -> None:
    run_suite("everything")
    assert [*itertools.islice(points("a loop"), 4)] == [0, 1, 2, 3]
    assert some("a loop", "abc") == ["a", "b", "c"]
    run_suite("commit")
    taken = [*itertools.islice(points("a loop"), 600)]
    assert taken == [*itertools.islice(points("a loop"), 600)] != [*itertools.islice(points("another"), 600)]
    assert 5 < taken[-1] / 600 < 7
    assert {at % 6 for at in taken} == set(range(6))
    everything = [*range(40)]
    assert some("a loop", everything) == [at for at in taken if at < 40]
    assert len(some("a loop", [1])) == 1


def test_each_defect_of_the_past_has_a_test_that_every_commit_runs() -> None:
    tests = Path(__file__).resolve().parents[2]
    rows = re.findall(r"^\| (.+) \| `(.+)::(.+)` \|$", (tests / "README.md").read_text(), re.MULTILINE)
    assert {defect for defect, _, _ in rows} >= {mutant.name for mutant in CATALOGUE["past defects"]}
    for _, file, name in rows:
        text = (tests / file).read_text()
        marks = re.search(rf"((?:^ *@.*\n(?:[ )].*\n)*)*)^ *def {name}\(", text, re.MULTILINE)
        assert marks is not None, f"{file} has no {name}"
        assert "mark.release" not in marks[1], name
        assert "pytestmark = pytest.mark.release" not in text, name
