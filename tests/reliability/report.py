"""Tables of docs/reliability.md, made of the ledger."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from os.path import commonpath
from typing import Any, Final

from tests.lab.fuzzing import planted
from tests.reliability.ledger import Run, changed_since, digest

WHAT: Final[Mapping[str, str]] = {
    "simulator": "Simulator",
    "explorer": "Explorer: interleavings of small configurations",
    "pairs": "Pairs of faults",
    "traces": "Traces of the simulator on real servers",
    "fuzz": "Fuzzer",
    "mutants": "Deliberate bugs",
}
"""Tools in the order of the page, with what they are called there."""
_KIND: Final = ": "
_SEED: Final = re.compile(r"--seed \d+")
_MOST_NAMED: Final = 3
AS_NOW, CHANGED = "as it is now", "changed since"


def current(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Tool -> its runs over the code of the last one: their counts may be added up.

    A command that was run again with the same seed shows nothing new, so only the last time counts; unless the tool says that
    it went on (`part`).
    """
    found: dict[str, list[Run]] = {}
    for tool in [*WHAT, *dict.fromkeys(one.tool for one in runs if one.tool not in WHAT)]:
        own = [one for one in runs if one.tool == tool]
        same = {(one.command, one.seed, one.more.get("part")): one for one in own if one.code == own[-1].code}
        if same:
            found[tool] = list(same.values())
    return found


def summed(runs: Sequence[Run]) -> dict[str, float]:
    """What the parts of a run have counted together."""
    found: dict[str, float] = defaultdict(float)
    for one in runs:
        for name, number in one.counts.items():
            found[name] += number
    return dict(found)


def largest(runs: Sequence[Run]) -> dict[str, float]:
    """Other numbers, of all parts the largest."""
    found: dict[str, float] = {}
    for one in runs:
        for name, number in one.more.items():
            if isinstance(number, int | float) and not isinstance(number, bool) and name != "part":
                found[name] = max(found.get(name, number), number)
    return found


def changes(runs: Sequence[Run]) -> dict[str, str]:
    """Tool -> whether the code that its figures are of has changed since, and where."""
    found: dict[str, str] = {}
    for tool, own in current(runs).items():
        same = own[-1].code == digest(tool)
        found[tool] = AS_NOW if same else CHANGED + _where(changed_since(own[-1].commit, tool))
    return found


def _where(files: Sequence[str]) -> str:
    if not files:
        return ""
    if len(files) > _MOST_NAMED:
        return f": {len(files)} files in `{commonpath(files) or '.'}`"
    return ": " + ", ".join(f"`{file}`" for file in files)


def tables(runs: Sequence[Run], state: Mapping[str, str]) -> dict[str, str]:
    """The tables of the page: what came of the runs, what that was made of, the runs themselves, and what was never reached.

    Args:
        runs: the ledger.
        state: from `changes`.
    """
    known = current(runs)
    return {
        "recorded runs": _figures(known, state),
        "kinds": _kinds(known),
        "commands": _commands(known),
        "not reached": _not_reached(known),
        "reading": planted.table(),
    }


def _figures(known: Mapping[str, Sequence[Run]], state: Mapping[str, str]) -> str:
    rows = ["| | counted | violations | took | code |", "|---|---|---|---|---|"]
    for tool, runs in known.items():
        counts = [
            f"{_number(number)} {_words(name)}"
            for name, number in (summed(runs) | largest(runs)).items()
            if _KIND not in name
        ]
        violations = sum(one.violations for one in runs)
        took = _duration(sum(one.seconds for one in runs))
        commits = list(dict.fromkeys(one.commit for one in runs))
        code = commits[0] if len(commits) == 1 else f"{commits[0]} to {commits[-1]}"
        dirty = "" if all(one.clean for one in runs) else ", with changes that were not committed"
        cells = (
            WHAT.get(tool, tool),
            "; ".join(counts),
            str(violations),
            took,
            f"`{code}`{dirty}; {state[tool]}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _kinds(known: Mapping[str, Sequence[Run]]) -> str:
    rows = ["| | of these | counted |", "|---|---|---|"]
    for tool, runs in known.items():
        kinds: dict[str, list[str]] = defaultdict(list)
        for name, number in summed(runs).items():
            kind, between, which = name.partition(_KIND)
            if between:
                kinds[kind].append(f"{_words(which)} {_number(number)}")
        rows += [f"| {WHAT.get(tool, tool)} | {kind} | {'; '.join(found)} |" for kind, found in kinds.items()]
    return "\n".join(rows)


def _commands(known: Mapping[str, Sequence[Run]]) -> str:
    rows = ["| ended | command | seed | commit | took | on |", "|---|---|---|---|---|---|"]
    for runs in known.values():
        parts: dict[tuple[str, ...], list[Run]] = defaultdict(list)
        for one in runs:
            parts[_SEED.sub("--seed SEED", one.command), one.commit, _place(one)].append(one)
        for (command, commit, place), found in parts.items():
            alone, dates = len(found) == 1, [one.date for one in found]
            cells = (
                dates[0] if alone else f"{min(dates)} to {max(dates)}",
                f"`{found[0].command if alone else command}`",
                str(found[0].seed) if alone else f"{len(found)} parts: {_seeds([one.seed for one in found])}",
                f"`{commit}`",
                _duration(sum(one.seconds for one in found)),
                place,
            )
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _place(run: Run) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items() if number != "none")
    return f"{run.machine}; {versions}"


def _seeds(seeds: Sequence[int]) -> str:
    """For example "0, 20000, ... 80000" where none is missing in between; otherwise each of them."""
    ordered = sorted(seeds)
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > 3 and len(steps) == 1:
        return f"{ordered[0]}, {ordered[1]}, ... {ordered[-1]}"
    return ", ".join(map(str, ordered))


def _not_reached(known: Mapping[str, Sequence[Run]]) -> str:
    found = []
    for tool, runs in known.items():
        said: Any = runs[-1].more.get("not_reached", ())
        texts = [said] if isinstance(said, str) else list(said)
        texts += [
            f"`{one.command}` ended after {_number(one.counts['states'])} states, before all were reached"
            for one in runs
            if one.more.get("whole") is False
        ]
        found += [f"- {WHAT.get(tool, tool)}: {text}" for text in texts if text]
    return "\n".join(found) or "The recorded runs name nothing that they did not reach."


def _number(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
