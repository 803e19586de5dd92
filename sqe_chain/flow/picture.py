"""A flow as a picture: a tree of text for terminals, SVG for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import Node, OutputNode, SourceNode, StageNode

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 190, 46, 60, 18, 12
_FILLS: Final[dict[type[Node], str]] = {SourceNode: "#e3f2fd", OutputNode: "#e8f5e9", StageNode: "#fff3e0"}
_OPERATOR_FILL: Final = "#fafafa"


def as_text(flow: CompiledFlow) -> str:
    """The flow as a tree, sources first. A node with two parents is drawn below the first and named below the second.

    >>> from google.protobuf.wrappers_pb2 import Int64Value
    >>> from sqe_chain.flow import Flow
    >>> flow = Flow("screws")
    >>> stage = flow.source("raw", Int64Value).aggregate("per-key", state=Int64Value, fold=lambda total, one: None)
    >>> stage.changes().to("totals", partitions=1)
    >>> print(as_text(flow.compile()))
    flow screws
    └─ source raw: google.protobuf.Int64Value
       └─ aggregate per-key: google.protobuf.Int64Value
          └─ changes
             └─ to totals: 1 partition

    """
    return "\n".join([f"flow {flow.name}", *_branches(flow, flow.sources, "", None)])


def as_svg(flow: CompiledFlow) -> str:
    """The flow as SVG, from left to right: one column for each node on the path from a source."""
    depth: dict[int, int] = {}
    rows: dict[int, int] = {}
    for node in flow.nodes:
        depth[node.index] = max((depth[parent] + 1 for parent in node.parents), default=0)
        above = [rows[parent] for parent in node.parents]
        taken = [rows[other] for other in rows if depth[other] == depth[node.index]]
        rows[node.index] = max([*(min(above, default=0),), *(row + 1 for row in taken)])
    corners = {
        index: (_MARGIN + depth[index] * (_WIDTH + _ACROSS), _MARGIN + rows[index] * (_HEIGHT + _DOWN))
        for index in depth
    }
    width = max((x for x, _ in corners.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in corners.values()), default=0) + _HEIGHT + _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img"'
    parts = [f'{head} font-family="sans-serif" font-size="12"><title>flow {escape(flow.name)}</title>']
    for node in flow.nodes:
        parts += [_line(corners[parent], corners[node.index]) for parent in node.parents]
    parts += [_box(node, corners[node.index]) for node in flow.nodes]
    return "".join([*parts, "</svg>"])


def _branches(flow: CompiledFlow, nodes: Sequence[Node], indent: str, parent: int | None) -> Iterator[str]:
    for node in nodes:
        last = node is nodes[-1]
        what, more = node.label
        known = bool(node.parents) and node.parents[0] != parent
        yield f"{indent}{'└─' if last else '├─'} {what}{f': {more}' if more else ''}{' (above)' if known else ''}"
        if not known:
            children = flow.children[node.index]
            yield from _branches(flow, children, indent + ("   " if last else "│  "), node.index)


def _box(node: Node, corner: tuple[int, int]) -> str:
    x, y = corner
    what, more = node.label
    fill = _FILLS.get(type(node), _OPERATOR_FILL)
    frame = (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="{fill}" stroke="#607d8b"/>'
    )
    return (
        f"<g><title>{escape(f'{what} {more}'.strip())}, declared at {escape(node.declared_at)}</title>{frame}"
        f"{_text(x, y + (19 if more else 28), what, 'bold')}{_text(x, y + 36, more, 'normal') if more else ''}</g>"
    )


def _text(x: int, y: int, text: str, weight: str) -> str:
    longest = 27
    shown = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return f'<text x="{x + 10}" y="{y}" font-weight="{weight}" fill="#263238">{escape(shown)}</text>'


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _WIDTH, start[1] + _HEIGHT // 2, end[0], end[1] + _HEIGHT // 2
    middle = (x1 + x2) // 2
    return f'<path d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}" fill="none" stroke="#607d8b"/>'
