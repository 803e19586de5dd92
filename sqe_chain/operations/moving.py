"""A flow's states as a file: exported from its stores and imported into others, to move it or to keep a copy.

The file is JSON lines: the flow's last plan, every key with its state, and at the end a digest over all of it. A flow
with an unfinished plan is not exported. Nothing is visible in the new stores before the last step, which sets the home
record.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import ConfigurationError, ServiceStopped, StoreInconsistent, Superseded
from sqe_chain.features.closing import Closes
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.every import features_of
from sqe_chain.features.file_inputs import LoadedFiles
from sqe_chain.features.locations import locations_of, write_locations
from sqe_chain.features.ticking import Timers
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Header, StateStore
from sqe_chain.protocol import inputs
from sqe_chain.protocol.claim import (
    check_claim,
    check_commits,
    check_has_run,
    check_stores,
    claim,
    never_run,
    release,
)
from sqe_chain.protocol.declared import check_layout
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.layout import Layout, by_partition
from sqe_chain.protocol.plan import Plan, PlannedRange
from sqe_chain.task.states import Claim, check_whole, chunk_size
from sqe_chain.task.views import view_of

FORMAT = 2
"""Format of exports: that of the plan in them. The one before can be imported, as it is how a flow goes over to this version."""
Row = tuple[str, int, bytes, bytes]
"""Stage, cell, key, state."""

Change = tuple[bytes, bytes | None]
"""Key and new state; None deletes it."""


def export_states(env: Environment) -> Iterator[str]:
    """The lines of an export. The flow is claimed while they are read, so that nothing of it changes.

    Args:
        env: the flow and its ports.

    Raises:
        ConfigurationError: the flow has never run with this store.
        ServiceStopped: a plan is unfinished; the next run of the service finishes it.
    """
    check_has_run(env, {})
    mine, home = claim(env, features_of(env), dict)
    try:
        data = env.home.plan(env.flow.name, home.number)
        if data is None:
            raise never_run(env.flow.name)
        plan = Plan.from_bytes(data)
        check_layout(env.flow, plan.layout, env.settings.drop_stages)
        digest, count = blake2b(digest_size=16), 0
        for line in _lines(env, plan, data):
            digest.update(line.encode())
            count += 1
            yield line
        yield json.dumps({"lines": count, "digest": digest.hexdigest()})
    finally:
        release(env, mine)


def _lines(env: Environment, plan: Plan, data: bytes) -> Iterator[str]:
    yield json.dumps({"sqe-chain": "export", "format": FORMAT, "flow": env.flow.name, "plan": data.decode()})
    for stage in env.flow.stages:
        stored = plan.layout.stages.get(stage.name)
        if stored is None:
            continue
        # A scan is not repeated: half of its lines may be in the file. Whoever exports begins again.
        store, cells = env.ports.store(stage), env.flow.cells[stage.index]
        headers = env.store(stage).headers(stored.flow, stage.name, cells)
        for cell, header in zip(cells, headers, strict=True):
            if header is not None:
                check_whole(header, f"{stored.flow}/{stage.name}/{cell}")
            at = header and (header.number, header.plan_id, header.begun_id)
            if at != (plan.number, plan.plan_id, ""):
                raise ServiceStopped(
                    f"{stored.flow}/{stage.name}/{cell}: is at {header or 'no plan'}, the last plan is {plan.number}: it is "
                    "unfinished; run the service once, which finishes it"
                )
            for key, state in sorted(store.scan(stored.flow, stage.name, cell)):
                row = {"stage": stage.name, "cell": cell, "key": _text(key), "state": _text(state)}
                yield json.dumps(row)
            if store.headers(stored.flow, stage.name, [cell]) != [header]:
                raise Superseded(
                    f"{stored.flow}/{stage.name}/{cell}: another run has written there during the export"
                )


def import_states(env: Environment, lines: Iterable[str]) -> Plan:
    """Store what an export holds. Until it is complete, the stores know no plan of the flow.

    Args:
        env: the flow and its ports, with the stores to fill.
        lines: of the export.

    Returns:
        The flow's last plan now: the one that was exported, or an empty one after it where that has an older format.

    Raises:
        ConfigurationError: this is no export of this flow, lines are missing or changed, or the store already knows
            the flow.
        StoreInconsistent: Kafka holds commits of later plans: the export is old.
    """
    check_stores(env)
    rest = _verify_lines(lines)
    plan = _plan_of(env, next(rest, ""))
    check_layout(env.flow, plan.layout, env.settings.drop_stages)
    infos = inputs.describe(env.flow, env.log)
    commits = inputs.group_commits(env.flow, env.log, infos)
    check_commits(env.flow, plan, commits)
    mine, home = claim(env, features_of(env), lambda: commits, lost=True)
    try:
        if home.number >= 0:
            raise ConfigurationError(
                f"the store knows flow {env.flow.name!r} already, at plan {home.number}; import into an empty one"
            )
        after = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
        for stage in env.flow.stages:
            for cell in env.flow.cells[stage.index] if stage.name in plan.layout.stages else ():
                _clear_cell(env, mine, plan, stage, cell, after)
        stages = {stage.name: stage for stage in env.flow.stages}
        for (name, cell), rows in groupby(map(_row, rest), key=itemgetter(0, 1)):
            if name not in stages or cell not in env.flow.cells[stages[name].index]:
                raise ConfigurationError(
                    f"the export has states of {name}/{cell}, which the flow does not have"
                )
            _fill_cell(env, plan, stages[name], cell, rows, after)
        wanted = replace(home, number=plan.number, plan_id=plan.plan_id)
        if env.home.set_home(env.flow.name, home, wanted, plan.to_bytes()) != wanted:
            raise Superseded(f"flow {env.flow.name!r}: another run has claimed it during the import")
        write_locations(env, locations_of(env.flow, plan.layout, mine.epoch, plan.number))
    finally:
        release(env, mine)
    return plan


def _clear_cell(
    env: Environment, mine: Claim, plan: Plan, stage: StageNode, cell: int, after: Header
) -> None:
    """Give a cell this header and no states, whatever an interrupted import has left there."""
    store, flow = env.ports.store(stage), plan.layout.stages[stage.name].flow
    before = store.headers(flow, stage.name, [cell])[0]
    check_claim(env, mine)  # else it may be that of a newer import, which has filled the cell
    _write(store, (flow, stage, cell), before, after, [])
    left: list[Change] = [(key, None) for key, _ in store.scan(flow, stage.name, cell)]
    _write(store, (flow, stage, cell), after, after, left)


def _fill_cell(
    env: Environment, plan: Plan, stage: StageNode, cell: int, rows: Iterable[Row], header: Header
) -> None:
    store, address = env.ports.store(stage), (plan.layout.stages[stage.name].flow, stage, cell)
    chunk, size = list[Change](), 0
    for _, _, key, state in rows:
        size += len(key) + len(state)
        if chunk and (len(chunk) >= store.max_rows or size > store.max_bytes):
            _write(store, address, header, header, chunk)
            chunk, size = [], len(key) + len(state)
        chunk.append((key, state))
    _write(store, address, header, header, chunk)


def _write(
    store: StateStore,
    address: tuple[str, StageNode, int],
    before: Header | None,
    after: Header,
    rows: list[Change],
) -> None:
    flow, stage, cell = address
    view = view_of(stage)
    views = view.of(rows) if view else None
    while True:  # bounded by the rows
        size = chunk_size(store, rows, views)
        stored = store.write(flow, stage.name, cell, before, after, rows[:size], views)
        if stored != after:
            raise Superseded(f"{flow}/{stage.name}/{cell}: another run writes there: {stored}")
        rows, before = rows[size:], after
        if not rows:
            return


def _verify_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines but the last one, which holds their number and digest: checked when all others have been given."""
    digest, count, last = blake2b(digest_size=16), 0, ""
    for line in lines:
        if count:
            digest.update(last.encode())
            yield last
        last = line.rstrip("\n")
        count += 1
    try:
        end = json.loads(last)
    except ValueError:
        end = {}
    if end != {"lines": count - 1, "digest": digest.hexdigest()}:
        raise ConfigurationError(
            "the export is not complete, or was changed: its last line does not fit the lines before it; nothing was "
            "made visible, export it again"
        )


