"""The short way of ordinary messages into a stage that takes them in the order of their times.

Where the way from the source to the stage is only a key, a run of ordinary messages (`sqe_chain.segment.fast_path`) is decoded
in one loop, and its places in the order of times are found for all of it (`run_times`). What they become is units side by
side; the origin of one is made when somebody asks for it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from sqe_chain.codecs import codec_for
from sqe_chain.envelope.block import EnvelopeBlock
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.flow.context import Origin
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.nodes import KeyByNode, Node, StageNode
from sqe_chain.flow.units import UnitRun, number
from sqe_chain.partitioner import key_bytes
from sqe_chain.replays.runs import accept_run
from sqe_chain.segment.fast_path import KNOWN_KEYS, FastPath
from sqe_chain.segment.level import Level
from sqe_chain.segment.poison import exclusion_of
from sqe_chain.segment.run_times import place_run
from sqe_chain.segment.source_partition import SourcePartition


class _Way(NamedTuple):
    """From a source into a stage.

    Attributes:
        stage: the stage.
        key: what gives the key of a value.
        path: of the units.
        keyed: whether a value without a key is poison.
    """

    stage: StageNode
    key: UserFunction
    path: bytes
    keyed: bool


class OrderedPath(FastPath):
    """One input partition into one stage, in place, to be taken there in the order of times.

    Args:
        inputs: takes the records that are not ordinary.
        level: takes their units.
        way: from the source into the stage.
    """

    def __init__(self, inputs: SourcePartition, level: Level, way: _Way) -> None:
        super().__init__(inputs, level, way.stage)
        self._key, self._path, self._keyed = way.key, way.path, way.keyed
        self._keys: dict[str, bytes] = {}  # so that a key is encoded once, and is one object

    @classmethod
    def of(cls, inputs: SourcePartition, level: Level | None) -> OrderedPath | None:
        """The short way, where the flow allows it; None where it does not."""
        source, way = inputs.node, _way(inputs.flow, inputs.node)
        if (
            level is None
            or way is None
            or inputs.skipped
            or inputs.flow.poison != "stop"
            or inputs.times is None
        ):
            return None
        if source.codec is None or source.raw or source.timestamp is not None:
            return None
        return cls(inputs, level, way) if _travels(source.codec.python_type) else None

    def _take(self, block: EnvelopeBlock, begin: int, end: int) -> bool:
        inputs = self._inputs
        if inputs.times is None:
            raise AssertionError("asked for where there are times")
        placed = place_run(inputs.times, inputs.writers, block, begin, end)
        if placed is None or not accept_run(inputs.marks, block, begin, end):
            return False
        for head in placed.met:
            inputs.writer(head)
        placed.move(inputs.times)
        orders_ms = placed.orders_ms
        keys, values = self._decoded(block, begin, end)
        count = len(keys)
        run = UnitRun(
            keys,
            values,
            [self._path] * count,
            block.columns.timestamp_ms[begin:end].tolist(),
            orders_ms,
            [partial(self._placed, block, orders_ms, begin)] * count,
            list(range(begin, end)),
        )
        self._level.fold(self._stage.index, run)
        return True

    def _decoded(self, block: EnvelopeBlock, begin: int, end: int) -> tuple[list[Any], list[Any]]:
        """Keys and values of a run."""
        codec: Any = self._inputs.node.codec
        decode, key_of, known = codec.decode, self._key, self._keys
        keys: list[bytes | None] = []
        values: list[Any] = []
        if len(known) >= KNOWN_KEYS:
            known.clear()
        try:
            for payload in block.payloads(begin, end):
                value = decode(payload)
                key: Any = key_of(value)
                if key.__class__ is str:
                    own = known.get(key)
                    if own is None:
                        own = known[key] = key.encode()
                elif key is not None or self._keyed:
                    own = key_bytes(key)
                else:
                    own = None
                keys.append(own)
                values.append(value)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            failed = self._origin(block, begin + len(values))
            exclusion_of(self._inputs.flow, failed, error)  # raises: the policy is `stop`
        return keys, values

    def _placed(self, block: EnvelopeBlock, orders_ms: list[int], begin: int, index: int) -> Origin:
        return self._origin(block, index, orders_ms[index - begin])


def _way(flow: Flow, source: Node) -> _Way | None:
    """The way from a source, if it is only a key; None if it is more, or leads to other stages."""
    parent, key = source, None
    children = flow.children(source.index)
    if len(children) == 1 and isinstance(children[0], KeyByNode) and not children[0].takes_context:
        parent, key = children[0], children[0].function
        children = flow.children(parent.index)
    if len(children) != 1 or not isinstance(stage := children[0], StageNode) or stage.key_takes_context:
        return None
    given = key or stage.key
    if given is None or (key is not None and stage.key is not None):  # no key, or one after the other
        return None
    kind, keyed = stage.stage_kind, key is not None or stage.stage_kind.needs_key
    if kind.order != "times" or kind.spread != "key" or kind.heartbeat is not None:
        return None
    path = number(0) + number(stage.parents.index(parent.index)) if kind.inputs > 1 else number(0)
    return _Way(stage, given, path, keyed)


def _travels(python_type: type) -> bool:
    """Whether values of a type may become units."""
    try:
        return codec_for(python_type).deterministic
    except ConfigurationError:
        return False
