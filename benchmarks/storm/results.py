"""The table and the picture of all storms, and whether each system did the same in each of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import median

from benchmarks.storm.ledger import Entry
from benchmarks.storm.oracle import Verdict
from benchmarks.storm.outcome import Outcome
from benchmarks.storm.system import System

BEGIN, END = "<!-- storm: begin -->", "<!-- storm: end -->"
"""Marks of the part of the page that the command writes."""

_COLORS = {"published again upstream": "#ef6c00", "by itself": "#c62828", "lost": "#6a1b9a"}
_WIDTH, _LEFT, _BAR, _TOP = 760, 250, 26, 64


@dataclass(slots=True)
class Results:
    """What came of the storms.

    Args:
        entries: a later one of the same system and seed replaces an earlier one.

    Attributes:
        outcomes: system -> seed -> what came of it, for storms that got to their end.
        stuck: the storms that did not, also those that were repeated since.
        versions: system -> of what it consists of.
        ran_on: system and seed -> commit of this project.
        skipped: system -> why it took no part.
    """

    entries: Iterable[Entry] = ()
    outcomes: dict[str, dict[int, Outcome]] = field(default_factory=dict)
    stuck: list[Entry] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    ran_on: dict[tuple[str, int], str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in self.entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Add a storm."""
        self.versions[entry.system] = entry.versions
        of_system = self.outcomes.setdefault(entry.system, {})
        if entry.outcome is None:
            self.stuck.append(entry)
        else:
            of_system[entry.seed] = entry.outcome
            self.ran_on[entry.system, entry.seed] = entry.commit

    def has(self, system: str, seed: int) -> bool:
        """Whether a storm got to its end."""
        return seed in self.outcomes.get(system, {})

    def seeds(self) -> list[int]:
        """All seeds."""
        ended = {seed for outcomes in self.outcomes.values() for seed in outcomes}
        return sorted(ended | {entry.seed for entry in self.stuck})

    def commits(self) -> str:
        """On which commits the results shown were got: the one of most systems first, others with their systems."""
        counted = Counter(self.ran_on.values()).most_common()
        texts = [commit for commit, _ in counted[:1]]
        for commit, _ in counted[1:]:
            systems = dict.fromkeys(system for (system, _), where in self.ran_on.items() if where == commit)
            texts.append(f"{commit} ({', '.join(systems)})")
        return ", ".join(texts)

    def verdicts(self, system: str) -> list[Verdict]:
        """What a system did: one verdict, unless storms differ. Each seed has to give one."""
        outcomes = self.outcomes.get(system, {})
        return sorted(
            {outcomes[seed].verdict if seed in outcomes else Verdict.NONE for seed in self.seeds()},
            key=list(Verdict).index,
        )

    def faults(self, systems: Iterable[System]) -> Iterator[str]:
        """What is not as the page promises: a storm without a verdict, verdicts that differ, and one of ours that is not exact."""
        for system in systems:
            verdicts = self.verdicts(system.name) if system.name in self.outcomes else []
            for seed in self.seeds() if verdicts else ():
                if not self.has(system.name, seed):
                    yield f"{system.name}: no result of seed {seed}"
                elif lacks := self.outcomes[system.name][seed].lacks:
                    yield f"{system.name}: no verdict of seed {seed}: {'; '.join(lacks)}"
            given = [verdict for verdict in verdicts if verdict is not Verdict.NONE]
            if len(given) > 1:
                yield f"{system.name}: its verdict depends on the seed"
            if system.ours and given and given != [Verdict.EXACT]:
                yield f"{system.name} is not exact"
            if system.ours and system.name in self.skipped:
                yield f"{system.name}: {self.skipped[system.name]}"

    def notes(self) -> Iterator[str]:
        """What the table does not show: systems without a row, and storms that did not get to their end."""
        for name, reason in self.skipped.items():
            yield f"- Not shown: {name}. {reason.splitlines()[0]}"
        for entry in self.stuck:
            then = "It was repeated." if self.has(entry.system, entry.seed) else "There is no result of it."
            yield f"- {entry.system}, seed {entry.seed}: the storm did not get to its end. Reason: {entry.stuck}. {then}"

    def table(self, systems: Sequence[System]) -> str:
        """Markdown: a row for each system, a number for each seed where they differ."""
        names = ("system", "verdict", "wrong totals", "lost", "doubled by itself", "counted again")
        lines = [_line((*names, "reader outside: too high, back", "right after")), "|---" * 8 + "|"]
        lines += [_line(self._row(system)) for system in systems if self.outcomes.get(system.name)]
        return "\n".join(lines)

    def _row(self, system: System) -> Iterator[str]:
        found = [outcome for _, outcome in sorted(self.outcomes[system.name].items())]

        def each(figure: Callable[[Outcome], int]) -> str:
            figures = [f"{figure(outcome):,}" for outcome in found]
            return figures[0] if len(set(figures)) == 1 else " · ".join(figures)

        verdicts = self.verdicts(system.name)
        yield system.title
        yield " / ".join(f"**{verdict}**" if verdict is Verdict.EXACT else verdict for verdict in verdicts)
        yield each(lambda outcome: outcome.judgement.wrong)
        yield each(lambda outcome: outcome.judgement.lost)
        yield each(lambda outcome: outcome.judgement.doubled)
        yield each(lambda outcome: outcome.judgement.repeated)
        reader = (each(lambda outcome: outcome.too_high), each(lambda outcome: outcome.went_back))
        yield ", ".join(reader) if any(outcome.seen for outcome in found) else "no topic"
        exact = verdicts[0] is Verdict.EXACT and not set(verdicts) - {Verdict.EXACT, Verdict.NONE}
        yield f"{median(outcome.calm_s for outcome in found):.0f} s" if exact else "never"

    def picture(self, systems: Sequence[System], facts: int) -> str:
        """SVG: for each system what it counted too often, and what it lost, on average of the seeds."""
        shown = [system for system in systems if self.outcomes.get(system.name)]
        rows = [self._bars(system.name) for system in shown]
        longest = max((sum(row.values()) for row in rows), default=0) or 1
        height = _TOP + _BAR * len(shown) + 16
        title = "Facts counted wrongly after the same storm"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" font-family="sans-serif" font-size="12">',
            f"<title>{title}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(16, 22, f"{title} (of {facts:,} in each)", weight="bold"),
        ]
        for number, (label, color) in enumerate(_COLORS.items()):
            parts.append(f'<rect x="{16 + 190 * number}" y="34" width="12" height="12" fill="{color}"/>')
            parts.append(_text(34 + 190 * number, 44, label))
        for number, (system, row) in enumerate(zip(shown, rows, strict=True)):
            y, x = _TOP + _BAR * number, float(_LEFT)
            parts.append(_text(_LEFT - 8, y + 15, system.title, anchor="end"))
            for label, count in row.items():
                width = count / longest * (_WIDTH - _LEFT - 80)
                if count:
                    parts.append(
                        f'<rect x="{x:.1f}" y="{y + 3}" width="{max(1.5, width):.1f}" height="16" fill="{_COLORS[label]}"/>'
                    )
                    x += max(1.5, width)
            total = sum(row.values())
            parts.append(
                _text(x + 6, y + 15, f"{total:,.0f}") if total else _text(x, y + 15, "exact", fill="#2e7d32")
            )
        return "\n".join([*parts, "</svg>", ""])

    def _bars(self, system: str) -> dict[str, float]:
        found = [outcome.judgement for outcome in self.outcomes[system].values()]
        figures = (
            [one.repeated for one in found],
            [one.doubled for one in found],
            [one.lost for one in found],
        )
        return {label: sum(each) / len(found) for label, each in zip(_COLORS, figures, strict=True)}


