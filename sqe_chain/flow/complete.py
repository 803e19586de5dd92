"""Checks of what can only be seen once a flow is complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqe_chain.codecs import Codec, codec_for
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.declaration import refused_at
from sqe_chain.flow.nodes import ChangesNode, FunctionNode, Node, OutputNode, SourceNode, StageNode


def check_complete(flow: CompiledFlow) -> None:
    """Check a flow that is declared. Raises FlowError."""
    if not flow.nodes:
        raise FlowError(f"flow {flow.name!r} has no source")
    _check_parking(flow)
    _check_transactional(flow)
    for source in flow.sources:
        _check_source(flow, source)
    for output in flow.outputs:
        _check_output(flow, output)
    _check_places(flow)
    for node in flow.nodes:
        _check_codec(flow, node)
        if not node.may_be_last and not flow.children[node.index]:
            raise FlowError(
                f"{node.declared_at}: nothing is done with {node.described(flow.nodes)} of flow {flow.name!r}; let a stage or an "
                "output follow it, or remove it"
            )


def _check_transactional(flow: CompiledFlow) -> None:
    """Check that the outputs of a transactional flow can be in transactions, and that its markers have a topic of their own."""
    if not flow.transactional:
        return
    if not flow.outputs:
        raise FlowError(
            f"flow {flow.name!r} is transactional, and publishes nothing. Expected an output. Declare one, or do without transactional=True"
        )
    if flow.marker_topic in {
        *flow.input_topics,
        *(output.topic for output in flow.outputs),
        flow.dead_letter_topic,
    }:
        raise FlowError(
            f"flow {flow.name!r}: topic {flow.marker_topic!r} is the one in which a transactional flow notes what it has published. "
            "Expected no other use of it. Choose another name for the flow, or for that topic"
        )


def _check_source(flow: CompiledFlow, source: SourceNode) -> None:
    if flow.dead_letters and flow.dead_letter_topic in source.topics:
        raise FlowError(
            f"{source.declared_at}: {flow.dead_letter_topic!r} is the dead-letter topic of flow {flow.name!r}: reading it "
            "would be a loop; choose another dead_letter_topic"
        )
    if source.static:
        _check_static(flow, source)
    if source.files is not None and flow.by_time and source.timestamp is None:
        raise FlowError(
            f"{source.declared_at}: flow {flow.name!r} goes by event time, and rows of files have no time but those in their "
            "columns: give files(..., timestamp=...)"
        )


def _check_output(flow: CompiledFlow, output: OutputNode) -> None:
    if flow.dead_letters and flow.dead_letter_topic == output.topic:
        raise FlowError(
            f"{output.declared_at}: {output.topic!r} is the dead-letter topic of flow {flow.name!r}: readers of the output would "
            "take dead-letter records for messages. Choose another dead_letter_topic"
        )
    if output.process_id is not None and (len(flow.input_topics) > 1 or flow.file_sources):
        raise FlowError(
            f"{output.declared_at}: SQE's record keys name a source partition and offset, not a topic. This flow reads "
            f"{', '.join(flow.input_names)}. Read one topic in a flow that writes for SQE"
        )


def _check_places(flow: CompiledFlow) -> None:
    """Ask each codec that is known for the one of its place, so that a refusal has the line of the declaration."""
    for source in flow.sources:
        with refused_at(f"{source.declared_at}: source {source.name!r}"):
            for topic in source.topics:
                flow.codec_of[topic]  # it is kept
    for output in flow.outputs:
        if isinstance(output.encoding, Codec):
            with refused_at(f"{output.declared_at}: output to {output.topic!r}"):
                flow.output_codec[output.index, output.encoding.python_type]


def _check_codec(flow: CompiledFlow, giver: Node) -> None:
    """Check that values of a named codec have a codec by their type, where only their type names one."""
    codec = giver.codec if isinstance(giver, SourceNode) else None
    if isinstance(giver, ChangesNode):
        stage = flow.stage_before[giver.index]
        codec = stage.codec if stage is not None and stage.traits.states_by_key else None
    reason = "" if codec is None else _refused_by_type(codec)
    taker = next(_takers_by_type(flow, giver), None) if reason else None
    if codec is not None and taker is not None:
        kind, own = codec.python_type.__qualname__, type(codec).__name__
        instead = (
            "name one in to(codec=...)" if isinstance(taker, OutputNode) else "map to another type first"
        )
        raise FlowError(
            f"{taker.declared_at}: {taker.called} finds the codec of {giver.described(flow.nodes)} by the type {kind}: {reason}. "
            f"Expected a deterministic codec that takes {kind}. Let {own}.takes() return True for it, or {instead}"
        )


def _refused_by_type(codec: Codec[Any]) -> str:
    """Why the values of a codec cannot be encoded by their type alone; empty if they can."""
    try:
        by_type = codec_for(codec.python_type)
    except ConfigurationError:
        return f"codec {codec.name!r} is used only where it is named"
    return "" if by_type.deterministic else f"codec {by_type.name!r} does not give the same bytes each time"


def _takers_by_type(flow: CompiledFlow, giver: Node) -> Iterator[Node]:
    """The nodes that encode a giver's values by their type: stages, outputs without codec, and functions with a value of their own."""
    after, ends = list[Node](), list[Node]()
    pending = [*flow.children[giver.index]]
    while pending:
        node = pending.pop()
        after.append(node)
        if node.passes:
            pending += flow.children[node.index]
        else:
            ends.append(node)
    # Several takers each get an object of their own, which a codec makes; a single one gets the value itself.
    shared = isinstance(giver, ChangesNode) or len(ends) > 1
    for node in after if isinstance(giver, ChangesNode) else ends:
        if isinstance(node, OutputNode):
            by_type = node.encoding is None
        else:
            by_type = isinstance(node, StageNode | MapBatchesNode) or (
                shared and isinstance(node, FunctionNode)
            )
        if by_type:
            yield node


