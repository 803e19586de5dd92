"""The table of docs/reliability.md, made of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.reliability.ledger import Run


class _Row(NamedTuple):
    what: str
    counts: tuple[str, ...]


ROWS: Final = {
    "simulator": _Row("Simulator", ("schedules", "faults")),
    "explorer": _Row("Explorer: interleavings", ("states", "steps")),
    "transactions": _Row("Transactional services killed on a broker", ("killed", "stopped", "events")),
    "campaign": _Row(
        "Services on real servers, through faults",
        (
            "services killed",
            "zombies",
            "brokers killed",
            "stores killed",
            "answers lost",
            "wall clocks jumped",
        ),
    ),
    "soak": _Row("Soak: services at work, without faults", ("events", "minutes")),
    "failovers": _Row(
        "Failovers to a mirror of a killed broker",
        ("failovers", "stopped for outputs", "plans finished there", "refused, and started there"),
    ),
    "switches": _Row(
        "New code that follows a flow, and takes its place",
        ("switches", "commands killed", "ways back", "refused"),
    ),
    "pairs": _Row("Explorer: pairs of faults", ("states", "pairs")),
    "corrections": _Row("Worlds of corrections", ("worlds",)),
    "fuzz": _Row("Fuzzer", ("executions",)),
}
"""Tools in the order of the page, with what they are called there, and what they count."""


def current(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Tool -> its runs over the code of the last one: their counts may be added up.

    A command that was run again with the same seed shows nothing new, so only the last time counts. It counts as another run
    if the tool reports that it went on (`part`).
    """
    found: dict[str, list[Run]] = {}
    for tool, own in distinct(runs).items():
        last = [run for run in runs if run.tool == tool][-1]
        found[tool] = [one for one in own if one.code == last.code]
    return found


def distinct(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Tool -> its runs over all code, without what was only repeated."""
    found: dict[str, list[Run]] = {}
    for tool in ROWS:
        own = {
            (one.code, one.command, one.seed, one.more.get("part")): one for one in runs if one.tool == tool
        }
        if own:
            found[tool] = list(own.values())
    return found


def _added_up(tool: str, runs: Sequence[Run]) -> tuple[str, str]:
    """What was counted, and violations."""
    counts: Counter[str] = sum((Counter(one.counts) for one in runs), Counter())
    counted = "; ".join(f"{counts[name]:,.0f} {name}" for name in ROWS[tool].counts)
    return counted, str(sum(one.violations for one in runs))


def table(runs: Sequence[Run]) -> str:
    """What came of the recorded runs: a row for each tool, its parts added up."""
    rows = [
        "| | counted on this commit | violations | took | ended | commit | with all commits before | violations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    every = distinct(runs)
    for tool, own in current(runs).items():
        commits = dict.fromkeys(one.commit if one.clean else f"{one.commit} and changes" for one in own)
        cells = (
            ROWS[tool].what,
            *_added_up(tool, own),
            f"{sum(one.seconds for one in own) / 60:.0f} min",
            max(one.date for one in own).partition(" ")[0],
            ", ".join(f"`{commit}`" for commit in commits),
            *(_added_up(tool, every[tool]) if len(every[tool]) > len(own) else ("the same", "the same")),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
