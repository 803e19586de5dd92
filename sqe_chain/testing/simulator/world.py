"""Worlds: the services of a simulation, their declarations and layouts, as plain data; and the flows made from it."""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from google.protobuf.struct_pb2 import Value
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow, Stage, Stream, count, last, max_, sum_
from sqe_chain.flow.nodes import Carrier
from sqe_chain.stages.windowing import Tumbling
from sqe_chain.tables.columns import Column
from sqe_chain.testing.simulator import facts

if TYPE_CHECKING:
    from collections.abc import Callable


DAY_MS = 86_400_000
WINDOW_MS = 60_000
COMPACTED = "latest"
"""The compacted topic."""
TABLES = "memory://simulation"
TABLE = "rows"
"""Where the table lives, and its name."""
FOLDER = Path(tempfile.gettempdir(), f"sqe-chain-simulation-{os.getpid()}")
"""Of the files that are an origin. Each process has its own."""

Poison = Literal["stop", "skip", "dead_letter"]
Doors = Literal["", "fold", "changes"]
TableAt = Literal["", "beside", "after"]
StageName = Literal["", "deduplicate", "distinct", "roots", "sequences", "windows"]


@dataclass(frozen=True, slots=True)
class World:
    """Services and topics of a simulation.

    Producers write to the origins `origin` (and `other`); up to two republishers carry facts to `far`, which
    `totals` reads; `reader` reads what `totals` publishes. Without a hop `far` is an origin itself.

    Attributes:
        hops: republishers between the origin and `totals`, 0 to 2.
        twin: another republisher, of `other`, also writes to `far`.
        raw: origins have no envelopes.
        partitions: of every topic that `totals` may read.
        state_partitions: of `totals`; the same number lets the first stage run in place.
        stages: of `totals`, 1 or 2; the second comes after a shuffle.
        kind: of the stage before the others: a filter, or windows, and then there is no other; empty: there is none.
        buckets: of each stage.
        poison: policy of every flow.
        recreated: policy of `totals` for old roots through a topic that was created again.
        view: the states of the first stage are also stored as JSON.
        misplaced: some keys are not in the partition that murmur2 gives them.
        doors: what refuses to close a door that is not open: the first fold, or the operator after its `changes()`.
        limits: topics refuse times far from the clock; the first stage also writes to a compacted topic.
        beside: another stage, without output, after the same shuffle as the first stage.
        reader: what reads the outputs of `totals`: an aggregation, a republisher, nothing.
        block: records that a reader gets at a time.
        rows: rows that one write of a store takes.
        records: records of one batch of any service.
        keep_plans: sealed plans that are kept.
        carrier: where republishers and `totals` put the chain.
        table: where rows go into a table: beside the first stage, or after it; empty: there is none.
        replaced: of few row keys, so that later rows replace earlier ones; else each row has its own.
        files: the origin is a folder of files.
        json: payloads and states are JSON, not protobuf.
        batches: the first operator of `totals` works on columns.
        declared: another stage has declared aggregates.
    """

    hops: int = 2
    twin: bool = False
    raw: bool = False
    partitions: int = 2
    state_partitions: int = 2
    stages: int = 2
    kind: StageName = ""
    buckets: int = 1
    poison: Poison = "stop"
    recreated: Literal["stop", "skip"] = "stop"
    view: bool = False
    misplaced: bool = False
    doors: Doors = ""
    limits: bool = False
    beside: bool = False
    reader: Literal["", "aggregation", "republisher"] = ""
    block: int = 1_000
    rows: int = 5_000
    records: int = 400_000
    keep_plans: int = 20
    carrier: Carrier = "value"
    table: TableAt = ""
    replaced: bool = False
    files: bool = False
    json: bool = False
    batches: bool = False
    declared: bool = False

    def origins(self) -> list[str]:
        """Topics that producers write."""
        return ["origin" if self.hops else "far", *(["other"] if self.twin else [])]

    def services(self) -> list[str]:
        """Names of the services, in the order in which facts reach them."""
        hops = [f"hop{number + 1}" for number in range(self.hops)]
        return [*hops, *(["twin"] if self.twin else []), "totals", *(["reader"] if self.reader else [])]

    def flows(self) -> dict[str, Flow]:
        """The flows of the services, in the order in which facts reach them."""
        return flows_of(self)


def chance(draw: random.Random, probability: float) -> bool:
    """True with this probability."""
    return draw.random() < probability


