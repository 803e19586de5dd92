"""Exports the states of a flow to a file, and imports them into other stores: to move the flow, or to keep a copy.

The file is JSON lines: the flow's last plan, every key with its state, and at the end a digest over all lines. An export
refuses a flow with an unfinished plan. The last step of an import sets the home record, and makes all states visible.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqe_chain.errors import ConfigurationError, ServiceStopped, Superseded
from sqe_chain.features.closing import Closes
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.file_inputs import LoadedFiles
from sqe_chain.features.locations import locations_of, write_locations
from sqe_chain.features.ticking import Timers
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.operations.cells import Cell, Row, delete_rows, write_rows
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Layout, check_layout, marks_in
from sqe_chain.plans.plan import Plan, PlannedRange
from sqe_chain.plans.stored_plans import never_run
from sqe_chain.ports import Header
from sqe_chain.protocol.claim import (
    check_claim,
    check_commits,
    check_has_run,
    check_stores,
    claim,
    release,
)
from sqe_chain.task.states import Claim, no_views, view_of

FORMAT = 2
"""Format of exports, and of the plan in them. An import also takes format 1, from version 0.1."""
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)
"""What parsing a line raises in which characters were changed."""
ExportedRow = tuple[str, int, bytes, bytes]
"""Stage, cell, key, state."""


Claimed = Callable[[Claim], object]
"""Called with the claim, whose heartbeat has to go on as long as the work."""


def export_states(env: Environment, claimed: Claimed = lambda _mine: None) -> Generator[str]:
    """The lines of an export. This run holds the claim while it reads them, so that nothing of the flow changes.

    Raises:
        ConfigurationError: the flow has never run with this store.
        ServiceStopped: a plan is unfinished; the next run of the service finishes it.
    """
    check_has_run(env, {})
    mine, home = claim(env, dict)
    claimed(mine)
    try:
        data = env.home.plan(env.flow.name, home.number)
        if data is None:
            raise never_run(env.flow.name)
        plan = Plan.from_bytes(data)
        check_layout(env.flow, plan.layout, env.settings.once.drop_stages)
        _check_finished(env, plan)
        digest, count = blake2b(digest_size=16), 0
        for line in _lines(env, plan):
            digest.update(line.encode())
            count += 1
            yield line
        yield json.dumps({"lines": count, "digest": digest.hexdigest()})
    finally:
        release(env, mine)


def _check_finished(env: Environment, plan: Plan) -> None:
    """Check that the last plan of a flow without stages is finished. No header shows it, and an import lacks what a redo needs."""
    if env.flow.stages or plan.empty or plan.number == 0:
        return
    infos = inputs.describe(env.flow, env.log)
    if not env.flow.transactional or not inputs.is_committed(env.flow, env.log, infos, plan.plan_id):
        raise ServiceStopped(
            f"flow {env.flow.name!r}: plan {plan.number}, the last one, is not known to be finished. Expected a flow that has caught up. Run "
            "the service with --once, then export again"
        )


def _lines(env: Environment, plan: Plan) -> Iterator[str]:
    yield json.dumps(
        {"sqe-chain": "export", "format": FORMAT, "flow": env.flow.name, "plan": plan.to_bytes().decode()}
    )
    for stage in env.flow.stages:
        stored = plan.layout.stages.get(stage.name)
        if stored is None:
            continue
        # A scan is not repeated: half of its lines may be in the file. The user exports again.
        store, cells = env.ports.store(stage), env.flow.cells[stage.index]
        headers = env.store(stage).headers(stored.flow, stage.name, cells)
        for cell, header in zip(cells, headers, strict=True):
            if header is not None:
                header.check_whole(f"{stored.flow}/{stage.name}/{cell}")
            at = header and (header.number, header.plan_id, header.begun_id)
            if at != (plan.number, plan.plan_id, ""):
                raise ServiceStopped(
                    f"{stored.flow}/{stage.name}/{cell}: is at {header or 'no plan'}. Expected plan {plan.number}, the last one, "
                    "which is unfinished. Run the service once, which finishes it"
                )
            for key, state in sorted(store.scan(stored.flow, stage.name, cell)):
                row = {"stage": stage.name, "cell": cell, "key": _text(key), "state": _text(state)}
                yield json.dumps(row)
            if store.headers(stored.flow, stage.name, [cell]) != [header]:
                raise Superseded(
                    f"{stored.flow}/{stage.name}/{cell}: another run has written there during the export. Export again"
                )


def import_states(env: Environment, lines: Iterable[str], claimed: Claimed = lambda _mine: None) -> Plan:
    """Store what an export holds. Until the import is complete, the stores know no plan of the flow.

    Returns:
        The flow's last plan now: the exported one, or an empty one after it if that has an older format.

    Raises:
        ConfigurationError: this is no export of this flow, lines are missing or changed, or the store already knows
            the flow.
        StoreInconsistent: Kafka holds commits of later plans: the export is old.
    """
    check_stores(env)
    plan, exported = read_export(env.flow, lines)
    check_layout(env.flow, plan.layout, env.settings.once.drop_stages)
    infos = inputs.describe(env.flow, env.log)
    commits = inputs.group_commits(env.flow, env.log, infos)
    check_commits(env.flow, plan, commits)
    mine, home = claim(env, lambda: commits, lost=True)
    claimed(mine)
    try:
        if home.number >= 0:
            raise ConfigurationError(
                f"flow {env.flow.name!r}: the store has it already, at plan {home.number}. Expected an empty store. Import into another "
                "one, or run sqe-chain flows forget first"
            )
        fill_states(env, mine, plan, exported)
        wanted = replace(home, number=plan.number, plan_id=plan.plan_id)
        if env.home.set_home(env.flow.name, home, wanted, plan.stored()) != wanted:
            raise Superseded(
                f"flow {env.flow.name!r}: another run has claimed it during the import. Stop it, then import again"
            )
        write_locations(env, locations_of(env.flow, plan.layout, mine.epoch, plan.number))
    finally:
        release(env, mine)
    return plan


def read_export(flow: CompiledFlow, lines: Iterable[str]) -> tuple[Plan, Iterator[ExportedRow]]:
    """The plan of an export of this flow, and its rows. What is wrong with a row is found as it is read.

    Raises:
        ConfigurationError: this is no export of this flow, or lines are missing or changed.
        StoreInconsistent: its plan was changed.
    """
    rest = _verify_lines(lines)
    return _plan_of(flow, next(rest, "")), _rows_of(flow, rest)


def fill_states(env: Environment, mine: Claim, plan: Plan, exported: Iterable[ExportedRow]) -> None:
    """Put all states of a plan, and nothing else, where its layout has them.

    Args:
        env: the flow, which is claimed.
        mine: the claim.
        plan: the headers are at it then. Nobody may see it before this is done.
        exported: the states.

    Raises:
        ConfigurationError: see `read_export`.
        Superseded: another run works there.
    """
    after = Header(mine.epoch, mine.run_id, plan.number, plan.plan_id)
    # All headers before the first row: who deletes this meanwhile leaves no cell to which a row could still come.
    for stage in env.flow.stages:
        for cell in env.flow.cells[stage.index] if stage.name in plan.layout.stages else ():
            _clear_cell(env, mine, plan, stage, cell, after)
    stages = {stage.name: stage for stage in env.flow.stages}
    for (name, cell), rows in groupby(exported, key=itemgetter(0, 1)):
        _fill_cell(env, plan, stages[name], cell, rows, after)


def _rows_of(flow: CompiledFlow, lines: Iterable[str]) -> Iterator[ExportedRow]:
    cells = {stage.name: flow.cells[stage.index] for stage in flow.stages}
    for line in lines:
        row = _row(line)
        if row[1] not in cells.get(row[0], ()):
            raise ConfigurationError(
                f"the export has states of {row[0]}/{row[1]}. Expected only stages and state partitions of flow "
                f"{flow.name!r}. Give the code that exported them"
            )
        yield row


def _clear_cell(
    env: Environment, mine: Claim, plan: Plan, stage: StageNode, number: int, after: Header
) -> None:
    """Give a cell this header and no states, whatever an interrupted import has left there."""
    store, cell = env.ports.store(stage), (plan.layout.stages[stage.name].flow, stage.name, number)
    before = store.headers(cell[0], stage.name, [number])[0]
    check_claim(env, mine)  # else it may be that of a newer import, which has filled the cell
    _check_written(cell, after, write_rows(store, cell, before, after, ()))
    _check_written(cell, after, delete_rows(store, cell, after, no_views(stage)))


def _fill_cell(
    env: Environment, plan: Plan, stage: StageNode, number: int, rows: Iterable[ExportedRow], header: Header
) -> None:
    store, cell = env.ports.store(stage), (plan.layout.stages[stage.name].flow, stage.name, number)
    view, chunk, size = view_of(stage), list[Row](), 0

    def write() -> None:
        views = view.of(chunk) if view else None
        _check_written(cell, header, write_rows(store, cell, header, header, chunk, views))

    for _, _, key, state in rows:
        size += len(key) + len(state)
        if chunk and (len(chunk) >= store.max_rows or size > store.max_bytes):
            write()
            chunk, size = [], len(key) + len(state)
        chunk.append((key, state))
    write()


def _check_written(cell: Cell, expected: Header, stored: Header | None) -> None:
    if stored != expected:
        raise Superseded(
            f"{'/'.join(map(str, cell))}: another run writes there: {stored}. Stop it, then repeat this"
        )


def _verify_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines but the last one. It holds their number and digest, which are checked after them."""
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
        raise _was_changed()


