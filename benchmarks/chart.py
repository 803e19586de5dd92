"""Charts of lines over two logarithmic axes, as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 44, 52
_COLORS: Final = ("#1565c0", "#c62828", "#2e7d32", "#6a1b9a", "#ef6c00", "#00838f", "#4e342e")
_APART: Final = 15
"""Least distance of two labels, in pixels."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        label: beside its end.
        points: x and y, both above 0, in the order of x.
        drawn: how many of the points were measured; what follows them is dashed.
    """

    label: str
    points: Sequence[tuple[float, float]]
    drawn: int


def chart(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """The SVG of a chart.

    Args:
        title: above it.
        across: what the x axis shows.
        up: what the y axis shows.
        lines: at least one.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    low_x, high_x = log10(min(xs)), log10(max(xs))
    low_y, high_y = floor(log10(min(ys))), ceil(log10(max(ys)))

    def at(x: float, y: float) -> tuple[float, float]:
        right = (log10(x) - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)
        above = (log10(y) - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)
        return _LEFT + right, _HEIGHT - _BOTTOM - above

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 24, title, "start", "bold"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, across),
        f'<g transform="translate(18 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)">{_text(0, 0, up)}</g>',
    ]
    for power in range(low_y, high_y + 1):
        y = at(min(xs), 10.0**power)[1]
        parts.append(_stroke([(_LEFT, y), (_WIDTH - _RIGHT, y)], "#e0e0e0"))
        parts.append(_text(_LEFT - 8, y + 4, f"{10.0**power:g}", "end"))
    for x in sorted({*xs}):
        across_x = at(x, ys[0])[0]
        parts.append(_stroke([(across_x, _TOP), (across_x, _HEIGHT - _BOTTOM)], "#f0f0f0"))
        parts.append(_text(across_x, _HEIGHT - _BOTTOM + 18, f"{x:,.0f}"))
    ends = _spread([at(*line.points[-1])[1] for line in lines])
    for number, (line, label_y) in enumerate(zip(lines, ends, strict=True)):
        color, places = _COLORS[number % len(_COLORS)], [at(*point) for point in line.points]
        parts.append(_stroke(places[: line.drawn], color, 2))
        if line.drawn < len(places):
            parts.append(_stroke(places[line.drawn - 1 :], color, 2, dashed=True))
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places[: line.drawn]
        ]
        parts.append(_text(_WIDTH - _RIGHT + 8, label_y + 4, line.label, "start", fill=color))
    return "\n".join([*parts, "</svg>", ""])


def _spread(wanted: Sequence[float]) -> list[float]:
    """Heights of labels near to those that are wanted, so that none covers another."""
    placed, last = dict[int, float](), -_APART * 1.0
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        last = placed[index] = max(wanted[index], last + _APART)
    return [placed[index] for index in range(len(wanted))]


def _stroke(
    points: Iterable[tuple[float, float]], color: str, width: int = 1, *, dashed: bool = False
) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dashes}/>'


def _text(
    x: float, y: float, text: str, anchor: str = "middle", weight: str = "normal", fill: str = "#263238"
) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
