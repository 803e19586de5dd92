"""The operators as closures that call each other for every value: slow, and plain to see. Generated text must give the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqe_chain.codecs import codec_for
from sqe_chain.codecs.registry import codec_of_tag, tag_of
from sqe_chain.envelope.partitioner import key_bytes, key_of_each
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
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
from sqe_chain.flow.units import Push, number, pack_key_and_id
from sqe_chain.task.batch_steps import BatchStep
from sqe_chain.task.collector import Collector
from sqe_chain.task.compiler import IMMUTABLE, Encode, RunFunction, encoding_of
from sqe_chain.task.reached import deleted_type


class NaiveCompiler:
    """Does what `sqe_chain.task.compiler.Compiler` does.

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
        self, node: Node, side: Side = "", origin_of: Callable[[Any], Origin] | None = None
    ) -> Push | None:
        """The function that takes what a node gives; None when nobody wants it.

        Args:
            node: source, operator or stage.
            side: of a stage: what takes its `changes()` or `dropped()`; else what takes its ordinary output.
            origin_of: of a stage: what it names as an input -> the origin.
        """
        pushes = [
            self._compile(child, node)
            for child in self._flow.compile().children[node.index]
            if child.side == side
        ]
        if not pushes:
            return None
        push = pushes[0] if len(pushes) == 1 else _fan_out(pushes)
        if isinstance(node, StageNode) and self._reaches_a_function(node):
            push = _reading_back(push)
        return push if origin_of is None else _with_origin(push, origin_of)

    def after_source(self, node: SourceNode, origin_of: Callable[[int], Origin]) -> RunFunction:
        """The function that takes what a source gives, record by record."""
        push, collector, shuffled = self.after(node), self._collector, self._shuffled
        assert push is not None

        def run(
            inputs: Sequence[int],
            values: Sequence[Any],
            keys: Sequence[bytes | None],
            paths: Sequence[bytes],
            failed: Callable[[int, Exception], bool],
        ) -> None:
            for index, value, key, path in zip(inputs, values, keys, paths, strict=True):
                before = {stage: len(units) for stage, units in collector.units.items()}
                made = len(collector.made)
                try:
                    push(value, key, path, origin_of(index))
                except Exception as error:  # noqa: BLE001 - as the text does it
                    del collector.made[made:], collector.made_of[made:]
                    for stage, units in collector.units.items():
                        del units[before[stage] :]
                    if failed(index, error):
                        return
                    continue
                for stage, units in collector.units.items():
                    for own, unit, tag, way, _ in units[before[stage] :]:
                        if stage in shuffled:
                            units[before[stage]] = own, unit, tag, way, index
                            before[stage] += 1
                        else:
                            columns = collector.runs[stage]
                            columns.keys.append(own)
                            columns.values.append(unit)
                            columns.paths.append(way)
                            columns.inputs.append(index)
                    del units[before[stage] :]
                collector.made_of[made:] = [index] * (len(collector.made) - made)

        return run

    def _compile(self, node: Node, parent: Node) -> Push:  # noqa: PLR0911 - one for each kind of node
        if isinstance(node, StageNode):
            push = self._stage(node)
            return _numbered(node.parents.index(parent.index), push) if node.traits.inputs > 1 else push
        if isinstance(node, OutputNode):
            return self._output(node)
        down = self.after(node)
        if down is None:
            raise AssertionError(f"{node.declared_at}: checked when declared")
        if isinstance(node, MapBatchesNode):
            return _map_each_alone(BatchStep(node), down)
        if not isinstance(node, FunctionNode):
            return down
        # Paths give units their order in a stage; payloads for outputs are in order as they come.
        if (
            isinstance(node, FlatMapNode)
            and not node.function.takes_context
            and not self._reaches_a_stage(node)
        ):
            return _flat_map_to_outputs(node.function.function, down)
        plain, with_context = _OPERATORS[type(node)]
        if node.function.takes_context:
            return with_context(node.function.function, down, self._now_ms)
        return plain(node.function.function, down)

    def _reaches_a_function(self, node: Node) -> bool:
        children = self._flow.compile().children[node.index]
        ends = KeyedNode, MapBatchesNode
        return any(
            isinstance(child, FunctionNode)
            or (not isinstance(child, ends) and self._reaches_a_function(child))
            for child in children
        )

    def _reaches_a_stage(self, node: Node) -> bool:
        """Whether units go on to a stage: only there do paths matter."""
        children = self._flow.compile().children[node.index]
        return any(isinstance(child, StageNode) or self._reaches_a_stage(child) for child in children)

    def _key_of(self, node: KeyedNode) -> UserFunction | None:
        """The key function of a stage or output, as ``(value, key, origin) -> key`` if it takes the context."""
        if node.key is None or not node.key.takes_context:
            return None if node.key is None else node.key.function
        function, now_ms = node.key.function, self._now_ms
        return lambda value, key, origin: function(value, Context(origin, key, now_ms))

    def _key_and_id(self, identity: DeclaredFunction) -> UserFunction:
        """Key and id together; the id decides the state partition."""
        find, now_ms = identity.function, self._now_ms

        def both(value: object, key: bytes | None, origin: Origin) -> bytes:
            found = find(value, Context(origin, key, now_ms)) if identity.takes_context else find(value)
            return pack_key_and_id(key, None if found is None else key_bytes(found))

        return both

    def _stage(self, node: StageNode) -> Push:
        identity, heartbeat = node.traits.identity, node.traits.heartbeat
        if identity is not None:
            push = self._into(node, self._key_and_id(identity), with_context=True)
        else:
            push = self._into(
                node, self._key_of(node), with_context=bool(node.key and node.key.takes_context)
            )
        return push if heartbeat is None else self._with_heartbeats(node, heartbeat, push)

    def _with_heartbeats(self, node: StageNode, heartbeat: DeclaredFunction, push: Push) -> Push:
        """A heartbeat goes into every state partition, without a value, under a key that belongs there.

        The user's function is called here and nowhere else, with the stream's own key. Stages know a heartbeat by
        its missing value.
        """
        append, keys = self._collector.units[node.index].append, key_of_each(self._flow.state_partitions)
        shuffled, now_ms = node.index in self._shuffled, self._now_ms
        beats, takes_context = heartbeat.function, heartbeat.takes_context

        def push_or_spread_heartbeat(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            if beats(value, Context(origin, key, now_ms)) if takes_context else beats(value):
                for part, own in enumerate(keys):
                    append((own, b"" if shuffled else None, "", path + number(part), origin))
            else:
                push(value, key, path, origin)

        return push_or_spread_heartbeat

    def _into(self, node: StageNode, to_key: UserFunction | None, *, with_context: bool = False) -> Push:
        """Into a stage, under the key that a function gives; without one, under the unit's own."""
        append = self._collector.units[node.index].append
        shuffled, keyed = node.index in self._shuffled, node.traits.needs_key
        known: dict[type, tuple[str, Encode, Encode]] = {}

        def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            own = key if to_key is None else to_key(value, key, origin) if with_context else to_key(value)
            if own.__class__ is str:
                own = own.encode()
            elif own.__class__ is not bytes and (keyed or own is not None):
                own = key_bytes(own)
            found = known.get(value.__class__)
            if found is None:
                codec = encoding_of(self._flow.compile(), node, value)
                tag = tag_of(codec)
                found = known[value.__class__] = tag, codec.encode, codec_of_tag(tag).decode
            tag, encode, decode = found
            if shuffled:
                append((own, encode(value), tag, path, origin))
            else:
                append((own, decode(encode(value)), "", path, origin))

        return push

    def _output(self, node: OutputNode) -> Push:
        made, made_of = self._collector.made, self._collector.made_of
        to_key, with_context = self._key_of(node), bool(node.key and node.key.takes_context)
        index = node.index
        deleted = deleted_type(self._flow.compile(), node)
        known: dict[type, tuple[str, Encode]] = {}

        def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            if to_key is not None:
                key = to_key(value, key, origin) if with_context else to_key(value)
                if key.__class__ is str:
                    key = key.encode()
                elif key is not None and key.__class__ is not bytes:
                    key = key_bytes(key)
            if value is None and deleted:
                made.append((index, key, deleted, None))
                made_of.append(origin)
                return
            found = known.get(value.__class__)
            if found is None:
                codec = encoding_of(self._flow.compile(), node, value)
                found = known[value.__class__] = codec.type_name, codec.encode
            type_name, encode = found
            made.append((index, key, type_name, encode(value)))
            made_of.append(origin)

        return push


def _map_each_alone(step: BatchStep, down: Push) -> Push:
    """A function over batches, for one row after the other."""

    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        values, origins = step.rows([value])
        for index, one in enumerate(values):
            down(one, key, path if origins is None else path + number(index), origin)

    return push


def _numbered(number_of_input: int, push: Push) -> Push:
    """Into a stage with several inputs: the path ends with the number of the one that a unit came by."""
    own = number(number_of_input)

    def push_numbered(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        push(value, key, path + own, origin)

    return push_numbered


def _reading_back(push: Push) -> Push:
    """With a value of its own, as its codec reads it."""

    def push_own(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        if value.__class__ not in IMMUTABLE:
            codec = codec_for(value.__class__)
            value = codec.decode(codec.encode(value))
        push(value, key, path, origin)

    return push_own


def _with_origin(push: Push, origin_of: Callable[[Any], Origin]) -> Push:
    def push_with_origin(value: object, key: bytes | None, path: bytes, given: object) -> None:
        push(value, key, path, origin_of(given))

    return push_with_origin


def _fan_out(pushes: list[Push]) -> Push:
    branches = [(number(branch), _reading_back(push)) for branch, push in enumerate(pushes)]

    def push_all(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        for branch, push in branches:
            push(value, key, path + branch, origin)

    return push_all


def _map(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        down(function(value), key, path, origin)

    return push


def _filter(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        if function(value):
            down(value, key, path, origin)

    return push


def _key_by(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        down(value, key_bytes(function(value)), path, origin)

    return push


def _flat_map(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        _push_each(function(value), down, key, path, origin)

    return push


def _flat_map_to_outputs(function: UserFunction, down: Push) -> Push:
    """The same without paths: payloads are gathered in the order in which they come."""

    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        for item in function(value):
            down(item, key, path, origin)

    return push


def _map_in_context(function: UserFunction, down: Push, now_ms: int) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        down(function(value, Context(origin, key, now_ms)), key, path, origin)

    return push


def _filter_in_context(function: UserFunction, down: Push, now_ms: int) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        if function(value, Context(origin, key, now_ms)):
            down(value, key, path, origin)

    return push


def _key_by_in_context(function: UserFunction, down: Push, now_ms: int) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        down(value, key_bytes(function(value, Context(origin, key, now_ms))), path, origin)

    return push


def _flat_map_in_context(function: UserFunction, down: Push, now_ms: int) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        _push_each(function(value, Context(origin, key, now_ms)), down, key, path, origin)

    return push


def _push_each(items: Iterable[object], down: Push, key: bytes | None, path: bytes, origin: Origin) -> None:
    for index, item in enumerate(items):
        down(item, key, path + number(index), origin)


_OPERATORS: Final[
    dict[
        type[FunctionNode],
        tuple[Callable[[UserFunction, Push], Push], Callable[[UserFunction, Push, int], Push]],
    ]
] = {
    MapNode: (_map, _map_in_context),
    FilterNode: (_filter, _filter_in_context),
    FlatMapNode: (_flat_map, _flat_map_in_context),
    KeyByNode: (_key_by, _key_by_in_context),
}
"""How an operator is compiled: without the context, and with it."""