def _was_changed() -> ConfigurationError:
    return ConfigurationError(
        "the export is not complete, or was changed. Expected number and digest of its lines in the last one. Nothing is "
        "visible in the store. Export it again"
    )


def _plan_of(flow: CompiledFlow, line: str) -> Plan:
    try:
        head: Any = json.loads(line)
        known = head["sqe-chain"] == "export" and head["format"] in (1, FORMAT)
    except _DAMAGED:
        known, head = False, {}
    if not known:
        raise ConfigurationError(
            f"this is no export, by its first line. Expected one of format 1 or {FORMAT}. Give a file of `sqe-chain export`"
        )
    if head.get("flow") != flow.name:
        raise ConfigurationError(
            f"this is an export of flow {head.get('flow')!r}. Expected one of {flow.name!r}. Give another file"
        )
    try:
        if head["format"] == 1:
            return _after_format_1(json.loads(head["plan"]))
        return Plan.from_bytes(head["plan"].encode())
    except _DAMAGED:
        raise _was_changed() from None


def _after_format_1(raw: Mapping[str, Any]) -> Plan:
    """An empty plan after one of format 1, in which each feature had members of its own; work must not be unfinished."""
    overwrite = raw.get("overwrite") or {}
    pending = [name for name in ("quiet", "unfinished", "reached", "published_until") if raw.get(name)]
    if pending or overwrite.get("step") in ("begun", "staged"):
        raise ConfigurationError(
            f"the export is of plan {raw['number']}, with unfinished work of a rebuild, a rewind or an overwrite: "
            f"{', '.join(pending) or 'overwrite'}. Expected none. Run the version that has written it until it has caught up, then export again"
        )
    ranges = [PlannedRange(**planned) for planned in raw["ranges"]]
    plan = Plan(
        raw["number"] + 1,
        "",
        raw["plan_id"],
        Claim(raw["epoch"], raw["run_id"]),
        raw["clock_ms"],
        Layout.from_json({"ways": {}, "types": {}, **raw["layout"]}),
        tuple(planned.ended() for planned in ranges),
        marks_in(raw["marks"]),
    )
    return plan.with_sections(
        EventTime.from_json(raw),
        Timers.from_json([raw.get("ticked_ms", 0), raw.get("timers", {})]),
        Closes.from_json(raw.get("closes") or [(), {}, 0, 0]),
        LoadedFiles.from_json([raw.get("files", {}), raw.get("finished", {})]),
    ).with_id()


def _row(line: str) -> ExportedRow:
    try:
        row = json.loads(line)
        return str(row["stage"]), int(row["cell"]), b64decode(row["key"]), b64decode(row["state"])
    except _DAMAGED:
        raise _was_changed() from None


def _text(data: bytes) -> str:
    return b64encode(data).decode()
