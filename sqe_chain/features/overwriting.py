"""Overwrites: loads of files that replace what tables hold. Which plan begins one, which goes on, and which decides it.

While an overwrite is under way, the rows of each batch are *staged*: written with headers and plans as always. No commit of
their table has them. When all files are read, one sealed plan decides. Then one commit of each table removes the old files and adds
the staged ones. So after a crash the last plan shows whether rows are staged, to be replaced, or replaced.

All contents are read from their first row on, also those that were loaded before: their rows are replaced, too. Until the
overwrite is decided, plans keep what the flow had read before, for a run that gives it up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqe_chain.errors import ConfigurationError, OverwriteUnderWay, TableInconsistent
from sqe_chain.features.events import TableReplaced
from sqe_chain.features.file_inputs import (
    FileSettings,
    LoadedFiles,
    abandoned_files,
    entering_files,
    finished_topics,
    unneeded_files,
    with_entered,
    with_finished,
)
from sqe_chain.features.overwrite import Mode, Overwrite, OverwriteSettings
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.layout import Marks, marks_in, plain_marks
from sqe_chain.plans.look import HeaderRows, Headers, Infos
from sqe_chain.plans.plan import Plan, PlannedRange, plain_ranges
from sqe_chain.plans.planning import layout_plan
from sqe_chain.ports import Replacement, Rows, Sink, TopicInfo, replacing
from sqe_chain.task.flushing import FLUSHED, STAGED, Staging, staged_key
from sqe_chain.task.states import Claim


@dataclass(frozen=True, slots=True)
class StartAction:
    """What an overwrite does when a run starts, after recovery.

    Attributes:
        plan: the plan to seal; None: none.
        text: the notice to emit; empty: none.
        ends: the run has nothing else to do.
    """

    plan: Plan | None = None
    text: str = ""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Overwriting:
    """Loads that replace what tables hold, in the steps of a run. It keeps nothing: plans know how far an overwrite is."""

    env: Environment

    @property
    def _asked(self) -> OverwriteSettings:
        return self.env.settings.of(OverwriteSettings)

    def check_start(self) -> None:
        """Check that a flow can be loaded so that it replaces what its tables hold.

        Raises:
            ConfigurationError: it does more than to read files into tables, or a table cannot be replaced at once.
        """
        env = self.env
        if self._asked.overwrite is None:
            return
        flow = env.flow
        if env.settings.of(FileSettings).abandon:
            raise ConfigurationError(
                "--abandon leaves the rest of a file unread, and an overwrite reads all of each file: it begins again without a file that is gone"
            )
        if not flow.file_sources or not flow.stages:
            raise ConfigurationError(
                f"flow {flow.name!r}: an overwrite replaces the rows of tables by those of files: it needs files(...) and ingest(...)"
            )
        _check_only_tables(flow)
        for stage in flow.stages:
            sink = env.ports.sink(stage)
            if sink is not None:
                replacing(sink, stage.name).check_replaces()

    def enter(self, claim: Claim, last: Plan, infos: Infos) -> StartAction:
        """What to do when a run starts: begin an overwrite, go on with one, give it up, or nothing.

        Raises:
            OverwriteUnderWay: one is, and this run is not to go on with it.
            ConfigurationError: there is nothing that could replace anything; or a file is half read that the overwrite leaves as it is.
        """
        settings, running = self._asked, _under_way(last)
        if settings.overwrite is not None:
            return self._overwrite(claim, last, infos, settings.overwrite)
        if settings.drop_overwrite:
            if running is None:
                return StartAction(None, "no overwrite is under way, there is nothing to give up", ends=True)
            text = (
                f"the overwrite that plan {running.since} has begun is given up: tables hold what they held"
            )
            return StartAction(self._plan_back(claim, last, running), text, ends=True)
        if running is not None:
            raise OverwriteUnderWay(
                f"flow {self.env.flow.name!r}: an overwrite ({_option(running.mode)}) is under way since plan {running.since}, and readers see "
                "what was there before it. Finish it: sqe-chain load with the same option and the same files; or give it up: sqe-chain "
                "load --drop-overwrite"
            )
        return StartAction()

    def _overwrite(self, claim: Claim, last: Plan, infos: Infos, mode: Mode) -> StartAction:
        """Begin an overwrite or go on with it, unless it is done."""
        running = _under_way(last)
        given = frozenset(info.name for info in infos.values() if info.records > 0)
        if not given:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r}: there are no files with rows: an overwrite would leave an empty table. Nothing was replaced"
            )
        if running is not None:
            again = self._why_not_on(claim, last, running, given)
            if not again:
                return StartAction(text=f"goes on with the overwrite that plan {running.since} has begun")
            return StartAction(self._begun(claim, last, infos, mode), f"the overwrite begins again: {again}")
        if not self._asked.again and _is_done(last, mode, given):
            text = "the last load was an overwrite with these very contents: nothing is replaced again"
            return StartAction(None, text, ends=True)
        return StartAction(self._begun(claim, last, infos, mode), "an overwrite begins")

    def complete(self, claim: Claim, last: Plan) -> Plan | None:
        """The plan that decides the overwrite: all files are read. None: none is under way.

        Raises:
            TableInconsistent: something that was staged is gone.
        """
        running = _under_way(last)
        if running is None:
            return None
        self._check_staged(claim, last)
        contents = with_finished(LoadedFiles.of(last).finished, _begun_topics(last))
        finished = contents
        if running.mode == "partitions":
            before = _before(running)
            read = {
                planned.topic for planned in before.ranges if planned.stop > 0
            }  # all of it: `_check_whole`
            topics = read | finished_topics(contents)
            known = before.files.finished
            finished = with_finished(known, topics - finished_topics(known))
        plan = self._plan_with(
            claim,
            replace(last, ranges=(), marks={}).with_sections(LoadedFiles(finished=finished), Overwrite()),
        )
        decided = Overwrite(running.mode, running.since, "decided", contents=contents)
        return plan.with_sections(decided).with_id()

    def persist(self, claim: Claim, plan: Plan, level: int, headers: Headers) -> HeaderRows:
        """Replace the rows of tables, if the plan has decided that, and forget what was staged."""
        env, replaced = self.env, dict[tuple[int, int], Rows]()
        if not Overwrite.of(plan).changes_tables:
            return replaced
        for stage in env.flow.levels[level - 1]:
            cells = [headers.get((stage.index, cell)) for cell in env.flow.cells[stage.index]]
            open_cells = [header for header in cells if header is not None and header.number < plan.number]
            if stage.name in plan.layout.stages and open_cells:
                # Repeated as one: the table shows whether it is done.
                settle = partial(_settle, env, claim, plan, stage)
                rows = env.retry.call("replace a table", settle)
                replaced |= {(stage.index, cell): own for cell, own in rows.items()}
        return replaced

    # ------------------------------------------------------------------ small parts

    def _why_not_on(self, claim: Claim, last: Plan, running: Overwrite, given: frozenset[str]) -> str:
        """Why an overwrite cannot go on where it was; empty: it can."""
        if running.mode != self._asked.overwrite:
            return f"it was begun with {_option(running.mode)}"
        files = LoadedFiles.of(last)
        missing = (finished_topics(files.finished) | set(_begun_topics(last))) - given
        if missing:
            content = min(missing)
            path = files.entered[content][0] if content in files.entered else content
            return f"{len(missing)} of the contents that it has read are not there any more, such as {path}"
        absent = self._absent(claim, last)
        return f"{len(absent)} staged files are gone from the table, such as {absent[0]}" if absent else ""

    def _absent(self, claim: Claim, last: Plan) -> list[str]:
        env, absent = self.env, list[str]()
        for stage in env.flow.stages:
            sink = env.ports.sink(stage)
            if sink is None or stage.name not in last.layout.stages:
                continue

            absent += env.retry.call(
                "look at staged rows", partial(self._absent_of, claim, sink, stage, last)
            )
        return absent

    def _absent_of(self, claim: Claim, sink: Sink, stage: StageNode, last: Plan) -> list[str]:
        return replacing(sink, stage.name).check_staged(_staged_in(self.env, claim, last, stage))

    def _check_staged(self, claim: Claim, last: Plan) -> None:
        absent = self._absent(claim, last)
        if absent:
            raise TableInconsistent(
                f"flow {self.env.flow.name!r}: {len(absent)} staged files of the overwrite are gone, such as {absent[0]}. Another program has "
                "deleted them (VACUUM with a retention that is shorter than the load?). Nothing was replaced. Start the same command "
                "again: it reads the files from the beginning"
            )

    def _begun(self, claim: Claim, last: Plan, infos: Infos, mode: Mode) -> Plan:
        """The plan that begins an overwrite: nothing is read yet, whatever was before."""
        running = _under_way(last)
        before = running.before if running is not None else _kept(last)
        if mode == "partitions":
            self._check_whole(before, infos)
        clean = replace(last, ranges=(), marks={}).with_sections(LoadedFiles(), Overwrite())
        entering = entering_files(self.env.flow, clean, infos, self.env.settings.of(FileSettings))
        plan = self._plan_with(claim, clean, entering)
        return plan.with_sections(Overwrite(mode, plan.number, "begun", before=before)).with_id()

    def _check_whole(self, before: Mapping[str, Any], infos: Infos) -> None:
        """Check that no other file is half read: its rows so far would be replaced, and the rest added later."""
        for raw in before["ranges"]:
            planned = PlannedRange(**raw)
            path, rows = before["files"][0][planned.topic]
            if 0 < planned.stop < rows and planned.topic not in infos:
                raise ConfigurationError(
                    f"flow {self.env.flow.name!r}: {path} is read up to row {planned.stop:,} of {rows:,}, and is no file of this overwrite. "
                    "Finish that load first (sqe-chain load), or abandon the rest of the file (--abandon)"
                )

    def _plan_back(self, claim: Claim, last: Plan, running: Overwrite) -> Plan:
        """The plan that gives an overwrite up: what is read is what was read before it."""
        before = _before(running)
        plan = self._plan_with(
            claim, replace(last, ranges=before.ranges, marks=before.marks).with_sections(before.files)
        )
        return plan.with_sections(Overwrite(running.mode, running.since, "given_up")).with_id()

    def _plan_with(self, claim: Claim, last: Plan, entering: list[TopicInfo] | None = None) -> Plan:
        """An empty plan after one that is as given, with files that enter."""
        infos = {info.name: info for info in entering or ()}
        starts = {(name, 0): (0, False) for name in infos}
        now_ms = self.env.clock.now_ms()
        plan = layout_plan(last, last.ranges, claim, now_ms, last.layout, infos, starts)
        return with_entered(plan, infos.values())


def _staged_in(env: Environment, mine: Claim, plan: Plan, stage: StageNode) -> Replacement:
    """What the store knows of a plan's overwrite. Its calls are not repeated here."""
    flow, store = plan.layout.stored_in().get(stage.name, env.flow.name), env.ports.store(stage)
    overwrite = Overwrite.of(plan)
    since, whole = overwrite.since, overwrite.mode == "table"
    known: dict[int, bytes | None] = {}
    staged: dict[int, list[bytes]] = {}
    for cell in env.flow.cells[stage.index]:
        known[cell] = store.read(flow, stage.name, cell, [FLUSHED])[1][0]
        rows = sorted(store.scan(flow, stage.name, cell))
        staged[cell] = [told for key, told in rows if key > staged_key(since) and key.startswith(STAGED)]
    return Replacement(
        flow, stage.name, mine.epoch, mine.run_id, plan.number, plan.plan_id, since, whole, known, staged
    )


