"""The stateless steps of a flow, compiled to functions that push a unit to the next step.

A unit is pushed as ``(value, key, path, origin)``. What reaches a stage or an output is appended to a
`Collector`. Functions call each other directly: this is the hottest path after the decoding.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from typing import Any, Literal

from sqe_chain.codecs import Codec, codec_for
from sqe_chain.codecs.registry import tag_of
from sqe_chain.errors import ConfigurationError, PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.filtering import FilterSpec
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.topology import SIDES, STAGES, Kind, Node
from sqe_chain.partitioner import key_bytes, key_of_each
from sqe_chain.stages.units import Push, Unit, number

Encode = Callable[[Any], bytes]
SAME_OBJECT = "a flat_map gave the same object twice: create a new one for each value"
_IMMUTABLE = frozenset({str, bytes, int, float, bool, type(None)})
"""The same text or number twice is two values."""

Made = tuple[int, bytes | None, str, bytes | None]
"""A payload on its way into an output: index of the output's node, key, what the envelope says of its type, encoded
payload (None for a deleted state)."""


class Collector:
    """What the steps have made of the present input.

    Attributes:
        units: stage index -> units.
        made: payloads for outputs.
    """

    __slots__ = ("made", "units")

    def __init__(self, flow: Flow) -> None:
        self.units: dict[int, list[Unit]] = {stage.index: [] for stage in flow.stages()}
        self.made: list[Made] = []


class Compiler:
    """Compiles the steps behind a node.

    Args:
        flow: the flow.
        collector: where units and payloads arrive.
        now_ms: the batch's clock for contexts.
        shuffled: stages (by index) that stand behind a shuffle: their units are serialized at once.
    """

    def __init__(self, flow: Flow, collector: Collector, now_ms: int, shuffled: frozenset[int]) -> None:
        self._flow = flow
        self._collector = collector
        self._now_ms = now_ms
        self._shuffled = shuffled

    def behind(self, node: Node, side: Literal["", "changes", "dropped"] = "") -> Push | None:
        """The function that takes what a node gives; None when nobody wants it.

        Args:
            node: source, step or stage.
            side: of a stage: the steps behind `changes()` or `dropped()`, not those behind what it gives on.
        """
        children = [
            child
            for child in self._flow.children(node.index)
            if (child.kind if child.kind in SIDES else "") == side
        ]
        pushes = [self._compile(child) for child in children]
        if not pushes:
            return None
        return pushes[0] if len(pushes) == 1 else _fan_out(pushes)

    def _compile(self, node: Node) -> Push:
        if node.kind in STAGES:
            return self._stage(node)
        if node.kind == "output":
            return self._output(node)
        down = self.behind(node)
        if down is None:
            raise AssertionError(f"{node.place}: checked when declared")
        if node.kind == "merge" or node.kind in SIDES:
            return down
        function = node.key if node.kind == "key_by" else node.function
        if function is None:
            raise AssertionError(f"{node.place}: a {node.kind} without a function")
        if node.key_takes_context if node.kind == "key_by" else node.takes_context:
            return _with_context(node.kind, function, down, self._now_ms)
        if node.kind == "flat_map" and not self._reaches_a_stage(node):
            return _flat_map_to_outputs(function, down)
        return {"map": _map, "filter": _filter, "flat_map": _flat_map, "key_by": _key_by}[node.kind](
            function, down
        )

    def _reaches_a_stage(self, node: Node) -> bool:
        """Whether units go on to a stage: only there do paths matter."""
        children = self._flow.children(node.index)
        return any(child.kind in STAGES or self._reaches_a_stage(child) for child in children)

    def _key_of(self, node: Node) -> UserFunction | None:
        """The key function of a stage or output, as ``(value, key, origin) -> key`` if it takes the context."""
        function, now_ms = node.key, self._now_ms
        if function is None or not node.key_takes_context:
            return function
        return lambda value, key, origin: function(value, Context(origin, key, now_ms))

    def _key_and_id(self, spec: FilterSpec) -> UserFunction:
        """The id goes along with the key: it decides the state partition."""
        identity: Any = spec.function
        now_ms = self._now_ms

        def both(value: object, key: bytes | None, origin: Origin) -> bytes:
            found = identity(value, Context(origin, key, now_ms)) if spec.takes_context else identity(value)
            return marshal.dumps((key, None if found is None else key_bytes(found)), 2)

        return both

    def _stage(self, node: Node) -> Push:
        spec = node.spec
        if spec is not None and spec.spread == "id":
            return self._into(node, self._key_and_id(spec), with_context=True)
        push = self._into(node, self._key_of(node), with_context=node.key_takes_context)
        if spec is None or spec.heartbeat is None:
            return push
        return self._with_heartbeats(node, spec.heartbeat, push)

    def _with_heartbeats(self, node: Node, beats: UserFunction, push: Push) -> Push:
        """A heartbeat goes into every state partition, without a value, under a key that lies there.

        The user's function is asked here and nowhere else, with the stream's own key: what it said goes along as
        the missing value.
        """
        append, keys = self._collector.units[node.index].append, key_of_each(self._flow.state_partitions)
        shuffled, now_ms = node.index in self._shuffled, self._now_ms
        takes_context = node.spec is not None and node.spec.heartbeat_takes_context

        def push_or_beat(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            if beats(value, Context(origin, key, now_ms)) if takes_context else beats(value):
                for part, own in enumerate(keys):
                    append((own, b"" if shuffled else None, "", path + number(part), origin))
            else:
                push(value, key, path, origin)

        return push_or_beat

    def _into(self, node: Node, to_key: UserFunction | None, *, with_context: bool = False) -> Push:
        """Into a stage, under the key that a function gives; without one, under the unit's own."""
        append = self._collector.units[node.index].append
        shuffled, keyed = node.index in self._shuffled, node.kind == "aggregate"
        known: dict[type, tuple[str, Encode]] = {}

        def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            own = key if to_key is None else to_key(value, key, origin) if with_context else to_key(value)
            if own.__class__ is str:
                own = own.encode()
            elif own.__class__ is not bytes and (keyed or own is not None):
                own = key_bytes(own)
            found = known.get(value.__class__)
            if found is None:
                codec = _codec_of(self._flow, node, value)
                found = known[value.__class__] = tag_of(codec), codec.encode
            if shuffled:
                tag, encode = found
                append((own, encode(value), tag, path, origin))
            else:
                append((own, value, "", path, origin))

        return push

    def _output(self, node: Node) -> Push:
        append = self._collector.made.append
        to_key, with_context = self._key_of(node), node.key_takes_context
        index = node.index
        deleted = _deleted_type(self._flow, node)
        known: dict[type, tuple[str, Encode]] = {}

        def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:  # noqa: ARG001
            if to_key is not None:
                key = to_key(value, key, origin) if with_context else to_key(value)
                if key.__class__ is str:
                    key = key.encode()
                elif key is not None and key.__class__ is not bytes:
                    key = key_bytes(key)
            if value is None and deleted:
                append((index, key, deleted, None))
                return
            found = known.get(value.__class__)
            if found is None:
                codec = _codec_of(self._flow, node, value)
                found = known[value.__class__] = codec.type_name, codec.encode
            type_name, encode = found
            append((index, key, type_name, encode(value)))

        return push


