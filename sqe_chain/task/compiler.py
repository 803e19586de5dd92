"""The operators without state (map, filter, …), compiled: what reaches a stage or an output is appended to a `Collector`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqe_chain.codecs import Codec, codec_for
from sqe_chain.codecs.registry import codec_of_tag, tag_of
from sqe_chain.envelope.partitioner import key_bytes, key_of_each
from sqe_chain.errors import ConfigurationError, PoisonError
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.fields import compiled
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.nodes import FunctionNode, KeyedNode, Node, OutputNode, SourceNode, StageNode
from sqe_chain.flow.shapes import ITERABLES, check_values, truth
from sqe_chain.flow.stage_kind import Side
from sqe_chain.flow.units import Push, number, pack_key_and_id
from sqe_chain.task.batch_steps import BatchStep
from sqe_chain.task.collector import Collector
from sqe_chain.task.operator_text import operators_after
from sqe_chain.task.reached import batches_after, order_matters
from sqe_chain.task.watched import Passing, is_watched, watched_names

Encode = Callable[[Any], bytes]
_Leaving = tuple[str, Encode, Callable[[bytes], Any] | None, Callable[[Any], bool] | None]
"""Of values on their way into an output: the name of their type, and their encoding. Then what reads it, unless the codec writes
only what it reads. Last, what may know that a value is read."""
_PLAIN: Final = frozenset({dict, list, str, bytes, int, float, bool})
"""Types without fields, which might hold something else than was declared."""
IMMUTABLE: Final = frozenset({str, bytes, int, float, bool, type(None)})
"""Nobody can change a text or a number: functions may share it."""


def _same(value: Any) -> Any:  # noqa: ANN401 - any value
    return value


class Compiler:
    """Compiles the operators after a node.

    Args:
        flow: the flow.
        collector: where units and payloads arrive.
        now_ms: the batch's clock for contexts.
        shuffled: stages (by index) that come after a shuffle: their units are serialized at once.
    """

    def __init__(
        self, flow: CompiledFlow, collector: Collector, now_ms: int, shuffled: frozenset[int]
    ) -> None:
        self._flow = flow
        self._collector = collector
        self._now_ms = now_ms
        self._shuffled = shuffled

    def after(
        self, node: StageNode, side: Side = "", origin_of: Callable[[Any], Origin] = _same
    ) -> Push | None:
        """The function that takes what a stage gives; None when nobody wants it.

        Args:
            node: the stage.
            side: what takes its `changes()` or `dropped()`; else what takes its ordinary output.
            origin_of: what a stage names as the input of what it gives -> its origin.
        """
        bind = bound(self._flow, node, side, self._shuffled)
        if bind is None:
            return None
        push: Push = bind(self._now_ms, self._collector, origin_of)
        return push

    def after_source(self, node: SourceNode, origin_of: Callable[[int], Origin]) -> RunFunction:
        """The function that takes what a source gives, for a run of records.

        Args:
            node: the source.
            origin_of: number of a record in the block -> its origin.
        """
        first, (steps, ordered) = self._run(node, origin_of), _steps_after(self._flow, node)
        if not steps:
            return first
        collector = self._collector
        each = [(step, self._run(step.node, origin_of)) for step in steps]

        def run(
            inputs: Sequence[int],
            values: Sequence[Any],
            keys: Sequence[bytes | None],
            paths: Sequence[bytes],
            failed: Callable[[int, Exception], bool],
        ) -> None:
            first(inputs, values, keys, paths, failed)
            for step, then in each:
                given = collector.batches[step.node.index].taken()
                if ordered:
                    given.sort()
                made = step.apply(given, failed)
                then(made.inputs, made.values, made.keys, made.paths, failed)
            if ordered:
                collector.sort()

        return run

    def _run(self, node: SourceNode | MapBatchesNode, origin_of: Callable[[int], Origin]) -> RunFunction:
        bind = bound(self._flow, node, "", self._shuffled)
        if bind is None:
            raise AssertionError(f"{node.declared_at}: checked before a flow runs")
        run: RunFunction = bind(self._now_ms, self._collector, origin_of)
        return run


RunFunction = Callable[
    [Sequence[int], Sequence[Any], Sequence[bytes | None], Sequence[bytes], Callable[[int, Exception], bool]],
    None,
]
"""Takes numbers of records, values, keys, paths, and what takes a failure: number and error; if that returns True, the
run ends."""


def bound(flow: CompiledFlow, node: Node, side: Side, shuffled: frozenset[int]) -> Callable[..., Any] | None:
    """The function `bind` of the operators after a node, compiled once for each flow; see `operators_after`."""
    known, watched = flow.operators, is_watched()
    # A watched flow is compiled apart: its text calls other functions, and nobody else may get those.
    place = node.index, f"{side} watched" if watched else side, shuffled
    if place not in known:
        operators = operators_after(flow, node, side, shuffled)
        if operators is not None:
            names = _names(flow, operators.nodes)
            names = watched_names(flow, operators.nodes, names) if watched else names
            known[place] = compiled(operators.title, operators.source, "bind", names)
        else:
            known[place] = None
    bind: Callable[..., Any] | None = known[place]
    return bind


def _steps_after(flow: CompiledFlow, node: SourceNode) -> tuple[list[BatchStep], bool]:
    """The functions over batches after a source, and whether what comes of them has to be put in order; looked for once."""
    known, place = flow.operators, (node.index, "batches", frozenset[int]())
    if place not in known:
        known[place] = [BatchStep(function) for function in batches_after(flow, node)], order_matters(flow)
    steps: tuple[list[BatchStep], bool] = known[place]
    return steps


def _names(flow: CompiledFlow, nodes: Sequence[Node]) -> dict[str, Any]:
    names: dict[str, Any] = {
        "Context": Context,
        "EVERY_PART": key_of_each(flow.state_partitions),
        "ITERABLES": ITERABLES,
        "key_bytes": key_bytes,
        "number": number,
        "encoded": partial(_encoded, flow, {}),
        "passing": partial(_passing, flow, {}),
        **_functions_of(nodes),
    }
    for node in nodes:
        identity = node.traits.identity if isinstance(node, StageNode) else None
        if identity is not None:
            names[f"identity{node.index}"] = partial(_key_and_id, identity)
    return names


def _functions_of(nodes: Iterable[Node]) -> Mapping[str, Any]:
    functions: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, FunctionNode):
            function = functions[f"f{node.index}"] = node.function.function
            functions[f"truth{node.index}"] = partial(truth, node.word, function)
            functions[f"check{node.index}"] = partial(check_values, node.word, function)
        elif isinstance(node, KeyedNode) and node.key is not None:
            functions[f"key{node.index}"] = node.key.function
        if isinstance(node, StageNode) and node.traits.heartbeat is not None:
            beats = node.traits.heartbeat.function
            functions |= {
                f"beats{node.index}": beats,
                f"truth{node.index}": partial(truth, "heartbeat", beats),
            }
    return functions


def _encoded(
    flow: CompiledFlow, known: dict[tuple[int, type], _Leaving], index: int, value: object
) -> _Leaving:
    place = index, value.__class__
    if place not in known:
        node = flow.nodes[index]
        if not isinstance(node, OutputNode):
            raise AssertionError(f"{node.declared_at}: not an output")
        codec = encoding_of(flow, node, value)
        reads_any = codec.self_checking or value.__class__ in _PLAIN
        known[place] = codec.type_name, codec.encode, None if reads_any else codec.decode_own, codec.is_exact
    return known[place]


def _passing(
    flow: CompiledFlow, known: dict[tuple[int, type], Passing], index: int, value: object
) -> Passing:
    place = index, value.__class__
    if place not in known:
        node = flow.nodes[index]
        # A copy protects from changes, and these cannot change.
        if isinstance(node, FunctionNode) and value.__class__ in IMMUTABLE:
            known[place] = "", _same, _same
        else:
            codec = encoding_of(flow, node, value)
            tag = tag_of(codec)
            if isinstance(node, StageNode):
                codec = _found_by(tag, flow, node, value)
            known[place] = tag, codec.encode, codec.decode_own
    return known[place]


def _found_by(tag: str, flow: CompiledFlow, stage: StageNode, value: object) -> Codec[Any]:
    """The codec that another process finds, also where this one needs no other: a flow may be shuffled at any time."""
    try:
        return codec_of_tag(tag)
    except ConfigurationError as error:
        raise PoisonError(f"{got(flow, stage, type(value).__name__)}: {error}") from error


def _key_and_id(
    identity: DeclaredFunction, now_ms: int, value: object, key: bytes | None, origin: Origin | None
) -> bytes:
    identified = (
        identity.function(value) if origin is None else identity.function(value, Context(origin, key, now_ms))
    )
    return pack_key_and_id(key, None if identified is None else key_bytes(identified))


def encoding_of(flow: CompiledFlow, node: Node, value: object) -> Codec[Any]:
    """The codec for a value on its way into a stage or an output, or to one of several functions.

    Raises:
        PoisonError: there is none; names the function that made the value.
    """
    try:
        if isinstance(node, OutputNode):
            codec = flow.output_codec[node.index, type(value)]
        else:
            codec = codec_for(type(value))
    except ConfigurationError as error:
        raise PoisonError(f"{got(flow, node, type(value).__name__)}: {error}") from error
    if not codec.deterministic:
        raise PoisonError(
            f"{node.declared_at}: codec {codec.name!r} does not give the same bytes each time. A redo of a batch would "
            "publish something else"
        )
    return codec


def got(flow: CompiledFlow, node: Node, kind: str, verb: str = " got") -> str:
    """Which value, by the name of its type, came where, and from whom, for an error's text."""
    return f"{_taker(node)}{verb} a {kind} from {_maker(flow, node)}"


def way_into(flow: CompiledFlow, node: Node) -> str:
    """From which function values come into a node, for texts."""
    return f"{_maker(flow, node)} -> {_taker(node)}"


def _taker(node: Node) -> str:
    into = "stage" if isinstance(node, StageNode) else node.kind
    return f"{into} {node.name!r}" if isinstance(node, KeyedNode) else f"{into} at {node.declared_at}"


def _maker(flow: CompiledFlow, node: Node) -> str:
    """The operator whose function made the values that reach a node, for an error's text."""
    while node.parents:
        node = flow.nodes[node.parents[0]]
        if node.maker is not None:
            break
    maker = node.maker
    name = getattr(maker, "__name__", "") if maker else ""
    code = getattr(maker, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code else node.declared_at
    title = node.maker_name or node.word
    return f"{title} {name} at {where}" if name else f"{title} at {where}"