def _settle(env: Environment, mine: Claim, plan: Plan, stage: StageNode) -> dict[int, Rows]:
    """Step 6 of a plan that begins, decides or gives up an overwrite, for one stage: its table, if it has decided.

    Returns:
        Cell -> what is to be written with its header, in the order of keys: what was staged is forgotten.

    Raises:
        ChainError: as `Sink.replace`.
    """
    sink, store, overwrite = env.ports.sink(stage), env.ports.store(stage), Overwrite.of(plan)
    if sink is None or not overwrite.changes_tables:
        return {}
    told: list[tuple[bytes, bytes | None]] = []
    if overwrite.step == "decided":
        told.append((FLUSHED, replacing(sink, stage.name).replace(_staged_in(env, mine, plan, stage))))
    flow = plan.layout.stored_in().get(stage.name, env.flow.name)
    rows_by_cell: dict[int, Rows] = {}
    for cell in env.flow.cells[stage.index]:
        keys = sorted(key for key, _ in store.scan(flow, stage.name, cell) if key.startswith(STAGED))
        rows_by_cell[cell] = [*told, *((key, None) for key in keys)]
    return rows_by_cell


def _check_only_tables(flow: CompiledFlow) -> None:
    topics = flow.input_topics
    if topics:
        raise ConfigurationError(
            f"flow {flow.name!r}: also reads the topic {topics[0]!r}, whose rows in a table cannot be read again from files: an overwrite would "
            "lose them. Let another flow load the files, into another table"
        )
    for output in flow.outputs:
        raise ConfigurationError(
            f"{output.declared_at}: output {output.name!r}: an overwrite reads rows again that were published, and cannot take them back. "
            "Load the table with a flow that publishes nothing"
        )
    for stage in flow.stages:
        if stage.stage_kind.sink is None:
            raise ConfigurationError(
                f"{stage.declared_at}: stage {stage.name!r} keeps states, which would count rows twice that an overwrite reads again. Load "
                "the table with a flow that has no other stages"
            )


