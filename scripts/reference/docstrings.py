"""Turns a docstring in Google's style into Markdown."""

from __future__ import annotations

import inspect
import re

MENTIONED_ONCE = ("- `FlowError`: ", "- `ConfigurationError`: ", "- `ChainError`: ")
"""What nearly every declaration, or call, may raise: the index mentions it once."""

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
_FIELD = re.compile(r"(\*{0,2}[\w, ()]+?):\s+(.*)")


def markdown(doc: str) -> str:
    """A Google-style docstring as Markdown."""
    out: list[str] = []
    lines = doc.replace("``", "`").splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        section = _SECTION.match(line)
        if section:
            index, body = _block(lines, index + 1)
            rows = [row for row in _fields(body, section.group(1)) if not row.startswith(MENTIONED_ONCE)]
            out += [f"**{section.group(1)}**", "", *rows, ""] if rows else []
        elif line.startswith((">>>", "    ")) and (not out or out[-1] == "" or line.startswith(">>>")):
            index, body = _example(lines, index)
            out += ["```text", *body, "```", ""]
        else:
            out.append(line)
            index += 1
    return "\n".join(out).strip()


def _block(lines: list[str], index: int) -> tuple[int, list[str]]:
    """The indented lines from here, and where they end."""
    start = index
    while index < len(lines) and (not lines[index] or lines[index].startswith(" ")):
        index += 1
    return index, [line[4:] for line in lines[start:index]]


def _example(lines: list[str], index: int) -> tuple[int, list[str]]:
    """Lines of an example or a drawing: until text at the margin follows an empty line."""
    start, doctest = index, lines[index].startswith(">>>")
    while index < len(lines) and (
        lines[index].startswith("    ")
        or (doctest and lines[index])
        or (not lines[index] and index + 1 < len(lines) and lines[index + 1].startswith("    "))
    ):
        index += 1
    return index, inspect.cleandoc("\n" + "\n".join(lines[start:index])).splitlines()


def _fields(body: list[str], section: str) -> list[str]:
    """`name: text` entries as a list; lines with more indentation continue an entry."""
    rows: list[str] = []
    for line in body:
        entry = _FIELD.match(line) if section != "Returns" else None
        if entry and not line.startswith(" "):
            rows.append(f"- `{entry.group(1)}`: {entry.group(2)}")
        elif not line.strip():
            continue
        elif (line.startswith(" ") and rows) or (rows and section == "Returns"):
            rows[-1] += f" {line.strip()}"
        else:
            rows.append(f"- {line.strip()}")
    return rows
