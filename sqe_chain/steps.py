"""The stateless steps of a flow, compiled to functions that push a unit to the next step.

A unit is pushed as ``(value, key, path, origin)``. What reaches a stage or an output is appended to a
`Collector`. Functions call each other directly: this is the hottest path after the decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from google.protobuf.message import Message

from sqe_chain.context import Context, Origin
from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow, Node, UserFunction
from sqe_chain.partitioner import key_bytes

Push = Callable[[object, bytes | None, bytes, Origin], None]

_UINT32 = Struct(">I")
NUMBERS = tuple(_UINT32.pack(number) for number in range(256))
"""The first path elements, ready made."""


Unit = tuple[bytes, Any, str, bytes, Origin]
"""A value on its way into a stage: key, value (an object; for a shuffle its bytes), full protobuf name of
a serialized value (else ""), path, origin. A plain tuple: it is made for every message."""

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


def number(value: int) -> bytes:
    """One element of a path: 4 bytes, so that bytes compare as numbers do."""
    return NUMBERS[value] if value < 256 else _UINT32.pack(value)  # noqa: PLR2004 - size of the table


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

    def behind(self, node: Node, *, changes: bool = False) -> Push | None:
        """The function that takes what a node gives; None when nobody wants it.

        Args:
            node: source, step or stage.
            changes: of a stage: the steps behind `changes()`, not those behind its emissions.
        """
        children = [
            child
            for child in self._flow.children(node.index)
            if node.kind != "aggregate" or (child.kind == "changes") is changes
        ]
        pushes = [self._compile(child) for child in children]
        if not pushes:
            return None
        return pushes[0] if len(pushes) == 1 else _fan_out(pushes)

    def _compile(self, node: Node) -> Push:
        if node.kind == "aggregate":
            return self._stage(node)
        if node.kind == "output":
            return self._output(node)
        down = self.behind(node)
        if down is None:
            raise AssertionError(f"{node.place}: checked when declared")
        if node.kind in ("merge", "changes"):
            return down
        if node.kind == "key_by":
            return _key_by(self._one(node.key, node.key_takes_context), down)
        function = self._one(node.function, node.takes_context)
        return {"map": _map, "filter": _filter, "flat_map": _flat_map}[node.kind](function, down)

    def _one(self, function: UserFunction | None, takes_context: bool) -> UserFunction:  # noqa: FBT001
        """A user's function as ``(value, key, origin) -> result``, when it takes the context."""
        if function is None:
            raise AssertionError("a step without a function")
        if not takes_context:
            return lambda value, _key, _origin: function(value)
        now_ms = self._now_ms
        return lambda value, key, origin: function(value, Context(origin, key, now_ms))

    def _stage(self, node: Node) -> Push:
        append = self._collector.units[node.index].append
        to_key = self._one(node.key, node.key_takes_context) if node.key else None
        serialize = node.index in self._shuffled

        def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
            own = key_bytes(to_key(value, key, origin) if to_key else key)
            if not isinstance(value, Message):
                raise PoisonError(
                    f"{node.place}: stage {node.name!r} takes protobuf messages, got {type(value).__name__}"
                )
            if serialize:
                data = value.SerializeToString(deterministic=True)
                append((own, data, value.DESCRIPTOR.full_name, path, origin))
            else:
                append((own, value, "", path, origin))

        return push

    def _output(self, node: Node) -> Push:
        append = self._collector.made.append
        to_key = self._one(node.key, node.key_takes_context) if node.key else None
        index = node.index
        deleted = _deleted_type(self._flow, node)

        def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:  # noqa: ARG001
            if to_key:
                own = to_key(value, key, origin)
                key = None if own is None else key_bytes(own)
            if isinstance(value, Message):
                data = value.SerializeToString(deterministic=True)
                append((index, key, value.DESCRIPTOR.full_name, data))
            elif value is None and deleted:
                append((index, key, deleted, None))
            else:
                raise PoisonError(
                    f"{node.place}: output {node.name!r} takes protobuf messages, got {type(value).__name__}"
                )

        return push


def _deleted_type(flow: Flow, node: Node) -> str:
    """The state type of a stage whose `changes()` feed this output; empty for other outputs."""
    while node.kind not in ("source", "aggregate"):
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
        down(function(value, key, origin), key, path, origin)

    return push


def _filter(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        if function(value, key, origin):
            down(value, key, path, origin)

    return push


def _key_by(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        down(value, key_bytes(function(value, key, origin)), path, origin)

    return push


def _flat_map(function: UserFunction, down: Push) -> Push:
    def push(value: object, key: bytes | None, path: bytes, origin: Origin) -> None:
        before = None
        for index, item in enumerate(function(value, key, origin)):
            if item is before and isinstance(item, Message):
                raise PoisonError("a flat_map gave the same object twice: create a new one for each value")
            before = item
            down(item, key, path + number(index), origin)

    return push