def random_world(draw: random.Random) -> World:
    """A small random world; every feature occurs in some of them."""
    kind: StageName = draw.choice(
        ["", "", "", "", "deduplicate", "distinct", "roots", "sequences", "windows", "windows"]
    )
    hops = draw.choice([0, 0, 1, 1, 2, 2])
    poison: Poison = draw.choice(("stop", "skip", "skip", "dead_letter"))
    plain = kind == ""
    doors: Doors = draw.choice(("fold", "changes")) if plain and chance(draw, 0.3) else ""
    if doors == "changes" or (doors and poison == "stop"):
        hops = 0
    partitions = draw.choice([1, 2, 2, 3])
    recreated = plain and hops > 1 and chance(draw, 0.3)
    raw = (hops > 0 and chance(draw, 0.2)) or (plain and hops == 0 and chance(draw, 0.3))
    return World(
        hops=hops,
        twin=hops > 0 and plain and not recreated and chance(draw, 0.25),
        raw=raw,
        partitions=partitions,
        state_partitions=partitions if chance(draw, 0.6) else draw.choice([1, 2, 3]),
        stages=draw.choice([1, 2]) if kind != "windows" else 1,
        kind=kind,
        buckets=draw.choice([1, 1, 1, 2]) if plain else 1,
        poison=poison,
        recreated="skip" if recreated else "stop",
        view=plain and not doors and chance(draw, 0.15),
        misplaced=bool(doors) or (kind != "roots" and chance(draw, 0.35)),
        doors=doors,
        limits=plain and not doors and chance(draw, 0.3),
        beside=plain and chance(draw, 0.2),
        reader=draw.choice(["", "", "", "", "aggregation", "republisher"]) if plain else "",
        block=draw.choice([1, 2, 3, 1_000]),
        rows=draw.choice([1, 1, 2, 5_000]),
        records=draw.choice([3, 5, 400_000]) if not doors else 400_000,
        keep_plans=draw.choice([2, 3, 20]),
        carrier=draw.choice(["value", "value", "headers"]),
    )


def extended_world(world: World, draw: random.Random) -> World:
    """The world with what came later: tables, files, JSON, columns, declared aggregates.

    Args:
        world: from `random_world`.
        draw: another source of randomness, so that worlds and schedules stay what they were without these.
    """
    table: TableAt = ""
    plain = world.kind == ""
    if world.kind != "windows" and chance(draw, 0.25 if plain else 0.12):
        table = draw.choice(("beside", "beside", "after")) if plain else "after"
    replaced = chance(draw, 0.5)
    files = world.hops > 0 and world.recreated == "stop" and world.kind in {"", "sequences"}
    files = files and chance(draw, 0.15)
    json = not world.view and chance(draw, 0.12)
    return replace(
        world,
        table=table,
        replaced=replaced and table != "",
        files=files,
        raw=world.raw and not files,
        json=json,
        batches=chance(draw, 0.08),
        declared=plain and chance(draw, 0.1),
    )


@lru_cache(2_000)
def flows_of(world: World) -> dict[str, Flow]:
    """The flows of a world; see `World.flows`."""
    found: dict[str, Flow] = {}
    if world.hops > 1:
        found["hop1"] = _hop(world, "hop1", "origin", "mid", first=True, last=False)
        found["hop2"] = _hop(world, "hop2", "mid", "far", first=False, last=True)
    elif world.hops == 1:
        found["hop1"] = _hop(world, "hop1", "origin", "far", first=True, last=True)
    if world.twin:
        found["twin"] = _hop(world, "twin", "other", "far", first=True, last=True)
    found["totals"] = totals_of(world)
    if world.reader == "aggregation":
        found["reader"] = _reader(world)
    elif world.reader == "republisher":
        flow = Flow("reader", poison=world.poison, recreated=world.recreated)
        flow.source("notes", text_type(world)).to("heard", partitions=1)
        found["reader"] = flow
    return found


def _hop(world: World, name: str, source: str, target: str, *, first: bool, last: bool) -> Flow:
    flow = Flow(name, poison=world.poison)
    stream = _origin(world, flow, source) if first else flow.source(source, text_type(world))
    if last:
        stream = stream.map(facts.refuse_in_hop)
    # Where a topic in between may be created again, siblings have keys of their own, so that each is an envelope.
    key = facts.route if world.recreated == "stop" else lambda value: value.value
    stream.to(target, key=key, partitions=world.partitions, carrier=world.carrier)
    return flow


def _origin(world: World, flow: Flow, topic: str) -> Stream[StringValue]:
    decode, decode_row, split = facts.decode, facts.decode_row, facts.split
    if world.json:
        decode, decode_row, split = cast("Any", (facts.decode_json, facts.decode_row_json, facts.split_json))
    if world.files and topic == "origin":
        return flow.files(topic, decode_row, str(FOLDER / "*.jsonl")).flat_map(split)
    stream = flow.source(topic, decode, raw=True) if world.raw else flow.source(topic, text_type(world))
    return stream.flat_map(split)