def _plan_of(env: Environment, line: str) -> Plan:
    try:
        head: Any = json.loads(line)
        known = head["sqe-chain"] == "export" and head["format"] in (1, FORMAT)
    except (ValueError, KeyError, TypeError):
        known, head = False, {}
    if not known:
        raise ConfigurationError(f"this is no export of format 1 or {FORMAT}, by its first line")
    if head["flow"] != env.flow.name:
        raise ConfigurationError(f"this is an export of flow {head['flow']!r}, not of {env.flow.name!r}")
    if head["format"] == 1:
        return _after_format_1(json.loads(head["plan"]))
    plan = Plan.from_bytes(head["plan"].encode())
    if plan.with_id().plan_id != plan.plan_id:
        raise StoreInconsistent("the export's plan does not have the id that it names: it was changed")
    return plan


def _after_format_1(raw: Mapping[str, Any]) -> Plan:
    """An empty plan after one of format 1, in which each feature had members of its own.

    Raises:
        ConfigurationError: something is still to be done, which only the version that has begun it can do.
    """
    overwrite = raw.get("overwrite") or {}
    pending = [name for name in ("quiet", "unfinished", "reached", "published_until") if raw.get(name)]
    if pending or overwrite.get("step") in ("begun", "staged"):
        raise ConfigurationError(
            f"the export is of plan {raw['number']}, after a rebuild, a rewind or in an overwrite that is not finished "
            f"({', '.join(pending) or 'overwrite'}). Run the version that has written it until it has nothing left to do, then export again"
        )
    ranges = [PlannedRange(**one) for one in raw["ranges"]]
    plan = Plan(
        raw["number"] + 1,
        "",
        raw["plan_id"],
        Claim(raw["epoch"], raw["run_id"]),
        raw["clock_ms"],
        Layout.from_json({"ways": {}, "types": {}, **raw["layout"]}),
        tuple(replace(one, start=one.stop, again=-1) for one in ranges),
        {tp: PartitionMarks.from_json(one) for tp, one in by_partition(raw["marks"]).items()},
    )
    return plan.with_sections(
        EventTime.from_json(raw),
        Timers.from_json([raw.get("ticked_ms", 0), raw.get("timers", {})]),
        Closes.from_json(raw.get("closes") or [(), {}, 0, 0]),
        LoadedFiles.from_json([raw.get("files", {}), raw.get("finished", {})]),
    ).with_id()


def _row(line: str) -> Row:
    row = json.loads(line)
    return row["stage"], row["cell"], b64decode(row["key"]), b64decode(row["state"])


def _text(data: bytes) -> str:
    return b64encode(data).decode()
