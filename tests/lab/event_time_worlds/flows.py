"""The flows of a world, declared with the package."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from sqe_chain.flow import Context, Flow, Timer
from sqe_chain.stages import Hopping, Sessions, Tumbling
from tests.lab.event_time_worlds.world import BEAT, Hop
from tests.lab.reference.event_times import (
    ADVANCE_MS,
    AFTER_MS,
    AGAIN,
    BEFORE_MS,
    DELETED,
    EXPIRY_MS,
    GAP_MS,
    SIZE_MS,
    key_of_group,
)

STAGE: Final = "stage"
"""The stage whose states are compared."""
OUTPUT_PARTITIONS: Final = 2
_KEEP_MS: Final = 10**13

Value = dict[str, Any]


def key_of(value: Value) -> str:
    return str(value["k"])


def number_of(value: Value) -> str:
    return str(value["n"])


def is_heartbeat(value: Value) -> bool:
    return bool(value["k"] == BEAT)


def add(state: Value, value: Value) -> None:
    state.setdefault("ns", []).append(value["n"])


def add_later(state: Value, later: Value) -> None:
    state["ns"] += later["ns"]


def add_window(state: Value, window: Any) -> None:
    state.setdefault("ns", []).append([window.key, window.start_ms])


def add_and_set(state: Value, value: Value, context: Context) -> None:
    add(state, value)
    context.set_timer(context.timestamp_ms + SIZE_MS, name="" if value["n"] % 2 else "even")


def give_numbers(state: Value, timer: Timer, context: Context) -> list[Value]:
    if len(state["ns"]) % AGAIN == 0:
        context.set_timer(timer.at_ms + SIZE_MS, name=timer.name)
    return [{"k": (context.key or b"").decode(), "t": timer.at_ms, "name": timer.name, "ns": state["ns"]}]


def both(first: Value, second: Value | None) -> Value:
    return {"k": first["k"], "n": first["n"], "other": second and second["n"]}


def deletes(change: Value) -> bool:
    return bool(change["n"] % DELETED == 0)


@lru_cache(maxsize=512)
def republisher(name: str, source: str, target: str, raw: bool, hop: Hop) -> Flow:
    """A flow that passes on some of the facts."""
    flow = Flow(name)
    facts = flow.source(source, dict, raw=raw)
    kept = facts.filter(lambda value: value["n"] % 10 < hop.keep) if hop.keep < 10 else facts
    kept.to(target, key=number_of if hop.by_number else key_of, partitions=hop.partitions)
    return flow


@lru_cache(maxsize=2048)
def reader(
    name: str, kind: str, sources: tuple[tuple[str, bool], ...], state_partitions: int, *, beats: bool = False
) -> Flow:
    """A flow whose stages go by event time; it publishes into topics of its own.

    Args:
        name: of the flow.
        kind: of its stages.
        sources: topics, and whether each is a root.
        state_partitions: of the flow.
        beats: whether its windows have heartbeats.
    """
    flow = Flow(name, state_partitions=state_partitions)
    first, *others = (flow.source(topic, dict, raw=raw).key_by(key_of) for topic, raw in sources)
    if kind in ("table", "stream"):
        (second,) = others
        if kind == "table":
            made: Any = first.join_table(STAGE, second, both, how="left", deleted=deletes)
        else:
            made = first.join_stream(STAGE, second, both, before_ms=BEFORE_MS, after_ms=AFTER_MS, how="left")
        made.to(f"{name}.out", partitions=OUTPUT_PARTITIONS)
        made.dropped().to(f"{name}.dropped", partitions=1)
        return flow
    for other in others:
        first = first.merge(other)
    _with_stage(first, kind, name, beats=beats)
    return flow


def _with_stage(facts: Any, kind: str, name: str, *, beats: bool) -> None:
    kept: Value = {"state": dict, "retention_ms": _KEEP_MS, "heartbeat": is_heartbeat if beats else None}
    if kind == "tumbling":
        made: Any = facts.windowed(STAGE, Tumbling(SIZE_MS), fold=add, **kept)
    elif kind == "hopping":
        made = facts.windowed(STAGE, Hopping(SIZE_MS, ADVANCE_MS), fold=add, **kept)
    elif kind == "sessions":
        made = facts.windowed(STAGE, Sessions(GAP_MS), fold=add, merge=add_later, **kept)
    elif kind == "chained":
        first = facts.windowed("first", Tumbling(SIZE_MS), fold=add, state=dict)
        first.dropped().to(f"{name}.dropped-first", partitions=1)
        groups = first.key_by(lambda window: key_of_group(window.key))
        made = groups.windowed(STAGE, Tumbling(3 * SIZE_MS), fold=add_window, **kept)
    elif kind == "timers":
        made = facts.aggregate(
            STAGE, state=dict, fold=add_and_set, on_timer=give_numbers, expire_after_ms=EXPIRY_MS
        )
        made.to(f"{name}.out", partitions=OUTPUT_PARTITIONS)
        return
    else:
        made = (
            facts.distinct("filter", Tumbling(SIZE_MS))
            if kind == "distinct"
            else facts.deduplicate_by_key("filter", SIZE_MS)
        )
        made.aggregate(STAGE, state=dict, fold=add)
    made.to(f"{name}.out", partitions=OUTPUT_PARTITIONS)
    made.dropped().to(f"{name}.dropped", partitions=1)