def text_type(world: World) -> type[StringValue]:
    """The type of payloads and states."""
    return cast("type[StringValue]", facts.Text) if world.json else StringValue


def totals_of(
    world: World, *, more_stages: bool = False, more_sources: bool = False, changed: bool = False
) -> Flow:
    """The flow of the service `totals`.

    Args:
        world: the world.
        more_stages: with another stage, as after a change of code.
        more_sources: with another input topic, as after a change of code.
        changed: with another fold of the first stage, as after a change of code.
    """
    text = text_type(world)
    flow = Flow(
        "totals",
        state_partitions=world.state_partitions,
        poison=world.poison,
        recreated=world.recreated,
    )
    stream = flow.source("far", text) if world.hops else _origin(world, flow, "far")
    stream = (
        stream.map_batches(facts.refuse_batch, text, columns=text)
        if world.batches
        else stream.map(facts.refuse_before)
    )
    if more_sources:
        flow.source("extra", text).aggregate("extra", key=facts.key, state=text, fold=facts.fold_text(""))
    for name in ["beside"] * world.beside + ["more"] * more_stages:
        stream.aggregate(name, key=facts.key, state=text, fold=facts.fold_text(""))
    if world.table == "beside":
        _ingest(world, stream)
    if world.declared:
        stream.map(facts.numbered).aggregate(
            "sums",
            key=facts.numbered_key,
            units=count(),
            total=sum_("number"),
            most=max_("number"),
            newest=last("id"),
        )
    if world.kind == "windows":
        stream.windowed(
            "windows",
            Tumbling(WINDOW_MS),
            key=facts.key,
            state=text,
            fold=cast("Callable[[StringValue, StringValue], None]", facts.fold_text(facts.FIRST)),
            lateness_ms=DAY_MS,
            heartbeat=facts.is_beat,
        ).to("closed", partitions=2, carrier=world.carrier)
        return flow
    state: type[Any] = Value if world.view else text
    fold: Any = facts.fold_values
    if not world.view:
        fold = facts.fold_text(facts.FIRST, doors=world.doors == "fold", changed=changed)
    first: Stage[Any, StringValue] = _filtered(world, stream).aggregate(
        "first",
        key=facts.key,
        state=state,
        fold=fold,
        buckets=world.buckets,
        view="json" if world.view else None,
    )
    if world.table == "after":
        _ingest(world, first)
    first.to("notes", key=facts.group, partitions=2, carrier=world.carrier)
    changes = first.changes()
    (changes.map(facts.refuse_open_doors) if world.doors == "changes" else changes).to(
        "first.states", partitions=2, carrier=world.carrier
    )
    if world.limits:
        first.to(COMPACTED, key=facts.compacted_key, partitions=1)
    if world.stages > 1:
        second = first.aggregate(
            "second",
            key=facts.group,
            state=text,
            fold=facts.fold_text(facts.SECOND),
            buckets=world.buckets,
        )
        second.map(facts.refuse_after).to(
            "notes", name="second.notes", key=facts.key, partitions=2, carrier=world.carrier
        )
        second.changes().to("second.states", partitions=1, carrier=world.carrier)
    return flow


def _ingest(world: World, stream: Stream[StringValue]) -> None:
    stream.ingest(
        TABLE,
        partition_key="key",
        row_key="slot",
        columns=[
            Column("key", "string", of=facts.row_key),
            Column("slot", "string", of=facts.row_slot if world.replaced else facts.row_of_its_own),
            Column("id", "string", of=facts.row_id),
            Column("rest", "string", of=facts.row_rest),
        ],
        at=TABLES,
        max_row_bytes=facts.MAX_ROW_BYTES,
    )


def _filtered(world: World, stream: Stream[StringValue]) -> Stream[StringValue]:
    if world.kind == "deduplicate":
        return stream.deduplicate("once", facts.filter_id, 30 * DAY_MS)
    if world.kind == "distinct":
        return stream.key_by(facts.filter_id).distinct("once", Tumbling(3_650 * DAY_MS))
    if world.kind == "roots":
        return stream.key_by(facts.key).drop_replays("once", by="key")
    if world.kind == "sequences":
        return stream.drop_stale("once", sequence=facts.sequence, scope="lane")
    return stream


def _reader(world: World) -> Flow:
    flow = Flow("reader", state_partitions=1, poison=world.poison, recreated=world.recreated)
    text = text_type(world)
    flow.source("notes", text).aggregate("heard", key=facts.key, state=text, fold=facts.append_heard)
    state = Value if world.view else text
    flow.source("first.states", state).aggregate(
        "states",
        key=lambda value: (facts.ids_of(value) or ["-"])[0],
        state=text,
        fold=facts.keep_newest,
    )
    return flow
