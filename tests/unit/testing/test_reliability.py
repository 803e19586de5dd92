"""The page says of recorded runs what the ledger says, and adds up only what belongs together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.mutants.ledger import PAGE, page_with
from tests.reliability import ledger, report
from tests.reliability.__main__ import MODULES, main, record
from tests.reliability.ledger import CODE, TREE, Run, changed_since, digest, read_ledger
from tests.reliability.report import AS_NOW, CHANGED, changes, current, largest, summed, tables

RUN = Run(
    "simulator", "python -m tests.lab.simulator", "abc", clean=True, code="c0de", date="2026-01-01 00:00",
    machine="a machine", versions={"python": "3.11"}, counts={"schedules": 10}, seed=0, seconds=5, violations=0,
)  # fmt: skip


def test_the_page_has_the_tables_of_the_ledger() -> None:
    """Whether the code has changed since is true of the day of the report, and may stand there either way."""
    runs, page = read_ledger(), PAGE.read_text()
    stated = {
        tool: row.rpartition("; ")[2].removesuffix(" |")
        for tool, row in zip(current(runs), _rows(page), strict=True)
    }
    assert page_with(page, tables(runs, stated)) == page, "run make reliability-report"


def _rows(page: str) -> list[str]:
    table = page.partition("<!-- table: recorded runs -->")[2].partition("<!-- end -->")[0]
    return [line for line in table.splitlines() if line.startswith("|")][2:]


def test_what_a_recorded_run_has_found_is_mended_and_stands_on_the_page() -> None:
    """A campaign ends with the first violation: its seed is the last one."""
    found = [one for own in current(read_ledger()).values() for one in own if one.violations]
    assert [one for one in found if one.code == digest(one.tool)] == []
    seeds = [int(one.seed + one.counts["schedules"] - 1) for one in found if one.tool == "simulator"]
    assert len(seeds) == len(found), "say where the page names it"
    assert [seed for seed in seeds if f"Seed {seed}" not in PAGE.read_text()] == []


def test_parts_of_a_run_are_added_up() -> None:
    runs = [RUN, replace(RUN, seed=10, counts={"schedules": 5, "faults": 1}, more={"peak_mib": 3})]
    assert summed(current(runs)["simulator"]) == {"schedules": 15, "faults": 1}
    assert largest([*runs, replace(RUN, more={"peak_mib": 2, "part": 7, "note": "text"})]) == {"peak_mib": 3}


def test_the_same_again_and_other_code_are_not_added_up() -> None:
    assert current([RUN, RUN])["simulator"] == [RUN]
    again = replace(RUN, more={"part": 2})
    assert current([RUN, again])["simulator"] == [RUN, again]
    newer = replace(RUN, code="new")
    assert current([RUN, newer])["simulator"] == [newer]


def test_the_page_says_whether_the_code_is_still_the_same() -> None:
    assert changes([RUN]) == {"simulator": CHANGED}
    assert changes([replace(RUN, code=digest("simulator"))]) == {"simulator": AS_NOW}


def test_the_page_says_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, stated in (
        ("a.py b.py", ": `a.py`, `b.py`"),
        ("a/1 a/2 a/b/3 a/4", ": 4 files in `a`"),
        ("a 2 3 4", ": 4 files in `.`"),
        ("", ""),
    ):
        monkeypatch.setattr(report, "changed_since", lambda _commit, _tool, found=files: found.split())
        assert changes([RUN]) == {"simulator": f"{CHANGED}{stated}"}


def test_files_that_have_changed_are_those_on_which_a_tool_depends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=tmp_path, check=True
        )

    (tmp_path / "sqe_chain").mkdir()
    files = [tmp_path / "sqe_chain" / name for name in ("chain.py", "errors.py", "telling.py")]
    for file in files:
        file.write_text("1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    for file in files[1:]:
        file.write_text("2")
    monkeypatch.setattr(ledger, "TREE", tmp_path)
    assert changed_since("HEAD", "fuzz") == ["sqe_chain/errors.py"]
    assert changed_since("no-such-commit", "fuzz") == []


def test_a_digest_is_of_the_files_that_count(tmp_path: Path) -> None:
    (tmp_path / "sqe_chain" / "envelope").mkdir(parents=True)
    file = tmp_path / "sqe_chain" / "envelope" / "head.py"
    file.write_text("1")
    before = digest("fuzz", tmp_path)
    (tmp_path / "sqe_chain" / "telling.py").write_text("1")
    assert digest("fuzz", tmp_path) == before
    file.write_text("2")
    assert digest("fuzz", tmp_path) != before


def test_everything_a_digest_is_made_of_is_there() -> None:
    assert [one for places in CODE.values() for one in places if not (TREE / one).exists()] == []


LOADED_ONLY = {
    "simulator": (
        "testing/proving/",
        "testing/shrinking.py",
        "engines/warming.py",
        "stores/",
        "tables/addresses.py",
    ),
    "explorer": (
        "testing/proving/",
        "testing/shrinking.py",
        "engines/warming.py",
        "stores/",
        "tables/",
        "testing/faulty_tables.py",
        "testing/simulator/",  # of which it takes the class of violations, and a function of the model
    ),
    "fuzz": ("flow/", "stages/", "ports/", "protocol/", "tables/", "wal/"),
}
"""What a tool imports by the way: of the package's public modules, and of modules that have something else that it calls."""


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        ("simulator", ["--schedules", "30", "--jobs", "1"]),
        ("explorer", ["small", "--states", "500"]),
        ("fuzz", ["--executions", "100", "--target", "keys"]),
    ],
)
def test_a_digest_is_of_all_code_that_a_tool_runs(tool: str, options: list[str]) -> None:
    module = MODULES[tool]
    code = f"""
import json, runpy, sys
sys.argv = [{module!r}, *{options!r}]
try:
    runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
except SystemExit as ended:
    assert not ended.code
print(json.dumps([one.__file__ for one in list(sys.modules.values()) if getattr(one, "__file__", None)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True, check=True, timeout=300
    )
    package = TREE / "sqe_chain"
    loaded = [
        Path(file) for file in json.loads(done.stdout.splitlines()[-1]) if Path(file).is_relative_to(package)
    ]
    assert package / "chain.py" in loaded
    places = [TREE / one for one in CODE[tool]]
    missing = [
        name
        for file in loaded
        if not any(file.is_relative_to(one) for one in places)
        for name in [str(file.relative_to(package))]
        if not name.startswith(("_proto/", *LOADED_ONLY[tool])) and not name.endswith("__init__.py")
    ]
    assert missing == []


def test_what_was_not_reached_is_stated() -> None:
    found = tables([replace(RUN, more={"not_reached": ["a pair", "another"]})], {"simulator": AS_NOW})
    assert found["not reached"] == "- Simulator: a pair\n- Simulator: another"
    assert "10 schedules" in found["recorded runs"]
    assert re.search(r"a machine; python 3.11", found["commands"])


def test_counts_of_a_kind_have_rows_of_their_own() -> None:
    runs = [
        replace(RUN, seed=seed, counts={"schedules": 10, "fault: kill": 2, "step: run": 5})
        for seed in (0, 10)
    ]
    found = tables(runs, {"simulator": AS_NOW})
    assert "| Simulator | 20 schedules | 0 |" in found["recorded runs"]
    assert found["kinds"].splitlines()[2:] == [
        "| Simulator | fault | kill 4 |",
        "| Simulator | step | run 10 |",
    ]


@pytest.mark.parametrize(
    ("seeds", "stated"),
    [
        ((0, 10), "2 parts: 0, 10"),
        ((30, 0, 10, 20), "4 parts: 0, 10, ... 30"),
        ((0, 10, 20, 40), "4 parts: 0, 10, 20, 40"),
    ],
)
def test_parts_with_other_seeds_are_one_row(seeds: tuple[int, ...], stated: str) -> None:
    """And a part that is missing in between shows."""
    runs = [replace(RUN, seed=seed, command=f"{RUN.command} --seed {seed} --jobs 1") for seed in seeds]
    rows = tables(runs, {"simulator": AS_NOW})["commands"].splitlines()[2:]
    assert len(rows) == 1
    assert f"`{RUN.command} --seed SEED --jobs 1` | {stated} |" in rows[0]


def test_parts_of_other_commits_or_machines_have_rows_of_their_own() -> None:
    runs = [RUN, replace(RUN, seed=10, commit="other"), replace(RUN, seed=20, machine="another")]
    assert len(tables(runs, {"simulator": AS_NOW})["commands"].splitlines()) == 2 + 3


@pytest.mark.parametrize("whole", [True, False])
def test_a_configuration_that_was_not_explored_to_its_end_is_stated(whole: bool) -> None:
    run = replace(RUN, tool="explorer", command="explore", counts={"states": 1_000}, more={"whole": whole})
    stated = "- Explorer: interleavings of small configurations: `explore` ended after 1,000 states, before all were reached"
    found = tables([run], {"explorer": AS_NOW})["not reached"]
    assert found == ("The recorded runs name nothing that they did not reach." if whole else stated)


def test_a_run_is_recorded_with_what_it_ran_on(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    options = ["--executions", "300", "--target", "keys", "--seed", "5"]
    assert record("fuzz", MODULES["fuzz"], options, ledger=file) == 0
    (run,) = read_ledger(file)
    assert (run.tool, run.seed, run.violations, run.code) == ("fuzz", 5, 0, digest("fuzz"))
    assert run.counts["executions"] >= 300
    assert run.command == "python -m tests.lab.fuzzing --executions 300 --target keys --seed 5"
    assert run.versions["python"]
    assert json.loads(file.read_text())["machine"] == run.machine


def test_a_tool_that_says_nothing_is_not_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ledger.jsonl"
    assert record("fuzz", "tests.reliability", ["nonsense"], ledger=file) == 2
    assert not file.exists()
    assert "nothing is recorded" in capfd.readouterr().err
    assert main(["run", "what"]) == 2