def _codec_of(flow: Flow, node: Node, value: object) -> Codec[Any]:
    """The codec for a value on its way into a stage or an output.

    Raises:
        PoisonError: there is none; names the function that made the value.
    """
    kind = type(value)
    try:
        if isinstance(node.encoding, Codec):
            return node.encoding
        found = codec_for(kind) if node.encoding is None else node.encoding(kind)
    except ConfigurationError as error:
        into = "output" if node.kind == "output" else "stage"
        raise PoisonError(
            f"{into} {node.name!r} got a {kind.__name__} from {_maker(flow, node)}: {error}"
        ) from error
    if not found.deterministic:
        raise PoisonError(
            f"{node.place}: codec {found.name!r} does not give the same bytes each time: a batch that is done again would "
            "say something else"
        )
    return found


def _maker(flow: Flow, node: Node) -> str:
    """The step whose function made the values that reach a node, for an error's text."""
    while node.parents:
        node = flow.nodes[node.parents[0]]
        if node.function is not None and node.kind != "filter":
            break
    name = getattr(node.function, "__name__", "") if node.function else ""
    code = getattr(node.function, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code else node.place
    kind = "the fold" if node.kind == "aggregate" else node.kind
    return f"{kind} {name} at {where}" if name else f"{kind} at {where}"


def _deleted_type(flow: Flow, node: Node) -> str:
    """The state type of a stage whose `changes()` feed this output; empty for other outputs."""
    node_of_output = node
    while node.kind not in ("source", *STAGES):
        if node.kind == "changes":
            stage = flow.stage_of(node)
            codec = (
                node_of_output.encoding
                if isinstance(node_of_output.encoding, Codec)
                else stage and stage.codec
            )
            return codec.type_name if codec else ""
        node = flow.nodes[node.parents[0]]
    return ""


def _fan_out(pushes: list[Push]) -> Push:
    branches = [(number(branch), push) for branch, push in enumerate(pushes)]

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
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:  # noqa: ARG001
        down(value, key_bytes(function(value)), path, origin)

    return push


def _flat_map(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        _push_each(function(value), down, key, path, origin)

    return push


def _flat_map_to_outputs(function: UserFunction, down: Push) -> Push:
    """The same without paths: payloads are gathered in the order in which they come."""

    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        before = None
        for item in function(value):
            if item is before and item.__class__ not in _IMMUTABLE:
                raise PoisonError(SAME_OBJECT)
            before = item
            down(item, key, path, origin)

    return push


def _with_context(kind: Kind, function: UserFunction, down: Push, now_ms: int) -> Push:
    """The same four steps, for functions that take the context."""

    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        result = function(value, Context(origin, key, now_ms))
        if kind == "map":
            down(result, key, path, origin)
        elif kind == "key_by":
            down(value, key_bytes(result), path, origin)
        elif kind == "flat_map":
            _push_each(result, down, key, path, origin)
        elif result:
            down(value, key, path, origin)

    return push


def _push_each(items: Iterable[object], down: Push, key: bytes | None, path: bytes, origin: Origin) -> None:
    before = None
    for index, item in enumerate(items):
        if item is before and item.__class__ not in _IMMUTABLE:
            raise PoisonError(SAME_OBJECT)
        before = item
        down(item, key, path + number(index), origin)
