"""The flows of a world's services."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Literal, cast

from google.protobuf.struct_pb2 import Value
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.ext.tables.columns import Column
from sqe_chain.flow import Filter, Flow, Stage, Stream, count, last, max_, sum_
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.stages.windowing import Tumbling
from tests.lab.reference import facts
from tests.lab.reference.world import COMPACTED, DAY_MS, FOLDER, TABLE, TABLES, WINDOW_MS, World
from tests.lab.simulator import functions

_MOST_FLOWS: Final = 20_000
"""Flows that are kept; there are fewer."""


Makes = Literal["fewer", "more"]
"""What a republisher makes of an input after its code was changed."""


def flows_of(world: World) -> dict[str, CompiledFlow]:
    """The flows of the services of a world, in the order in which facts reach them.

    Worlds whose flows are equal share them: building and compiling them takes longer than running a schedule.
    """
    found = {**_republishers(_as_republishers_see(world))}
    found["totals"] = totals_of(world)
    if world.reader:
        found["reader"] = _reader(_as_reader_sees(world))
    return found


_UNSEEN: Final = {
    name: getattr(World(), name)
    for name in ("twin", "mispartitioned", "reader", "block", "rows", "records", "keep_plans")
}
"""What makes no difference to the flow `totals`."""


def _as_totals_see(world: World) -> World:
    """The world, without what makes no difference to the flow `totals`."""
    hops = min(world.hops, 1)
    return replace(
        world,
        **_UNSEEN,
        hops=hops,
        raw=world.raw and not hops,
        partitions=2,
        files=False,
        replaced=world.replaced and world.table != "",
    )


def _as_republishers_see(world: World) -> World:
    """The world, without what makes no difference to republishers."""
    return World(
        hops=world.hops,
        twin=world.twin,
        raw=world.raw,
        partitions=world.partitions,
        poison=world.poison,
        recreated=world.recreated,
        carrier=world.carrier,
        files=world.files,
        json=world.json,
        own=world.own,
    )


def _as_reader_sees(world: World) -> World:
    """The world, without what makes no difference to the reader."""
    return World(
        poison=world.poison,
        recreated=world.recreated,
        view=world.view,
        reader=world.reader,
        json=world.json,
        own=world.own,
    )


@lru_cache(_MOST_FLOWS)
def _republishers(world: World) -> dict[str, CompiledFlow]:
    found: dict[str, CompiledFlow] = {}
    if world.hops > 1:
        found["hop1"] = _hop(world, "hop1", "origin", "mid", first=True, last=False)
        found["hop2"] = _hop(world, "hop2", "mid", "far", first=False, last=True)
    elif world.hops == 1:
        found["hop1"] = _hop(world, "hop1", "origin", "far", first=True, last=True)
    if world.twin:
        found["twin"] = _hop(world, "twin", "other", "far", first=True, last=True)
    return found


def changed_hop(world: World, makes: Makes) -> CompiledFlow:
    """The only republisher of the world by other code: without the third unit of each fact, or with a fourth one."""
    return _hop(world, "hop1", "origin", "far", first=True, last=True, makes=makes)


def _hop(
    world: World, name: str, source: str, target: str, *, first: bool, last: bool, makes: Makes | None = None
) -> CompiledFlow:
    flow = Flow(name, poison=world.poison)
    stream = _origin(world, flow, source) if first else flow.source(source, text_type(world))
    if last:
        stream = stream.map(functions.refuse_in_hop)
    if makes == "fewer":
        stream = stream.filter(functions.is_no_third)
    elif makes == "more":
        stream = stream.flat_map(functions.and_a_fourth)
    # Where a topic in between may be created again, siblings have keys of their own, so that each is an envelope.
    key = functions.route if world.recreated == "stop" else lambda value: value.value
    stream.to(target, key=key, partitions=world.partitions, carrier=world.carrier)
    return flow.compile()


_ORIGINS: Final[dict[facts.Form, Any]] = {
    "protobuf": (functions.decode, functions.decode_row, functions.split),
    "json": (functions.decode_json, functions.decode_row_json, functions.split_json),
    "own": (functions.decode_own, functions.decode_row_own, functions.split_own),
}
"""Form -> the functions of an origin: of a raw record, of a row of a file, and from a fact to its units."""


def _origin(world: World, flow: Flow, topic: str) -> Stream[StringValue]:
    decode, decode_row, split = _ORIGINS[world.form]
    if world.files and topic == "origin":
        return flow.files(topic, decode_row, str(FOLDER / "*.jsonl")).flat_map(split)
    stream = flow.source(topic, decode, raw=True) if world.raw else flow.source(topic, text_type(world))
    return stream.flat_map(split)


def text_type(world: World) -> type[StringValue]:
    """The type of payloads and states."""
    return cast("type[StringValue]", functions.TYPES[world.form])


def totals_of(
    world: World, *, more_stages: bool = False, more_sources: bool = False, changed: bool = False
) -> CompiledFlow:
    """The flow of the service `totals`.

    Args:
        world: the world.
        more_stages: with another stage, as after a change of code.
        more_sources: with another input topic, as after a change of code.
        changed: with another fold of the first stage, as after a change of code.
    """
    return _totals(_as_totals_see(world), more_stages=more_stages, more_sources=more_sources, changed=changed)


@lru_cache(_MOST_FLOWS)
def _totals(world: World, *, more_stages: bool, more_sources: bool, changed: bool) -> CompiledFlow:
    text = text_type(world)
    flow = Flow(
        "totals",
        state_partitions=world.state_partitions,
        poison=world.poison,
        recreated=world.recreated,
        transactional=world.transactional,
    )
    stream = flow.source("far", text) if world.hops else _origin(world, flow, "far")
    stream = (
        stream.map_batches(functions.refuse_batch, text, columns=text)
        if world.batches
        else stream.map(functions.refuse_before)
    )
    if more_sources:
        flow.source("extra", text).aggregate(
            "extra", key=functions.key, state=text, fold=functions.fold_text("")
        )
    for name in ["beside"] * world.beside + ["more"] * more_stages:
        stream.aggregate(name, key=functions.key, state=text, fold=functions.fold_text(""))
    if world.table == "beside":
        _ingest(world, stream)
    if world.declared:
        stream.map(functions.numbered).aggregate(
            "sums",
            key=functions.numbered_key,
            units=count(),
            total=sum_("number"),
            most=max_("number"),
            newest=last("id"),
        )
    if world.kind == "windows":
        _windowed(world, stream)
        return flow.compile()
    state: type[Any] = Value if world.view else text
    fold: Any = functions.fold_values
    if not world.view:
        fold = functions.fold_text(facts.FIRST, doors=world.doors == "fold", changed=changed)
    passed = _filtered(world, stream)
    first: Stage[Any, StringValue] = passed.aggregate(
        "first",
        key=functions.key,
        state=state,
        fold=fold,
        buckets=world.buckets,
        view="json" if world.view else None,
    )
    if world.table == "after":
        _ingest(world, first)
    first.to("notes", key=functions.group, partitions=2, carrier=world.carrier)
    changes = first.changes()
    (changes.map(functions.refuse_open_doors) if world.doors == "changes" else changes).to(
        "first.states", partitions=2, carrier=world.carrier
    )
    if world.limits:
        first.to(COMPACTED, key=functions.compacted_key, partitions=1)
    if world.stages > 1:
        second = first.aggregate(
            "second",
            key=functions.group,
            state=text,
            fold=functions.fold_text(facts.SECOND),
            buckets=world.buckets,
        )
        second.map(functions.refuse_after).to(
            "notes", name="second.notes", key=functions.key, partitions=2, carrier=world.carrier
        )
        second.changes().to("second.states", partitions=1, carrier=world.carrier)
    return flow.compile()


def _ingest(world: World, stream: Stream[StringValue]) -> None:
    stream.ingest(
        TABLE,
        partition_key="key",
        row_key="slot",
        columns=[
            Column("key", "string", of=functions.row_key),
            Column("slot", "string", of=functions.row_slot if world.replaced else functions.row_of_its_own),
            Column("id", "string", of=functions.row_id),
            Column("rest", "string", of=functions.row_rest),
        ],
        at=TABLES,
        max_row_bytes=functions.MAX_ROW_BYTES,
    )


def _windowed(world: World, stream: Stream[StringValue]) -> None:
    text, carrier = text_type(world), world.carrier
    windows = stream.windowed(
        "windows",
        Tumbling(WINDOW_MS),
        key=functions.key,
        state=text,
        fold=functions.fold_window,
        lateness_ms=DAY_MS,
        heartbeat=functions.is_heartbeat,
    )
    windows.to("closed", partitions=2, carrier=carrier)
    if world.told:
        windows.changes().to("early", key=functions.everything, partitions=2, carrier=carrier)
        _publish_twins(world, stream)


def _publish_twins(world: World, stream: Stream[StringValue]) -> None:
    """Publish the first unit of each fact, and the verdict of a filter on the others."""
    firsts = stream.deduplicate("firsts", functions.filter_id, 30 * DAY_MS)
    firsts.to("firsts", key=functions.group, partitions=2, carrier=world.carrier)
    firsts.dropped().to("twins", key=functions.everything, partitions=2, carrier=world.carrier)


def _filtered(world: World, stream: Stream[StringValue]) -> Stream[StringValue]:
    """What the stage before the others lets pass."""
    if world.kind == "":
        return stream
    if world.kind == "join":
        if world.told:
            _publish_twins(world, stream)
        keyed = stream.key_by(functions.key)
        table = keyed.filter(functions.nothing)
        passed = keyed.join_table("once", table, functions.alone, how="left", history_ms=30 * DAY_MS)
    else:
        passed = found = _by_filter(world, stream)
        if world.told:
            found.dropped().to("dropped", key=functions.everything, partitions=2, carrier=world.carrier)
    if world.told:
        passed.to("passed", key=functions.group, partitions=2, carrier=world.carrier)
    return passed


def _by_filter(world: World, stream: Stream[StringValue]) -> Filter[StringValue]:
    if world.kind == "deduplicate":
        return stream.deduplicate("once", functions.filter_id, 30 * DAY_MS)
    if world.kind == "distinct":
        return stream.key_by(functions.filter_id).distinct("once", Tumbling(3_650 * DAY_MS))
    if world.kind == "roots":
        return stream.key_by(functions.key).drop_replays("once", by="key")
    return stream.drop_stale("once", sequence=functions.sequence, scope="lane")


@lru_cache(_MOST_FLOWS)
def _reader(world: World) -> CompiledFlow:
    text = text_type(world)
    if world.reader == "republisher":
        flow = Flow("reader", poison=world.poison, recreated=world.recreated)
        flow.source("notes", text).to("heard", partitions=1)
        return flow.compile()
    flow = Flow("reader", state_partitions=1, poison=world.poison, recreated=world.recreated)
    flow.source("notes", text).aggregate("heard", key=functions.key, state=text, fold=functions.append_heard)
    state = Value if world.view else text
    flow.source("first.states", state).aggregate(
        "states",
        key=lambda value: (functions.ids_of(value) or ["-"])[0],
        state=text,
        fold=functions.keep_newest,
    )
    return flow.compile()