def report(entries: Sequence[Entry], systems: Sequence[System], skipped: Mapping[str, str]) -> str:
    """What the page shows.

    Args:
        entries: at least one. Of each system and seed the last one is shown.
        systems: in the order of the table.
        skipped: system -> why it took no part.
    """
    results = Results(entries, skipped=dict(skipped))
    last = entries[-1]
    seeds = ", ".join(map(str, results.seeds()))
    shown = [system for system in systems if results.outcomes.get(system.name)]
    versions = results.versions
    parts = (
        f"Seeds {seeds}, {last.facts:,} facts each, {last.date}. Broker: Kafka {last.kafka}. Commits: {results.commits()}.",
        results.table(systems),
        "\n".join(f"- **{one.title}** ({versions[one.name]}; {one.setup}). {one.sentence}" for one in shown),
        "\n".join(results.notes()),
    )
    return "\n\n".join(part for part in parts if part)


def write_between(page: Path, text: str) -> None:
    """Replace what the command wrote into a page before.

    Raises:
        ValueError: the page has no marks.
    """
    before = page.read_text(encoding="utf-8")
    after, places = re.subn(
        f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{text}\n\n{END}", before, flags=re.DOTALL
    )
    if places != 1:
        raise ValueError(f"{page} has {places} places between {BEGIN} and {END}. Expected one.")
    page.write_text(after, encoding="utf-8")


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", fill: str = "#263238"
) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
