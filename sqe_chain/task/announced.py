"""The states of one state partition that a stage republishes: the newest of each key, as `changes()` would give it. Pure.

All of it has one origin, the last record read. So the records of one output and state partition belong to one input and
lane. Their ordinals number them, in the order of the states' keys. States of different keys never share an envelope, whatever
key the output gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from sqe_chain.chain import read_lane, root_position
from sqe_chain.envelope.head import MAX_TIMESTAMP_MS
from sqe_chain.errors import PoisonError, text_of
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Carried, Origin, TopicIdPartition
from sqe_chain.flow.nodes import OutputNode, StageNode
from sqe_chain.flow.stored import named_key
from sqe_chain.ports import Output, TopicInfo
from sqe_chain.task.collector import Collector, Made
from sqe_chain.task.compiler import Compiler
from sqe_chain.task.inputs import Inputs
from sqe_chain.task.outputs import Gatherer
from sqe_chain.task.poison import place_in_user_code

Given = list[tuple[bytes, list[Made]]]
"""Keys of a stage, in their order, and what the operators after `changes()` made of the state of each."""


def announced_origin(tp: TopicIdPartition, offset: int, epoch: int, timestamp_ms: int) -> Origin:
    """The origin of all republished states: the last record read, as if its chain began there.

    Args:
        tp: where it was read.
        offset: its offset.
        epoch: its leader epoch plus one.
        timestamp_ms: time of the republished states, milliseconds since 1970; -1 not known.
    """
    lane = read_lane(0, tp.topic, tp.topic_id, tp.partition)
    moment = max(-1, min(timestamp_ms, MAX_TIMESTAMP_MS))
    carried = Carried(timestamp_ms=moment)
    return Origin(tp, offset, epoch, lane, root_position(epoch, offset), None, None, carried)


def given_by(
    flow: CompiledFlow, stage: StageNode, rows: Iterable[tuple[bytes, bytes]], origin: Origin
) -> Given:
    """What the operators after `changes()` give for stored states.

    Args:
        flow: the flow.
        stage: a stage whose rows are states by key.
        rows: keys and states of one state partition, in the order of the keys.
        origin: see `announced_origin`.

    Returns:
        Keys for which they give something.

    Raises:
        PoisonError: user code failed; names stage, key and function.
        Unavailable: it could not reach what it needs.
    """
    collector = Collector(flow)
    push, codec = Compiler(flow, collector, 0, frozenset()).after(stage, "changes"), stage.codec
    if push is None or codec is None:
        raise AssertionError(f"{stage.declared_at}: checked before")
    given: Given = []
    for key, state in rows:
        try:
            push(codec.decode(state), key, b"", origin)
        except Exception as error:
            raise_outage(error, f"the state of {named_key(key)} of stage {stage.name!r}")
            where = place_in_user_code(flow, error)
            raise PoisonError(
                f"flow {flow.name!r}: the state of {named_key(key)} of stage {stage.name!r} cannot be republished: "
                f"{type(error).__name__}: {text_of(error)}{where and f', at {where}'}. Fix the code, then republish again"
            ) from error
        if collector.made:
            given.append((key, collector.made[:]))
            collector.forget()
    return given


def digest_of(flow: CompiledFlow, given: Given) -> str:
    """A digest, 16 hexadecimal digits, of all that receivers would get; empty for nothing."""
    if not given:
        return ""
    digest = blake2b(digest_size=8)
    for _, made in given:
        for index, key, type_name, payload in made:
            output = flow.nodes[index]
            carrier = output.carrier if isinstance(output, OutputNode) else ""
            name = getattr(output, "name", "")
            digest.update(repr((name, carrier, key, type_name, payload)).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def announced_records(
    flow: CompiledFlow,
    shard: int,
    given: Given,
    origin: Origin,
    suffix: str,
    topics: Mapping[str, TopicInfo],
) -> list[Output]:
    """The records of one state partition, as they are published.

    Args:
        flow: the flow.
        shard: the state partition.
        given: by one stage.
        origin: see `announced_origin`.
        suffix: what the names of outputs have at their ends, in chains.
        topics: topic -> what it accepts; a topic that is absent is not checked.

    Raises:
        OutputTooLarge, OutputRefused, PoisonError: what a state gives cannot be published; names the key.
    """
    gatherer, records = Gatherer(flow, shard, topics, 0, suffix), list[Output]()
    try:
        made = [value for _, own in given for value in own]
        groups = [number for number, (_, own) in enumerate(given) for _ in own]
        gatherer.gather(made, [0] * len(made), Inputs([origin]), records, groups=groups)
    except PoisonError as error:
        key = _key_that_fails(given, origin, Gatherer(flow, shard, topics, 0, suffix))
        raise type(error)(
            f"flow {flow.name!r}: the state of {named_key(key)} cannot be announced: {text_of(error)}"
        ).at(error.topic, error.partition, error.offset) from error
    return records


def _key_that_fails(given: Sequence[tuple[bytes, list[Made]]], origin: Origin, gatherer: Gatherer) -> bytes:
    """The first key whose own records cannot be made."""
    for key, made in given:
        try:
            gatherer.gather(made, [0] * len(made), Inputs([origin]), [], keep=False)
        except PoisonError:
            return key
    return given[0][0]
