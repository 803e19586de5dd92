"""What a replay needs of a flow, where an answer is about a few keys of one stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqe_chain.envelope.partitioner import key_bytes, partition_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.nodes import ChangesNode, FilterNode, Node, StageNode
from sqe_chain.plans.plan import Plan

_NoteKeys = Callable[[str, Iterable[bytes]], object]
"""Takes the name of a stage, and keys that have come to it and are dropped."""
_NEW: Final = -1
"""Index of a node that is put in, until all have theirs."""


@dataclass(frozen=True, slots=True)
class Focus:
    """What a replay need not do.

    Attributes:
        keys: stage -> the keys that it gets. A filter in front of it drops the others, before they are copied, shuffled and folded.
        upto: name of the last stage that is needed; its outputs and the stages beside it are not replayed. Empty: all are.
        partitions: numbers of the input partitions that may have these keys; None: any may.
    """

    keys: Mapping[str, frozenset[bytes]]
    upto: str = ""
    partitions: frozenset[int] | None = None


def partitions_of_keys(flow: CompiledFlow, plan: Plan, keys: Iterable[bytes]) -> frozenset[int] | None:
    """The numbers of the input partitions that may have keys of a first stage; None: any may.

    A producer may use any partitioner, and a stage any key. But a service that folds without a shuffle looks at each key, and its
    plans have what it found.
    """
    return frozenset(partition_of(key, flow.state_partitions) for key in keys) if plan.placed else None


def lets_keys_go_alone(flow: CompiledFlow, stage: StageNode) -> bool:
    """Whether the states of some keys of a stage are the same if it gets no others.

    With another policy than `stop` an input that fails under one key, or in another stage, counts under no key.
    """
    return stage.traits.order == "units" and not stage.traits.ticks and flow.poison == "stop"


def nodes_to_replay(flow: CompiledFlow) -> list[Node]:
    """The nodes without those that only publish what `changes()` gives.

    All others stay, for an input that fails anywhere counts nowhere. What `changes()` gives depends on how records were
    divided into batches, and a failure there skips no input.
    """
    to_stage: set[int] = set()
    for node in reversed(flow.nodes):  # parents come before children
        if isinstance(node, StageNode) or node.index in to_stage:
            to_stage |= {node.index, *node.parents}
    dropped: set[int] = set()
    for node in flow.nodes:
        if node.index not in to_stage and (isinstance(node, ChangesNode) or dropped & {*node.parents}):
            dropped.add(node.index)
    return _numbered([node for node in flow.nodes if node.index not in dropped])


def narrowed_nodes(flow: CompiledFlow, focus: Focus, note: _NoteKeys) -> list[Node]:
    """The nodes that a narrowed replay needs.

    Args:
        flow: the flow.
        focus: what is not needed.
        note: takes keys that are dropped, each at least once.
    """
    nodes = list(_before(flow, focus.upto)) if focus.upto else nodes_to_replay(flow)
    kept = list[Node]()
    for node in nodes:
        wanted = focus.keys.get(node.name) if isinstance(node, StageNode) else None
        if wanted is None or not isinstance(node, StageNode) or node.key is None or node.traits.inputs > 1:
            kept.append(node)
            continue
        passes = DeclaredFunction(_passes(node.key, node.name, wanted, note), node.key.takes_context)
        new = _NEW - len(kept)
        kept += [FilterNode(new, node.declared_at, node.parents, passes), replace(node, parents=(new,))]
    return _numbered(kept)


def _passes(
    key: DeclaredFunction, stage: str, wanted: frozenset[bytes], note: _NoteKeys
) -> Callable[..., bool]:
    seen = set[bytes]()

    def passes(*args: Any) -> bool:  # noqa: ANN401 - a value, and perhaps its context
        try:
            own = key_bytes(key.function(*args))
        except Exception:  # noqa: BLE001 - the stage asks again, and its error names it
            return True
        if own in wanted:
            return True
        if own not in seen:
            seen.add(own)
            note(stage, (own,))
        return False

    return passes


def _before(flow: CompiledFlow, upto: str) -> Iterator[Node]:
    """A stage, and all that it gets its units from."""
    needed = {stage.index for stage in flow.stages if stage.name == upto}
    for node in reversed(flow.nodes):
        if node.index in needed:
            needed |= {*node.parents}
    return (node for node in flow.nodes if node.index in needed)


def _numbered(nodes: list[Node]) -> list[Node]:
    places = {node.index: place for place, node in enumerate(nodes)}
    return [
        replace(node, index=places[node.index], parents=tuple(places[parent] for parent in node.parents))
        for node in nodes
    ]