@dataclass(frozen=True, slots=True)
class _Before:
    """How far files were read before an overwrite."""

    ranges: tuple[PlannedRange, ...]
    marks: Marks
    files: LoadedFiles


def _kept(last: Plan) -> dict[str, Any]:
    """How far files are read, as what JSON gives back."""
    progress = {
        "ranges": plain_ranges(last.ranges),
        "marks": plain_marks(last.marks),
        "files": LoadedFiles.of(last).to_json() or [{}, {}],
    }
    kept: dict[str, Any] = json.loads(json.dumps(progress))
    return kept


def _before(running: Overwrite) -> _Before:
    raw = running.before
    return _Before(
        tuple(PlannedRange(**planned) for planned in raw["ranges"]),
        marks_in(raw["marks"]),
        LoadedFiles.from_json(raw["files"]),
    )


def report_replaced(env: Environment, plan: Plan, level: int) -> None:
    """Step 6 of a level is done: report which of its tables were replaced."""
    overwrite = Overwrite.of(plan)
    if overwrite.step != "decided":
        return
    files = len(finished_topics(overwrite.contents))
    for stage in env.flow.levels[level - 1]:
        if stage.stage_kind.sink is not None:
            env.emit(TableReplaced(plan.number, stage.name, overwrite.mode, files))


