"""Every mutant can be put into the package, names what kills it, and has been judged as it is; the page says what came of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.mutants.__main__ import is_known, main, tables_of
from tests.lab.mutants.catalogue import ALL
from tests.lab.mutants.injection import TREE, misplaced
from tests.lab.mutants.ledger import (
    BY_SIMULATOR,
    BY_TESTS,
    PAGE,
    Judgement,
    files_of,
    gaps,
    page_with,
    read_ledger,
    table,
)
from tests.lab.mutants.mutant import Mutant, mutant

KILLS = "tests/unit/test_chain.py::test_epochs_are_stored_plus_one"


def judged(
    one: Mutant, killed_by: str | None = "tests/unit/test_x.py::test_y", seconds: float = 1.0
) -> Judgement:
    return Judgement(one.name, one.digest, BY_TESTS, killed_by, seconds, "python -m pytest", "abc")


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_every_text_stands_where_it_is_replaced_and_what_comes_of_it_compiles(one: Mutant) -> None:
    assert misplaced(one) == []


def test_every_mutant_has_a_name_of_its_own_and_says_what_kills_it() -> None:
    assert len({one.name for one in ALL}) == len(ALL)
    assert [one.name for one in ALL if not one.tests and not one.schedules] == []
    named = {test for one in ALL for test in one.tests}
    assert [test for test in sorted(named) if "::" not in test] == [], "single tests, not files"


def test_the_tests_that_are_named_are_there() -> None:
    texts: dict[str, str] = {}
    missing = []
    for test in {test for one in ALL for test in one.tests}:
        file, _, name = test.partition("::")
        text = texts.setdefault(file, Path(TREE, file).read_text())
        if f"def {name.partition('[')[0].rpartition('::')[2]}(" not in text:
            missing.append(test)
    assert sorted(missing) == []


def test_all_of_them_have_been_judged_and_none_survived() -> None:
    assert gaps(read_ledger(), ALL) == [], "run make mutants"


def test_the_page_has_the_tables_of_the_ledger() -> None:
    known, page = read_ledger(), PAGE.read_text()
    assert page_with(page, tables_of(known)) == page, (
        "run make mutants, or python -m tests.lab.mutants --tables"
    )


def test_what_was_changed_since_or_survived_has_to_be_judged_again() -> None:
    one = mutant("one", ("chain.py", "new", "old"), tests=("tests/x.py::test_y",))
    other = mutant("one", ("chain.py", "new", "other"), tests=("tests/x.py::test_y",))
    assert gaps({("one", BY_TESTS): judged(one)}, [one]) == []
    assert gaps({("one", BY_TESTS): judged(one)}, [other]) == ["one: not judged by tests as it is now"]
    assert gaps({("one", BY_TESTS): judged(one, None)}, [one]) == ["one: survived tests"]
    assert gaps({}, [one]) == ["one: not judged by tests as it is now"]


def test_a_survivor_fails_the_build_and_one_that_a_test_kills_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "return 0 if leader_epoch is None or leader_epoch < 0 else leader_epoch + 1"
    killed = mutant("no epoch is one", ("chain.py", text, "return leader_epoch or 0"), tests=(KILLS,))
    kept = mutant(
        "other words", ("chain.py", "As error texts name it.", "As errors name it."), tests=(KILLS,)
    )
    monkeypatch.setattr("tests.lab.mutants.__main__.CATALOGUE", {"some": (killed, kept)})
    monkeypatch.setattr("tests.lab.mutants.__main__.write", lambda _: None)
    monkeypatch.setattr("tests.lab.mutants.__main__.write_ledger", lambda *_: None)
    assert main([]) == 1
    told = capsys.readouterr().out
    assert f"no epoch is one: {KILLS}" in told
    assert "other words: SURVIVED" in told
    assert told.endswith("1 survived\n  other words (tests)\n")


def test_a_text_that_is_gone_fails_the_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = mutant("a text that is gone", ("chain.py", "no such text", ""), tests=(KILLS,))
    monkeypatch.setattr("tests.lab.mutants.__main__.CATALOGUE", {"some": (gone,)})
    assert main([]) == 1
    assert "stands there 0 times" in capsys.readouterr().out


def test_every_mutant_is_simulated_or_says_why_not() -> None:
    assert [one.name for one in ALL if one.schedules and one.unsimulated] == []
    assert [one.name for one in ALL if not one.schedules and not one.unsimulated] == []
    one = mutant("x", ("chain.py", "a", "b"), tests=(KILLS,), unsimulated="not simulated: Redis itself")
    assert "not simulated: Redis itself" in table([one], {})


def test_a_judgement_holds_as_long_as_the_mutant_its_files_and_its_tests_stay_as_they_are() -> None:
    one = mutant("x", ("chain.py", "MAX_LINKS = 32\n", "MAX_LINKS = 31\n"), tests=(KILLS,), schedules=1)
    known = {
        (one.name, by): replace(judged(one), by=by, files=files_of(one, by))
        for by in (BY_TESTS, BY_SIMULATOR)
    }
    for (name, by), judgement in known.items():
        assert is_known(one, by, known)
        changes = (
            replace(judgement, digest="x"),
            replace(judgement, files="x"),
            replace(judgement, killed_by=None),
        )
        assert not any(is_known(one, by, {(name, by): changed}) for changed in changes)
    assert not is_known(one, BY_TESTS, {})
    assert files_of(one, BY_TESTS) != files_of(one, BY_TESTS, ["tests/unit/test_imports.py::test_x"])


def test_the_seed_of_a_judgement_is_that_of_the_schedule_that_found_it() -> None:
    one = mutant("x", ("chain.py", "a", "b"))
    assert judged(one, "once, seed 82").seed == 82
    assert judged(one, None).seed is None
    assert judged(one).seed is None
