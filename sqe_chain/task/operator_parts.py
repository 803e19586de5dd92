"""Parts of the text of operators: where a value is there, who takes it, and lines that are always the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sqe_chain.errors.safe_text import one_line
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import FlatMapNode, KeyedNode, MapNode, Node

INDENT: Final = "    "


class Share:
    """Who takes a value: maps, stages and outputs. Each must have a value of its own; filters and keys only look at it.

    Args:
        takers: how many take it.
        read: it is what a codec has read, and nobody else has it. Then the last to take it needs no other, and an output need not
            read it back.
    """

    def __init__(self, takers: int, *, read: bool) -> None:
        self._left = takers
        self._several = takers > 1
        self.read = read

    def is_own(self, takers: int = 1, *, rests: bool = False) -> bool:
        """Whether the next that take it may have the object itself.

        Args:
            takers: how many of them there are.
            rests: it rests there: then it must be what its codec reads.
        """
        self._left -= takers
        return (not self._several and not rests) or (self.read and self._left == 0)


class ValuePlace(NamedTuple):
    """Where a value is in the text.

    Attributes:
        value: name of its variable.
        key: that of its key; None: nobody asks for it.
        path: expression of its path; None: nobody asks for it.
        depth: how deep the text is nested.
        share: who takes the value.
        operators: how many operators there are in its function so far.
    """

    value: str
    key: str | None
    path: str | None
    depth: int
    share: Share
    operators: int = 0


def is_taker(node: Node) -> bool:
    """Whether a value ends at a node, which makes others of it or keeps it; to all else it is shown."""
    return isinstance(node, KeyedNode | MapBatchesNode | MapNode | FlatMapNode)


def takers(flow: CompiledFlow, nodes: Iterable[Node]) -> int:
    """How many take a value that comes to some nodes."""
    return sum(1 if is_taker(node) else takers(flow, flow.children[node.index]) for node in nodes)


def columns(n: int, key: str | None, value: str, path: str | None) -> str:
    """The text that appends a unit of a run to the columns of a node. If the codec refuses the value, it appends nothing.

    The value comes first: nothing else may fail. Else the columns would not fit together from the next unit on.
    """
    return f"values{n}({value}); keys{n}({key}); paths{n}({path}); inputs{n}(i)"


def holds(n: int, call: str) -> str:
    """The expression for whether a condition holds. True and False pass at once; all else is looked at."""
    return f"(h{n} := {call}) is True or h{n} and truth{n}(h{n})"


def as_bytes(key: str, indent: str, unless: str) -> list[str]:
    """The text that makes bytes of a key. Texts are remembered: then the same key is one object, whose hash is known."""
    return [
        f"{indent}if {key}.__class__ is str:",
        f"{indent}{INDENT}{key} = known_key({key}) or new_key({key})",
        f"{indent}elif {unless}{key}.__class__ is not bytes:",
        f"{indent}{INDENT}{key} = key_bytes({key})",
    ]


def comment(what: str, node: Node) -> str:
    """A comment of the text: on one line, whatever the folder of the flow is called."""
    return f"# {one_line(f'{what}, {node.declared_at}')}"
