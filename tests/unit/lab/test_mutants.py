"""Every mutant can be put into the package, names what kills it, and has been judged as it is. The page lists the results."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace as changed
from pathlib import Path

import pytest

from tests.lab.mutants import cuts, sweep
from tests.lab.mutants.__main__ import is_known, main
from tests.lab.mutants.catalogue import ALL, CATALOGUE, QUICK, read_catalogue
from tests.lab.mutants.edits import MisplacedError, Package, operation
from tests.lab.mutants.injection import PACKAGE, TREE, code_of, copied, why_not_judged
from tests.lab.mutants.ledger import (
    BY_SIMULATOR,
    BY_TESTS,
    PAGE,
    Judgement,
    gaps,
    page_with,
    read_ledger,
    table,
)
from tests.lab.mutants.mutant import Mutant, mutant

KILLS = "test_chain::test_epochs_are_stored_plus_one"
SOURCE = '''
class Marks:
    @property
    def size(self) -> int:
        return 1

    def accept(self, lane: int, *, strict: bool = False) -> bool:
        """Take it."""
        if lane < 0 and not strict:
            raise ValueError(f"lane {lane} of {self.size}")
        self.add(lane, at=self.size)
        self.count += 1  # counted
        for link in self.links:
            link.take('many links')
        return True

LIMIT = 32
'''


def judged(one: Mutant, killed_by: str | None = KILLS) -> Judgement:
    return Judgement(one.name, one.digest, BY_TESTS, killed_by, 1.0, "abc", "")


def test_every_mutant_can_be_put_into_the_package() -> None:
    """Otherwise the text names what to do."""
    assert "\n".join(text for one in ALL if (text := why_not_judged(one))) == ""


def test_every_mutant_has_a_name_of_its_own_and_names_what_kills_it() -> None:
    assert len({one.name for one in ALL}) == len(ALL)
    assert [one.name for one in ALL if not one.tests] == []
    assert QUICK - {one.name for one in ALL if not one.servers} == set()


def test_all_of_them_have_been_judged_and_none_survived() -> None:
    assert gaps(read_ledger(), ALL) == [], "run make mutants"


def test_the_page_has_the_table_of_the_ledger() -> None:
    page = PAGE.read_text()
    assert page_with(page, {"mutants": table(CATALOGUE, read_ledger())}) == page, "run make mutants"


@pytest.mark.parametrize(
    ("source", "gone", "there"),
    [
        ("always(lane)", "if lane", "if True and (not strict):"),
        ("never(strict)", "not strict", "if lane < 0 and (not False):"),
        ("never(lane, strict)", "if lane", "if False:"),
        ("negate(lane)", "if lane", "if not lane < 0 and"),
        ("boundary(lane)", "lane < 0", "if lane <= 0 and"),
        ("plus(size, -1)", "at=self.size)", "self.add(lane, at=self.size - 1)"),
        ("drop(self.add)", "self.add", "self.count += 1"),
        ("drop(lane, strict)", "raise", "self.add("),
        ("without(strict)", "strict:\n", "if lane < 0:\n"),
        ("without(at)", "at=", "self.add(lane)"),
        ("swap(add, count)", "self.count += 1\n        return", "self.count += 1\n        self.add("),
        ("unchanged(add)", "self.add", "        lane\n"),
        ("gives(add, at, 'min(..., 0)')", "'" * 3, "min(self.add(lane, at=self.size), 0)"),
        ("returns(False)", "return True", "bool:\n        return False"),
        ("returns(None, nth=1)", "return True", "return None"),
        ("instead(size, count)", "at=self.size", "at=self.count"),
        ("instead(lane, strict, 'strict')", "if lane", "if strict:"),
        ("argument(at, '0')", "at=self.size", "self.add(lane, at=0)"),
        ("assigned(count, '2')", "+= 1", "self.count += 2"),
        ("before(count, 'self.add(0)')", "'" * 3, "self.add(0)\n        self.count += 1"),
        ("backwards(links)", "in self.links", "for link in reversed(self.links)"),
        ("text('many', 'few')", "'many", "link.take('few links')"),
    ],
)
def test_an_operation_changes_a_function_and_nothing_else(
    source: str, gone: str, there: str, tmp_path: Path
) -> None:
    file = tmp_path / "marks.py"
    file.write_text(SOURCE)
    (found,) = Package(tmp_path).mutated([("Marks.accept", operation(source))]).values()
    assert there in found
    assert gone not in found
    ast.parse(found)
    assert found.startswith(SOURCE.partition("    def accept")[0])
    assert found.endswith("\nLIMIT = 32\n")


@pytest.mark.parametrize(
    ("place", "source", "reported"),
    [
        ("Marks.gone", "returns(None)", "Marks.gone is not in the package"),
        ("LIMIT", "assigned(LIMIT, '33')", "LIMIT is in a.py, b.py"),
        ("c:LIMIT", "assigned(LIMIT, '33')", "c:LIMIT is not in the package"),
        ("Marks.accept", "instead(lane, 0)", "Marks.accept: a name with lane is there 2 times"),
        ("Marks.accept", "drop(moved)", "Marks.accept: a statement with moved is there 0 times"),
        ("Marks.accept", "plus(lane, 1, nth=3)", "a name with lane is there 2 times"),
        ("Marks.accept", "instead(strict, strict)", "nothing changes there"),
    ],
)
def test_code_that_is_gone_or_ambiguous_is_reported(
    place: str, source: str, reported: str, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text("LIMIT = 32\n")
    with pytest.raises(MisplacedError, match=re.escape(reported)):
        Package(tmp_path).mutated([(place, operation(source))])


def test_a_mutant_survives_formatting_other_names_and_other_files(tmp_path: Path) -> None:
    """What it names is the same, so it breaks the same rule."""
    for folder, source in (
        ("a", SOURCE),
        ("b", SOURCE.replace("lane", "way").replace("strict: bool", "strict:bool")),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.py").write_text(source)
        (found,) = Package(tmp_path / folder).mutated([("Marks.accept", operation("never(strict)"))]).values()
        assert "< 0 and (not False):" in found


def test_a_table_reads_as_mutants_and_an_error_names_the_one_that_is_none() -> None:
    table = (
        "# marks\none | Marks.accept | never(lane) | test_a, test_b[1] | 20 servers\n | LIMIT | plus(x, 1)\n"
    )
    (one,) = read_catalogue(table)["marks"]
    assert (one.name, one.tests, one.schedules, one.servers) == ("one", ("test_a", "test_b[1]"), 20, True)
    assert [place for place, _ in one.edits] == ["Marks.accept", "LIMIT"]
    with pytest.raises(MisplacedError, match=re.escape("mutant 'one': `bend(x)` is no operation")):
        read_catalogue(table.replace("plus(x, 1)", "bend(x)"))


def test_what_was_changed_since_or_survived_has_to_be_judged_again() -> None:
    one = mutant("one", ("MAX_LINKS", operation("assigned(MAX_LINKS, '31')")), killed_by=KILLS)
    moved = mutant("one", ("chain:MAX_LINKS", operation("assigned(MAX_LINKS, '31')")), killed_by=KILLS)
    other = mutant("one", ("MAX_LINKS", operation("assigned(MAX_LINKS, '30')")), killed_by=KILLS)
    known = {("one", BY_TESTS): changed(judged(one), code=code_of(one, by_tests=True))}
    assert gaps(known, [one]) == gaps(known, [moved]) == []
    assert gaps(known, [other]) == gaps({}, [one]) == ["one: not judged by tests as it is now"]
    assert gaps({("one", BY_TESTS): judged(one, None)}, [one]) == ["one: survived tests"]
    assert is_known(one, BY_TESTS, known)
    assert is_known(moved, BY_TESTS, known)
    assert not is_known(other, BY_TESTS, known)
    assert not is_known(one, BY_TESTS, {("one", BY_TESTS): judged(one)}), "the code has changed"


@pytest.mark.release
def test_a_survivor_fails_the_build_and_one_that_a_test_kills_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = mutant(
        "no epoch is one", ("stored_epoch", operation("returns('leader_epoch or 0')")), killed_by=KILLS
    )
    kept = mutant("more links", ("MAX_LINKS", operation("assigned(MAX_LINKS, '33')")), killed_by=KILLS)
    gone = mutant("gone", ("stored_epoch", operation("drop(moved)")), killed_by="test_chain::test_gone")
    monkeypatch.setattr("tests.lab.mutants.__main__.CATALOGUE", {"some": (killed, kept)})
    monkeypatch.setattr("tests.lab.mutants.__main__.write", lambda _: None)
    monkeypatch.setattr("tests.lab.mutants.__main__.write_ledger", lambda *_: None)
    assert main([]) == 1
    told = capsys.readouterr().out
    assert f"no epoch is one: {KILLS}" in told
    assert "more links: SURVIVED" in told
    assert told.endswith("1 survived\n  more links (tests)\n")
    monkeypatch.setattr("tests.lab.mutants.__main__.CATALOGUE", {"some": (gone,)})
    assert main([]) == 1
    assert "mutant 'gone': stored_epoch: a statement with moved is there 0 times" in capsys.readouterr().out


@pytest.mark.release
def test_the_simulator_finds_a_bug_in_a_copy_and_several_processes_report_the_same() -> None:
    """The first violation by seed, and the counts of all schedules up to it."""
    (one,) = (one for one in ALL if one.name == "the first stage is persisted first")
    before = {file: file.read_text() for file in PACKAGE.rglob("applying.py")}
    with copied() as copy, copy.injected(one.edits):
        alone, together = (copy.simulated(schedules=1_000, jobs=jobs) for jobs in (1, 2))
    assert "downstream states before upstream ones" in alone.output
    assert alone.seed is not None
    outputs = [re.sub(r" in [\d.]+ s: \d+ a second", "", found.output) for found in (alone, together)]
    assert outputs[0] == outputs[1]
    assert {file: file.read_text() for file in before} == before


def test_a_judgement_by_the_simulator_names_the_seed() -> None:
    one = mutant("x", ("MAX_LINKS", operation("assigned(MAX_LINKS, '31')")), killed_by=KILLS, schedules=10)
    found = changed(judged(one, "once, seed 82"), by=BY_SIMULATOR)
    assert found.seed == 82
    assert judged(one).seed is None
    assert "| some | 1 | 1 | 1 |" in table(
        {"some": [one]}, {("x", BY_SIMULATOR): found, ("x", BY_TESTS): judged(one)}
    )


def test_a_sweep_changes_each_line_of_the_core_in_ways_that_compile() -> None:
    assert len(sweep.core_files()) == len(sweep.CORE), "a file of the core has another name, or two have one"
    every = sweep.made()
    assert len({one.name for one in every}) == len(every) > 1_000
    assert [text for one in sweep.made(count=30) if (text := why_not_judged(one))] == []
    few = {one.name.partition(": ")[2] for one in sweep.made(["PartitionMarks.accept_raw"])}
    assert {"position <= mark.position -> position < mark.position", "mark.offset = offset dropped"} < few
    assert {"return False -> True", "mark is None -> mark is not None"} < few


def test_each_equivalent_change_is_in_the_sweep_and_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = dict(sweep.EQUIVALENT)
    monkeypatch.setattr(sweep, "EQUIVALENT", {})
    assert listed.keys() - {one.name for one in sweep.made()} == set()
    assert all(listed.values())


def test_a_cut_loses_what_was_found_before_and_is_not_found_now() -> None:
    """Not what survived before, and not what is no longer in the package."""
    before = {"a": "test_a", "b": None, "c": "test_c", "gone": "test_d"}
    assert cuts.lost(before, {"a": "test_x", "b": None, "c": None}) == ["c: test_c"]


def test_bugs_are_drawn_from_any_file_and_another_draw_gives_others() -> None:
    one, other = ({bug.name for bug in cuts.drawn(["features/ticking"], 5, draw)} for draw in (0, 1))
    assert len(one) == len(other) == 5
    assert one != other
    assert all(name.startswith("features/ticking:") for name in one)


@pytest.mark.release
def test_a_fork_judges_each_bug_by_the_tests_that_call_its_function(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in this process: pytest in pytest shares too much."""
    command = [sys.executable, "-m", cuts.__name__, "tests/unit/test_chain.py", "--only", "chain:check_link:"]
    file = tmp_path / "before.json"
    subprocess.run([*command, "--bugs", "6", "--write", str(file)], cwd=TREE, check=True)
    found = json.loads(file.read_text())
    assert len(found) == 6
    killed = [test for test in found.values() if test]
    assert killed
    assert all(test.startswith("tests/unit/test_chain.py::") for test in killed)
    without = [*command, "--compare", str(file), "--deselect", "tests/unit/test_chain.py"]
    done = subprocess.run(without, cwd=TREE, check=False)
    assert done.returncode == 1
    assert capfd.readouterr().out.count("LOST sqe_chain/chain:check_link: ") == len(killed)
