"""The operators between two places of rest (sources, stages, outputs) as one Python function, written once for each flow.

A chain of closures would call each other for every value. Here a value goes through a loop that calls the user's functions
one after the other, in the order of records. Measured alone, it is 2.0 to 7.5 times as fast as closures. A record costs 0.42 µs
against 1.09 for map, filter and output. It costs 0.73 against 1.43 for a flat_map, and 0.20 against 1.47 into a fold. Steps over columns
took as long over whole tasks, but call functions in another order: then another record may fail first.
`sqe-chain show --compiled` prints the text, and tracebacks show its lines.

Names end with the index of a node. `v` is a value, `k` its key, `p` its path, and `i` the number of its record. `f` is the user's
function, and `m` what a flat_map gave. `n` is the place of a value in that, `o` a copy that a function may change, `b` a payload's bytes.
Five names keep what a codec lookup has found for the last value at a node, because the next value mostly has the same type:

- `c`: the class of that value. It is None before the first one, which is looked up for that reason.
- `t`: the name of its type: in an envelope, or as the tag of a codec in a shuffle.
- `e`: encodes it.
- `d`: reads it back. None: the codec writes only what it reads.
- `x`: may know, without reading it, that a value is read back. None: only reading shows it. For outputs alone.

They are variables of `bind`, outside the function that takes values, so they last as long as the attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sqe_chain.codecs.registry import reads_as_default
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import (
    FilterNode,
    FlatMapNode,
    FunctionNode,
    KeyByNode,
    KeyedNode,
    MapNode,
    Node,
    OutputNode,
    SourceNode,
    StageNode,
)
from sqe_chain.flow.stage_kind import Side
from sqe_chain.flow.units import number
from sqe_chain.task.operator_parts import (
    INDENT,
    Share,
    ValuePlace,
    as_bytes,
    columns,
    comment,
    holds,
    is_taker,
    takers,
)
from sqe_chain.task.reached import deleted_type, order_matters, reached, wants_key

TITLE: Final = "operators after "
"""How the titles of texts begin."""
DEEPEST: Final = 10
"""Operators in one function: each may nest a loop, and Python refuses more than 20 blocks in each other. `run` has three of its own."""


class Operators(NamedTuple):
    """The text of the operators after a node.

    Attributes:
        source: the text: a function ``bind(now_ms, collector, origin_of)``, which returns the function that takes values.
        title: what it is, for tracebacks.
        nodes: the nodes whose functions it calls.
    """

    source: str
    title: str
    nodes: tuple[Node, ...]


def operators_after(flow: CompiledFlow, node: Node, side: Side, shuffled: frozenset[int]) -> Operators | None:
    """The operators after a node; None when nobody wants what it gives.

    Args:
        flow: the flow.
        node: source, `map_batches` or stage. After the first two the function takes the values of a whole run of records,
            ``run(inputs, values, keys, paths, failed)``; after a stage one value, ``push(value, key, path, origin)``.
        side: of a stage: what takes its `changes()` or `dropped()`; else what takes its ordinary output.
        shuffled: stages (by index) that come after a shuffle: their units are serialized at once.
    """
    return OperatorWriter(flow, shuffled, of_run=isinstance(node, SourceNode | MapBatchesNode)).write(
        node, side
    )


def texts(flow: CompiledFlow) -> list[Operators]:
    """All operators of a flow: after each source and `map_batches`, as it is read without a shuffle, and after each stage."""
    everywhere = frozenset(stage.index for stage in flow.stages)
    batches = (node for node in flow.nodes if isinstance(node, MapBatchesNode))
    sides: tuple[Side, ...] = ("", "changes", "dropped")
    own = [operators_after(flow, node, "", frozenset()) for node in (*flow.sources, *batches)]
    own += [operators_after(flow, stage, side, everywhere) for stage in flow.stages for side in sides]
    return [operators for operators in own if operators is not None]


class OperatorWriter:
    """Writes the text."""

    def __init__(self, flow: CompiledFlow, shuffled: frozenset[int], *, of_run: bool) -> None:
        self._flow = flow
        self._shuffled = shuffled
        self._of_run = of_run  # it takes the values of a block; else one value, which a stage gives
        # Functions over batches give late what they were given early: then paths bring outputs back into order.
        self._ordered = of_run and order_matters(flow)
        # How the text asks for the input of a value, and what it appends in its place where nobody asks yet.
        self._origin = "origin_of(i)" if of_run else "origin_of(origin)"
        self._input = "i" if of_run else "origin"
        self._nodes: dict[int, Node] = {}  # what the text has to call, in the order in which they are reached
        # Those to which several lead: a function each, or their text would be there twice.
        self._shared = set[int]()
        self._pending: list[Node] = []  # of these, whose functions are still to be written
        self._copied = set[int]()  # those whose values the text finds a codec for: only they need `c t e d x`

    def write(self, node: Node, side: Side) -> Operators | None:
        """The text of the operators after a node; see `operators_after`."""
        first = [child for child in self._flow.children[node.index] if child.side == side]
        if not first:
            return None
        self._reach(first)
        body = self._run_function(node, first) if self._of_run else self._push_function(node, first, side)
        written = set[int]()
        # Ends: writing a function may add nodes below it, each is written once, and a flow has no circle.
        while self._pending:
            own = self._pending.pop()
            if own.index not in written:
                written.add(own.index)
                body = [*self._own_function(own), *body]
        lines = [*self._bindings(), *body, f"return {'run' if self._of_run else 'push'}"]
        head = "def bind(now_ms, collector, origin_of):"
        source = "\n".join([head, *(f"{INDENT}{line}" if line else "" for line in lines), ""])
        what = f"{side}() of " if side else ""
        title = f"{TITLE}{what}{node.described(self._flow.nodes)}"
        return Operators(source, title, tuple(self._nodes.values()))

    def _reach(self, first: Iterable[Node]) -> None:
        """Note the nodes of the text, and those to which several lead."""
        ways, pending = Counter[int](), [*first]
        while pending:
            node = pending.pop()
            ways[node.index] += 1
            if node.index not in self._nodes:
                self._nodes[node.index] = node
                ends = isinstance(node, KeyedNode | MapBatchesNode)
                pending += [] if ends else self._flow.children[node.index]
        self._shared = {index for index, times in ways.items() if times > 1}

    def _run_function(self, node: Node, first: Sequence[Node]) -> list[str]:
        keyed, tracked = wants_key(self._flow, first), self._tracks(first)
        columns = ["inputs", "values", *(["keys"] if keyed else []), *(["paths"] if tracked else [])]
        names = ["i", "v", *(["k"] if keyed else []), *(["p"] if tracked else [])]
        read = isinstance(node, SourceNode) and node.codec is not None and reads_as_default(node.codec)
        share = Share(takers(self._flow, first), read=read)
        at = ValuePlace("v", "k" if keyed else None, "p" if tracked else None, 4, share)
        body = self._written_into([], first, node, at)
        # One try around the whole loop costs nothing for each record. `each` is an iterator, so the loop goes on behind the record
        # that failed: the text's `while True` is bounded by the records.
        return [
            "def run(inputs, values, keys, paths, failed):",
            *self._nonlocal(),
            f"{INDENT}each = zip({', '.join(columns)})",
            f"{INDENT}while True:",
            f"{INDENT * 2}try:",
            f"{INDENT * 3}for {', '.join(names)} in each:",
            *body,
            f"{INDENT * 3}return",
            f"{INDENT * 2}except Exception as error:",
            f"{INDENT * 3}if failed(i, error):",
            f"{INDENT * 4}return",
        ]

    def _push_function(self, node: Node, first: Sequence[Node], side: Side) -> list[str]:
        body: list[str] = []
        function = next(
            (child for child in reached(self._flow, first) if isinstance(child, FunctionNode)), None
        )
        # A stage may still hold what it gives, as a part of a state. A function could change it there, so it gets a
        # copy.
        fresh = side == "dropped" or (not side and isinstance(node, StageNode) and node.traits.gives_fresh)
        if function is not None and not fresh:
            body += [*self._codec(function, "v", INDENT), f"{INDENT}v = {self._read_back(function, 'v')}"]
        stored = side == "changes" and isinstance(node, StageNode) and node.traits.states_by_key
        share = Share(takers(self._flow, first), read=fresh or stored or function is not None)
        self._written_into(body, first, node, ValuePlace("v", "k", "p", 1, share))
        return ["def push(v, k, p, origin):", *self._nonlocal(), *body]

    def _own_function(self, node: Node) -> list[str]:
        """An operator that several lead to, or that lies deep, as a function of its own."""
        share = Share(takers(self._flow, [node]), read=False)
        body = self._written_one([], node, ValuePlace("v", "k", "p", 1, share))
        return [f"def node_{node.index}(v, k, p, {self._input}):", *self._nonlocal(), *body, ""]

    def _written_into(
        self, lines: list[str], children: Sequence[Node], parent: Node, at: ValuePlace
    ) -> list[str]:
        for branch, child in enumerate(children):
            path = at.path if self._tracks([child]) else None
            if path is not None and len(children) > 1:
                path = f"{path} + {number(branch)!r}"
            if path is not None and isinstance(child, StageNode) and child.traits.inputs > 1:
                path = f"{path} + {number(child.parents.index(parent.index))!r}"
            own = at._replace(path=path)
            if child.index in self._shared or (at.operators >= DEEPEST and isinstance(child, FunctionNode)):
                self._pending.append(child)
                value = self._own(lines, child, own, takers(self._flow, [child]))
                arguments = value, own.key or "None", own.path or "None", self._input
                lines.append(f"{INDENT * at.depth}node_{child.index}({', '.join(arguments)})")
            else:
                self._written_one(lines, child, own)
        return lines

    def _written_one(self, lines: list[str], node: Node, at: ValuePlace) -> list[str]:
        if isinstance(node, StageNode):
            return self._into_stage(lines, node, at)
        if isinstance(node, OutputNode):
            return self._into_output(lines, node, at)
        if isinstance(node, MapBatchesNode):
            return self._into_batch(lines, node, at)
        children = self._flow.children[node.index]
        if not isinstance(node, FunctionNode):
            return self._written_into(lines, children, node, at)
        indent, n = INDENT * at.depth, node.index
        lines.append(f"{indent}{comment(node.word, node)}")
        if is_taker(node):
            at = at._replace(value=self._own(lines, node, at))
        call = self._call(f"f{n}", node.function.takes_context, at)
        below = at._replace(operators=at.operators + 1)
        match node:
            case MapNode():
                lines.append(f"{indent}v{n} = {call}")
                below = below._replace(value=f"v{n}", share=self._made(node))
            case FilterNode():
                lines.append(f"{indent}if {holds(n, call)}:")
                below = below._replace(depth=at.depth + 1)
            case KeyByNode():
                if wants_key(self._flow, children):
                    lines += [f"{indent}k{n} = {call}", *as_bytes(f"k{n}", indent, "")]
                    below = below._replace(key=f"k{n}")
                else:
                    lines.append(f"{indent}key_bytes({call})")
            case _:
                below = self._each(lines, n, call, below)
        return self._written_into(lines, children, node, below)

    def _each(self, lines: list[str], n: int, call: str, at: ValuePlace) -> ValuePlace:
        indent, tracked = INDENT * at.depth, at.path is not None
        each = f"n{n}, v{n} in enumerate(m{n})" if tracked else f"v{n} in m{n}"
        lines += [
            f"{indent}m{n} = {call}",
            f"{indent}if m{n}.__class__ not in ITERABLES:",
            f"{indent}{INDENT}check{n}(m{n})",
            f"{indent}for {each}:",
        ]
        if tracked:
            lines.append(f"{indent}{INDENT}p{n} = {at.path} + number(n{n})")
        share = self._made(self._flow.nodes[n])
        return at._replace(value=f"v{n}", path=f"p{n}" if tracked else None, depth=at.depth + 1, share=share)

    def _made(self, node: Node) -> Share:
        """The share of a value that a function has made: it may be anything, and the function may still have it."""
        return Share(takers(self._flow, self._flow.children[node.index]), read=False)

    def _own(self, lines: list[str], node: Node, at: ValuePlace, takers: int = 1) -> str:
        """The text of a value that a function may keep or change; returns the name of its variable."""
        after = reached(self._flow, [node], in_one_run=True)
        if at.share.is_own(takers) or not any(isinstance(later, MapNode | FlatMapNode) for later in after):
            return at.value
        indent, n = INDENT * at.depth, node.index
        lines += [*self._codec(node, at.value, indent), f"{indent}o{n} = {self._read_back(node, at.value)}"]
        return f"o{n}"

    def _codec(self, node: Node, value: str, indent: str, find: str = "passing") -> list[str]:
        n = node.index
        self._copied.add(n)
        exact = f", x{n}" if find == "encoded" else ""
        return [
            f"{indent}if {value}.__class__ is not c{n}:",
            f"{indent}{INDENT}t{n}, e{n}, d{n}{exact} = {find}({n}, {value})",
            f"{indent}{INDENT}c{n} = {value}.__class__",
        ]

    @staticmethod
    def _read_back(node: Node, value: str) -> str:
        return f"d{node.index}(e{node.index}({value}))"

    def _into_stage(self, lines: list[str], node: StageNode, at: ValuePlace) -> list[str]:
        n, traits = node.index, node.traits
        indent = INDENT * at.depth
        lines.append(f"{indent}{comment(f'into {node.called}', node)}")
        if traits.heartbeat is not None:
            call = self._call(f"beats{n}", traits.heartbeat.takes_context, at)
            # A heartbeat moves event time everywhere, so it goes to all state partitions.
            nothing = "b''" if n in self._shuffled else "None"
            beat = self._unit(node, "beat", nothing, "''", f"{at.path} + number(part)")
            lines += [
                f"{indent}if {holds(n, call)}:",
                f"{indent}{INDENT}for part, beat in enumerate(EVERY_PART):",
                f"{indent}{INDENT * 2}{beat}",
                f"{indent}else:",
            ]
            indent += INDENT
        key = self._key(lines, node, at, indent, "" if traits.needs_key else f"k{n} is not None and ")
        is_own, value, tag = at.share.is_own(rests=True), at.value, repr("")
        lines += self._codec(node, value, indent)
        if n in self._shuffled:
            value, tag = f"e{n}({value})", f"t{n}"
        elif not is_own:
            value = self._read_back(node, value)
        lines.append(f"{indent}{self._unit(node, key, value, tag, at.path)}")
        return lines

    def _unit(self, node: StageNode, key: str, value: str, tag: str, path: str | None) -> str:
        n = node.index
        if self._of_run and n not in self._shuffled:
            return columns(n, key, value, path)
        return f"units{n}(({key}, {value}, {tag}, {path}, {self._input}))"

    def _into_batch(self, lines: list[str], node: MapBatchesNode, at: ValuePlace) -> list[str]:
        n, indent, value = node.index, INDENT * at.depth, at.value
        lines.append(f"{indent}{comment('into map_batches', node)}")
        if not at.share.is_own(rests=True):
            lines += self._codec(node, value, indent)
            value = self._read_back(node, value)
        lines.append(f"{indent}{columns(n, at.key, value, at.path)}")
        return lines

    def _into_output(self, lines: list[str], node: OutputNode, at: ValuePlace) -> list[str]:
        n, value, indent = node.index, at.value, INDENT * at.depth
        at.share.is_own(
            rests=True
        )  # counts as a taker, but bytes are made of the value: it needs no object of its own
        lines.append(f"{indent}{comment(f'to {node.name}', node)}")
        key = at.key or "None"
        if node.key is not None:
            key = self._key(lines, node, at, indent, f"k{n} is not None and ")
        if deleted := deleted_type(self._flow, node):
            lines += [
                f"{indent}if {value} is None:",
                f"{indent}{INDENT}{self._payload(n, key, repr(deleted), 'None', at)}",
                f"{indent}else:",
            ]
            indent += INDENT
        lines += self._codec(node, value, indent, "encoded")
        payload = f"e{n}({value})"
        if not at.share.read:
            lines += [
                f"{indent}b{n} = {payload}",
                f"{indent}if d{n} and (x{n} is None or not x{n}({value})):",
                f"{indent}{INDENT}d{n}(b{n})  # what {payload} has written is read back",
            ]
            payload = f"b{n}"
        lines.append(f"{indent}{self._payload(n, key, f't{n}', payload, at)}")
        return lines

    def _payload(self, n: int, key: str, type_name: str, payload: str, at: ValuePlace) -> str:
        made = f"made(({n}, {key}, {type_name}, {payload}))"
        paths = f"; made_paths({at.path})" if self._ordered else ""
        return f"{made}; made_of({self._input}){paths}"

    def _key(self, lines: list[str], node: KeyedNode, at: ValuePlace, indent: str, unless: str) -> str:
        """The text that finds the key of a value at a stage or an output; returns the name of its variable."""
        n = node.index
        identity = node.traits.identity if isinstance(node, StageNode) else None
        if identity is not None:
            origin = self._origin if identity.takes_context else "None"
            lines.append(f"{indent}k{n} = identity{n}(now_ms, {at.value}, {at.key or 'None'}, {origin})")
            return f"k{n}"
        if node.key is None:
            if unless:
                return at.key or "None"
            lines.append(f"{indent}k{n} = {at.key or 'None'}")
        else:
            lines.append(f"{indent}k{n} = {self._call(f'key{n}', node.key.takes_context, at)}")
        lines += as_bytes(f"k{n}", indent, unless)
        return f"k{n}"

    def _call(self, function: str, takes_context: bool, at: ValuePlace) -> str:  # noqa: FBT001
        context = f", Context({self._origin}, {at.key or 'None'}, now_ms)" if takes_context else ""
        return f"{function}({at.value}{context})"

    def _tracks(self, nodes: Iterable[Node]) -> bool:
        """Whether paths matter after some nodes: they order the units of an input in a stage."""
        return self._ordered or any(isinstance(node, StageNode) for node in reached(self._flow, nodes))

    def _nonlocal(self) -> list[str]:
        names = [f"{name}{n}" for n in self._encoding() for name in "ctedx"]  # see the module
        return [f"{INDENT}nonlocal {', '.join(names)}"] if names else []

    def _encoding(self) -> list[int]:
        """The nodes to which values come encoded, or read back."""
        return [n for n, node in self._nodes.items() if isinstance(node, KeyedNode) or n in self._copied]

    def _bindings(self) -> list[str]:
        """What lives longer than one call: lists that take what comes to rest, and how it was encoded last."""
        lines = ["known_key, new_key = collector.keys.get, collector.new_key"]
        lines += [f"c{n} = t{n} = e{n} = d{n} = x{n} = None" for n in self._encoding()]
        columns = "keys", "values", "paths", "inputs"
        for n, node in self._nodes.items():
            if isinstance(node, MapBatchesNode):
                lines += [f"{name}{n} = collector.batches[{n}].{name}.append" for name in columns]
            if isinstance(node, StageNode):
                if self._of_run and n not in self._shuffled:
                    lines += [f"{name}{n} = collector.runs[{n}].{name}.append" for name in columns]
                else:
                    lines.append(f"units{n} = collector.units[{n}].append")
        if any(isinstance(node, OutputNode) for node in self._nodes.values()):
            lines.append("made, made_of = collector.made.append, collector.made_of.append")
            if self._ordered:
                lines.append("made_paths = collector.made_paths.append")
        return lines
