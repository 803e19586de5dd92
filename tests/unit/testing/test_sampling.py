"""Goal: what a commit leaves out of the tests, others run. Method: cases of invented tests, and many commits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support import sampling
from tests.support.commit import drawn
from tests.support.sampling import chosen, left_out, points, sample_from_now_on, some

COMMITS = [f"commit {number}" for number in range(200)]


@pytest.fixture
def as_before() -> Iterator[None]:
    before = sampling._sampling
    yield
    sample_from_now_on(sampling=before)


def test_each_commit_runs_so_many_cases_and_commits_together_run_all() -> None:
    cases = {"one": (2, [f"one[{number}]" for number in range(7)]), "two": (1, ["two[a]", "two[b]"])}
    ran = [chosen(cases, by) for by in COMMITS]
    assert ran == [chosen(cases, by) for by in COMMITS]
    assert all([case.partition("[")[0] for case in sorted(one)] == ["one", "one", "two"] for one in ran)
    assert set[str]().union(*ran) == {case for _, names in cases.values() for case in names}


class Item:
    """What is looked at of a collected test."""

    def __init__(self, nodeid: str, mark: pytest.MarkDecorator | None = None) -> None:
        self.nodeid, self._mark = nodeid, mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._mark.mark if self._mark and self._mark.name == name else None


def test_tests_without_the_mark_run_and_tests_that_share_a_name_are_drawn_from_together() -> None:
    shared = pytest.mark.sample(1, of="kills on Spark")
    items = [
        Item("a.py::test_always"),
        *(Item(f"a.py::test_product[{number}]", pytest.mark.sample(2)) for number in range(5)),
        Item("a.py::test_kills[spark]", shared),
        Item("b.py::test_joins", shared),
    ]
    without = [item.nodeid for item in left_out(items)]  # type: ignore[arg-type]
    assert "a.py::test_always" not in without
    assert len([one for one in without if "test_product" in one]) == 3
    assert len([one for one in without if "test_product" not in one]) == 1


def test_the_fast_suite_runs_few_cases_of_each_test_and_nothing_slow() -> None:
    items = [
        *(Item(f"a.py::test_many[{number}]") for number in range(30)),
        *(Item(f"a.py::test_sampled[{number}]", pytest.mark.sample(2)) for number in range(5)),
        *(Item(f"a.py::test_sampled_much[{number}]", pytest.mark.sample(20)) for number in range(40)),
        Item("a.py::test_slow", pytest.mark.slow),
        Item("a.py::test_once"),
    ]
    without = {item.nodeid for item in left_out(items, fast=True)}  # type: ignore[arg-type]
    kept = [item.nodeid for item in items if item.nodeid not in without]
    ran = [nodeid.partition("[")[0].removeprefix("a.py::") for nodeid in kept]
    assert ran == ["test_many"] * 8 + ["test_sampled"] * 2 + ["test_sampled_much"] * 8 + ["test_once"]


@pytest.mark.usefixtures("as_before")
def test_loops_run_every_sixth_point_in_a_sample_and_else_every_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample_from_now_on(sampling=False)
    assert [*itertools.islice(points("a loop"), 4)] == [0, 1, 2, 3]
    assert some("a loop", "abc") == ["a", "b", "c"]
    sample_from_now_on(sampling=True)
    begins = set()
    for by in COMMITS:
        monkeypatch.setattr(sampling, "drawn", lambda what, choices, by=by: drawn(what, choices, by))
        first, second, third = itertools.islice(points("a loop"), 3)
        assert (second - first, third - second) == (6, 6)
        begins.add(first)
        everything = ["a", "b", "c", "d", "e", "f", "g"]
        assert some("a loop", everything) == everything[first::6]
        assert len(some("a loop", everything[:3], every=2)) in {1, 2}
    assert begins == set(range(6))
