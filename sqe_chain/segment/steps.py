"""The stateless steps of a flow, compiled to functions that push a unit to the next step.

A unit is pushed as ``(value, key, path, origin)``. What reaches a stage or an output is appended to a
`Collector`. Functions call each other directly: this is the hottest path after the decoding.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from google.protobuf.message import Message

from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.context import Context, Origin
from sqe_chain.flow.filtering import FilterSpec
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.topology import SIDES, STAGES, Kind, Node
from sqe_chain.partitioner import key_bytes, key_of_each
from sqe_chain.stages.units import Push, Unit, number

Serialize = Callable[[Any], bytes]
SAME_OBJECT = "a flat_map gave the same object twice: create a new one for each value"

Made = tuple[int, bytes | None, str, bytes | None]
"""A payload on its way into an output: index of the output's node, key, full protobuf name, serialized
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
        known: dict[type, tuple[str, Serialize]] = {}

        def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            own = key if to_key is None else to_key(value, key, origin) if with_context else to_key(value)
            if own.__class__ is str:
                own = own.encode()
            elif own.__class__ is not bytes and (keyed or own is not None):
                own = key_bytes(own)
            found = known.get(value.__class__)
            if found is None:
                if not isinstance(value, Message):
                    raise PoisonError(
                        f"{node.place}: stage {node.name!r} takes protobuf messages, got {type(value).__name__}"
                    )
                found = known[value.__class__] = value.DESCRIPTOR.full_name, serializer(value)
            if shuffled:
                name, serialize = found
                append((own, serialize(value), name, path, origin))
            else:
                append((own, value, "", path, origin))

        return push

    def _output(self, node: Node) -> Push:
        append = self._collector.made.append
        to_key, with_context = self._key_of(node), node.key_takes_context
        index = node.index
        deleted = _deleted_type(self._flow, node)
        known: dict[type, tuple[str, Serialize]] = {}

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
                if not isinstance(value, Message):
                    raise PoisonError(
                        f"{node.place}: output {node.name!r} takes protobuf messages, got {type(value).__name__}"
                    )
                found = known[value.__class__] = value.DESCRIPTOR.full_name, serializer(value)
            name, serialize = found
            append((index, key, name, serialize(value)))

        return push


def serializer(message: Message) -> Serialize:
    """How messages of this one's type are serialized: the same bytes for the same content.

    Only maps have no order of their own; asking for one costs as much as serializing.
    """
    if _has_order(message.DESCRIPTOR, set()):
        return type(message).SerializeToString
    return partial(type(message).SerializeToString, deterministic=True)


def _has_order(descriptor: Any, seen: set[str]) -> bool:  # noqa: ANN401 - two kinds of descriptor
    """Whether a message type, and all below it, hold neither maps nor what may hold one."""
    if descriptor.full_name in seen:
        return True
    seen.add(descriptor.full_name)
    if descriptor.is_extendable or descriptor.GetOptions().map_entry:
        return False
    return all(
        field.message_type is None or _has_order(field.message_type, seen) for field in descriptor.fields
    )


def _deleted_type(flow: Flow, node: Node) -> str:
    """The state type of a stage whose `changes()` feed this output; empty for other outputs."""
    while node.kind not in ("source", *STAGES):
        if node.kind == "changes":
            stage = flow.stage_of(node)
            return stage.payload.DESCRIPTOR.full_name if stage and stage.payload else ""
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
            if item is before and isinstance(item, Message):
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
        if item is before and isinstance(item, Message):
            raise PoisonError(SAME_OBJECT)
        before = item
        down(item, key, path + number(index), origin)