def unneeded_topics(env: Environment, last: Plan, infos: Infos) -> set[str]:
    """Topics that were read and need not be there any more: all of them are files.

    They were not begun, are read to their ends, or their rest is not read. Or they are gone, and an overwrite begins again without
    them.

    Args:
        env: the flow and its settings.
        last: the last plan.
        infos: the inputs that are there.
    """
    if LoadedFiles.name not in last.sections:
        return set()
    files, asked = LoadedFiles.of(last), env.settings.of(OverwriteSettings)
    unneeded = {*unneeded_files(last), *abandoned_files(last, env.settings.of(FileSettings).abandon)}
    if asked.overwrite is not None or asked.drop_overwrite:
        unneeded |= files.entered.keys() - infos.keys()
    return unneeded


def staging_after(before: Plan) -> Staging | None:
    """What tasks get while an overwrite is under way: rows are staged. None: none is."""
    running = _under_way(before)
    return None if running is None else Staging(running.since)


def _under_way(last: Plan) -> Overwrite | None:
    overwrite = Overwrite.of(last)
    return overwrite if overwrite.under_way else None


def _is_done(last: Plan, mode: Mode, given: frozenset[str]) -> bool:
    """Whether the last that was done was this overwrite, with these contents: nothing was read since."""
    known = Overwrite.of(last)
    if known.mode != mode or known.step not in ("decided", "done"):
        return False
    return finished_topics(known.contents) == given


def _begun_topics(plan: Plan) -> list[str]:
    """Topics of files among the ranges that were begun."""
    return [planned.topic for planned in plan.ranges if planned.stop > 0]


def _option(mode: Mode) -> str:
    return "--overwrite" if mode == "table" else "--overwrite-partitions"
