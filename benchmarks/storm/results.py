"""The table and the picture of all storms, and whether each system did the same in each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import median

from benchmarks.storm.oracle import Verdict
from benchmarks.storm.running import Outcome
from benchmarks.storm.systems import System

BEGIN, END = "<!-- storm: begin -->", "<!-- storm: end -->"
"""Marks of the part of the page that the command writes."""

_COLORS = {"published again upstream": "#ef6c00", "by itself": "#c62828", "lost": "#6a1b9a"}
_WIDTH, _LEFT, _BAR, _TOP = 760, 250, 26, 64


@dataclass(slots=True)
class Results:
    """What came of the storms.

    Attributes:
        facts: in each storm.
        outcomes: system -> seed -> what came of it.
        skipped: system -> why it took no part, or did not get to the end.
    """

    facts: int
    outcomes: dict[str, dict[int, Outcome]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, system: System, seed: int, outcome: Outcome) -> None:
        """Add a storm."""
        self.outcomes.setdefault(system.name, {})[seed] = outcome

    def verdicts(self, system: str) -> set[Verdict]:
        """What a system did: one verdict, unless storms differ."""
        return {outcome.judgement.verdict for outcome in self.outcomes.get(system, {}).values()}

    def differing(self) -> list[str]:
        """Systems whose verdicts differ from seed to seed."""
        return [name for name in self.outcomes if len(self.verdicts(name)) > 1]

    def table(self, systems: Sequence[System]) -> str:
        """Markdown: a row for each system, a number for each seed where they differ."""
        names = ("system", "verdict", "wrong totals", "lost", "doubled by itself", "counted again")
        lines = [_line((*names, "reader outside: too high, back", "right after")), "|---" * 8 + "|"]
        lines += [_line(self._row(system)) for system in systems if system.name in self.outcomes]
        return "\n".join(lines)

    def _row(self, system: System) -> Iterator[str]:
        found = list(self.outcomes[system.name].values())

        def each(figure: Callable[[Outcome], int]) -> str:
            figures = [f"{figure(outcome):,}" for outcome in found]
            return figures[0] if len(set(figures)) == 1 else " · ".join(figures)

        verdicts = self.verdicts(system.name)
        yield system.title
        yield " / ".join(
            f"**{verdict}**" if verdict is Verdict.EXACT else verdict for verdict in sorted(verdicts)
        )
        yield each(lambda outcome: outcome.judgement.wrong)
        yield each(lambda outcome: outcome.judgement.lost)
        yield each(lambda outcome: outcome.judgement.doubled)
        yield each(lambda outcome: outcome.judgement.repeated)
        reader = (
            each(lambda outcome: outcome.reader.too_high),
            each(lambda outcome: outcome.reader.went_back),
        )
        yield ", ".join(reader) if any(outcome.reader.seen for outcome in found) else "no topic"
        exact = verdicts == {Verdict.EXACT}
        yield f"{median(outcome.calm_s for outcome in found):.0f} s" if exact else "never"

    def picture(self, systems: Sequence[System]) -> str:
        """SVG: for each system what it counted too often, and what it lost, on average of the seeds."""
        shown = [system for system in systems if system.name in self.outcomes]
        rows = [self._bars(system.name) for system in shown]
        longest = max((sum(row.values()) for row in rows), default=0) or 1
        height = _TOP + _BAR * len(shown) + 16
        title = "Facts counted wrongly after the same storm"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" font-family="sans-serif" font-size="12">',
            f"<title>{title}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(16, 22, f"{title} (of {self.facts:,} in each)", weight="bold"),
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