def _check_static(flow: CompiledFlow, source: SourceNode) -> None:
    """Check that nothing but static tables takes what a source reads: it has no times."""
    reached: list[Node] = [source]
    while reached:
        node = reached.pop()
        for child in flow.children[node.index]:
            if not isinstance(child, OutputNode | StageNode):
                reached.append(child)
            # The second parent of a join is the table.
            elif not _is_static(child) or child.parents[1:] != (node.index,):
                raise FlowError(
                    f"{child.declared_at}: source {source.name!r} is read as a static table, so its messages have no times, and "
                    "nothing else can take them. Read them in another flow as well"
                )


def _check_parking(flow: CompiledFlow) -> None:
    """Check that inputs of a flow with `park` can wait: an input that comes later changes nothing but its own keys."""
    if flow.poison != "park":
        return
    if not flow.stages:
        raise FlowError(
            f"flow {flow.name!r}: poison='park' keeps inputs in the store beside stages. Expected a stage. Declare an aggregate, or "
            "poison='dead_letter'"
        )
    for source in flow.sources:
        if source.files is not None:
            raise FlowError(
                f"{source.declared_at}: flow {flow.name!r} reads files, whose rows have no keys. Expected topics alone with "
                "poison='park'. Declare poison='stop' or 'skip'"
            )
    for stage in flow.stages:
        traits = stage.traits
        if not (traits.states_by_key and traits.reversible) or traits.order != "units" or traits.ticks:
            raise FlowError(
                f"{stage.declared_at}: stage {stage.name!r} ({traits.called}) does not take an input after later ones. Expected "
                "aggregates without event time, timers and windows in a flow with poison='park'. Declare poison='dead_letter', or "
                "put this stage into another flow"
            )
    for output in flow.outputs:
        if output.process_id is not None:
            raise FlowError(
                f"{output.declared_at}: readers of SQE's record keys ignore an offset after later ones. Expected outputs with "
                "envelopes in a flow with poison='park'. Declare poison='stop', or write for SQE in another flow"
            )


def _is_static(node: Node) -> bool:
    return isinstance(node, StageNode) and getattr(node.stage_kind, "static", False)
