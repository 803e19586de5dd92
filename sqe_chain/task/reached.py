"""Where values come to on their way from a source, or from a `map_batches`, to a place of rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import KeyedNode, Node, OutputNode, SourceNode, StageNode


def reached(
    flow: CompiledFlow, nodes: Iterable[Node], *, with_key: bool = False, in_one_run: bool = False
) -> Iterator[Node]:
    """Some nodes, and those after them up to where values rest, each once.

    Args:
        flow: the flow.
        nodes: where values begin.
        with_key: only as long as units keep their key.
        in_one_run: only up to functions over batches, for which the values of a run are put together first.
    """
    pending, seen = [*nodes], set[int]()
    while pending:
        node = pending.pop()
        if node.index in seen:
            continue
        seen.add(node.index)
        yield node
        ends = isinstance(node, KeyedNode) or (in_one_run and isinstance(node, MapBatchesNode))
        if not ends and (node.keeps_key or not with_key):
            pending += flow.children[node.index]


def wants_key(flow: CompiledFlow, nodes: Iterable[Node]) -> bool:
    """Whether any of some nodes, or any after them, looks at the key that units have there."""
    return any(node.needs_key for node in reached(flow, nodes, with_key=True))


def batches_after(flow: CompiledFlow, node: Node) -> list[MapBatchesNode]:
    """The functions over batches to which values of a source come before any stage, each after those that it takes values of."""
    functions = [
        reached_node
        for reached_node in reached(flow, flow.children[node.index])
        if isinstance(reached_node, MapBatchesNode)
    ]
    return sorted(functions, key=lambda function: function.index)  # parents come before children


def order_matters(flow: CompiledFlow) -> bool:
    """Whether what comes to rest of a run has to be put in order: not all of it passes the same functions over batches."""
    batches = [node for node in flow.nodes if isinstance(node, MapBatchesNode)]
    if not batches:
        return False
    ways = Counter[int]()
    outputs = 0
    for node in (*batches, *flow.sources):
        own = list(reached(flow, flow.children[node.index], in_one_run=True))
        ways.update(below.index for below in own if isinstance(below, KeyedNode | MapBatchesNode))
        outputs += any(isinstance(below, OutputNode) for below in own)
    return outputs > 1 or max(ways.values()) > 1


def deleted_type(flow: CompiledFlow, output: OutputNode) -> str:
    """The state type of a stage whose `changes()` feed this output; empty for other outputs."""
    node: Node = output
    while not isinstance(node, SourceNode | StageNode):
        if node.side == "changes":
            stage = flow.stage_before[node.index]
            codec = output.encoding if not isinstance(output.encoding, type | None) else stage and stage.codec
            return codec.type_name if codec else ""
        node = flow.nodes[node.parents[0]]
    return ""
