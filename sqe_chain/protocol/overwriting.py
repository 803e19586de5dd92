"""Overwrites: loads of files that replace what tables hold. Which plan begins one, which goes on, and which decides it.

While an overwrite is under way, the rows of each batch are *staged*: written, with headers and plans as always, and named by no
commit of their table. When all files are read to their ends, one sealed plan decides; then one commit of each table removes the old
files and adds the staged ones. So whoever comes after a crash finds in the last plan whether rows are to be staged, or to be
replaced, or are.

All contents are read from their first row on, also those that were loaded before, for the rows that they gave are replaced, too.
What a flow has read before is kept in the plans until it is decided, for whoever gives the overwrite up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.errors import ConfigurationError, OverwriteUnderWay, TableInconsistent
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import Sink, TopicInfo, replacing
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.file_inputs import entering_files, finished_topics, with_finished
from sqe_chain.protocol.overwrite import Mode, Overwrite
from sqe_chain.protocol.plan import Plan, PlannedRange
from sqe_chain.protocol.planning import layout_plan
from sqe_chain.protocol.sinks import staged_in
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]


def check_overwrites(env: Environment) -> None:
    """Check that a flow can be loaded so that it replaces what its tables hold.

    Raises:
        ConfigurationError: it does more than to read files into tables, or a table cannot be replaced at once.
    """
    flow = env.flow
    if env.settings.abandon:
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
class Entered:
    """What a start has to do about overwrites.

    Attributes:
        plan: to be sealed; None: none.
        text: to be told; empty: nothing.
    """

    plan: Plan | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Overwriting:
    """What a run does about overwrites.

    Args:
        env: the flow and its ports.
        claim: the run.
    """

    env: Environment
    claim: Claim

    def enter(self, last: Plan, infos: Infos) -> Entered:
        """What to do when a run starts: begin an overwrite, go on with one, give it up, or nothing.

        Args:
            last: the last plan, which is finished.
            infos: the flow's topics.

        Raises:
            OverwriteUnderWay: one is, and this run is not to go on with it.
            ConfigurationError: there is nothing that could replace anything; or a file is half read that the overwrite leaves as it is.
        """
        settings, running = self.env.settings, _under_way(last)
        if settings.overwrite is not None:
            return self._overwrite(last, infos, settings.overwrite)
        if settings.drop_overwrite:
            if running is None:
                return Entered(text="no overwrite is under way, there is nothing to give up")
            text = (
                f"the overwrite that plan {running.since} has begun is given up: tables hold what they held"
            )
            return Entered(self._plan_back(last, running), text)
        if running is not None:
            raise OverwriteUnderWay(
                f"flow {self.env.flow.name!r}: an overwrite ({_option(running.mode)}) is under way since plan {running.since}, and readers see "
                "what was there before it. Finish it: sqe-chain load with the same option and the same files; or give it up: sqe-chain "
                "load --drop-overwrite"
            )
        return Entered()

    def _overwrite(self, last: Plan, infos: Infos, mode: Mode) -> Entered:
        """Begin an overwrite or go on with it, unless it is done."""
        running = _under_way(last)
        given = frozenset(info.name for info in infos.values() if info.records > 0)
        if not given:
            raise ConfigurationError(
                f"flow {self.env.flow.name!r}: there are no files with rows: an overwrite would leave an empty table. Nothing was replaced"
            )
        if running is not None:
            again = self._why_not_on(last, running, given)
            if not again:
                return Entered(text=f"goes on with the overwrite that plan {running.since} has begun")
            return Entered(self._begun(last, infos, mode), f"the overwrite begins again: {again}")
        if not self.env.settings.again and _is_done(last, mode, given):
            return Entered(
                text="the last load was an overwrite with these very contents: nothing is replaced again"
            )
        return Entered(self._begun(last, infos, mode), "an overwrite begins")

    def decided(self, last: Plan) -> Plan | None:
        """The plan that decides the overwrite: all files are read. None: none is under way.

        Raises:
            TableInconsistent: something that was staged is gone.
        """
        running = _under_way(last)
        if running is None:
            return None
        self._check_staged(last)
        contents = with_finished(last.finished, _begun_topics(last))
        finished = contents
        if running.mode == "partitions":
            before = _before(running)
            read = {one.topic for one in before.ranges if one.stop > 0}  # all of it: `_check_whole`
            topics = read | finished_topics(contents)
            finished = with_finished(before.finished, topics - finished_topics(before.finished))
        plan = self._plan_with(replace(last, ranges=(), marks={}, files={}, finished=finished))
        return replace(
            plan, overwrite=Overwrite(running.mode, running.since, "decided", contents=contents)
        ).with_id()

    # ------------------------------------------------------------------ small parts

    def _why_not_on(self, last: Plan, running: Overwrite, given: frozenset[str]) -> str:
        """Why an overwrite cannot go on where it was; empty: it can."""
        if running.mode != self.env.settings.overwrite:
            return f"it was begun with {_option(running.mode)}"
        missing = (finished_topics(last.finished) | set(_begun_topics(last))) - given
        if missing:
            one = min(missing)
            path = last.files[one][0] if one in last.files else one
            return f"{len(missing)} of the contents that it has read are not there any more, such as {path}"
        absent = self._absent(last)
        return f"{len(absent)} staged files are gone from the table, such as {absent[0]}" if absent else ""

    def _absent(self, last: Plan) -> list[str]:
        env, found = self.env, list[str]()
        for stage in env.flow.stages:
            sink = env.ports.sink(stage)
            if sink is None or stage.name not in last.layout.stages:
                continue

            found += env.retry.call("look at staged rows", partial(self._absent_of, sink, stage, last))
        return found

    def _absent_of(self, sink: Sink, stage: StageNode, last: Plan) -> list[str]:
        return replacing(sink, stage.name).check_staged(staged_in(self.env, self.claim, last, stage))

    def _check_staged(self, last: Plan) -> None:
        absent = self._absent(last)
        if absent:
            raise TableInconsistent(
                f"flow {self.env.flow.name!r}: {len(absent)} staged files of the overwrite are gone, such as {absent[0]}: another program has "
                "deleted them (VACUUM with a retention that is shorter than the load has taken?). Nothing was replaced; start the same command "
                "again: it reads the files from the beginning"
            )

    def _begun(self, last: Plan, infos: Infos, mode: Mode) -> Plan:
        """The plan that begins an overwrite: nothing is read yet, whatever was before."""
        running = _under_way(last)
        before = running.before if running is not None else _kept(last)
        if mode == "partitions":
            self._check_whole(before, infos)
        clean = replace(last, ranges=(), marks={}, files={}, finished={}, overwrite=None)
        entering = entering_files(self.env.flow, clean, infos, self.env.settings)
        plan = self._plan_with(clean, entering)
        return replace(plan, overwrite=Overwrite(mode, plan.number, "begun", before=before)).with_id()

    def _check_whole(self, before: Mapping[str, Any], infos: Infos) -> None:
        """Check that no other file is half read: its rows so far would be replaced, and the rest added later."""
        for raw in before["ranges"]:
            one = PlannedRange(**raw)
            path, rows = before["files"][one.topic]
            if 0 < one.stop < rows and one.topic not in infos:
                raise ConfigurationError(
                    f"flow {self.env.flow.name!r}: {path} is read up to row {one.stop:,} of {rows:,}, and not among the files of this overwrite: "
                    "finish that load first (sqe-chain load), or leave its rest unread (--abandon)"
                )

    def _plan_back(self, last: Plan, running: Overwrite) -> Plan:
        """The plan that gives an overwrite up: what is read is what was read before it."""
        before = _before(running)
        plan = self._plan_with(
            replace(
                last,
                ranges=before.ranges,
                marks=before.marks,
                files=before.files,
                finished=before.finished,
            )
        )
        return replace(plan, overwrite=Overwrite(running.mode, running.since, "given_up")).with_id()

    def _plan_with(self, last: Plan, entering: list[TopicInfo] | None = None) -> Plan:
        """An empty plan after one that is as given, with files that enter."""
        infos = {info.name: info for info in entering or ()}
        starts = {(name, 0): (0, False) for name in infos}
        now_ms = self.env.clock.now_ms()
        return layout_plan(last, last.ranges, self.claim, now_ms, last.layout, infos, starts)


@dataclass(frozen=True, slots=True)
class _Before:
    """How far files were read before an overwrite, as the fields of `Plan`."""

    ranges: tuple[PlannedRange, ...]
    marks: dict[str, PartitionMarks]
    files: dict[str, tuple[str, int]]
    finished: dict[str, str]


def _kept(last: Plan) -> dict[str, Any]:
    """How far files are read, as what JSON gives back."""
    found = {
        "ranges": [asdict(one) for one in last.ranges],
        "marks": {name: marks.to_json() for name, marks in last.marks.items()},
        "files": {topic: list(known) for topic, known in last.files.items()},
        "finished": dict(last.finished),
    }
    kept: dict[str, Any] = json.loads(json.dumps(found))
    return kept


def _before(running: Overwrite) -> _Before:
    raw = running.before
    return _Before(
        tuple(PlannedRange(**one) for one in raw["ranges"]),
        {name: PartitionMarks.from_json(marks) for name, marks in raw["marks"].items()},
        {topic: (path, rows) for topic, (path, rows) in raw["files"].items()},
        dict(raw["finished"]),
    )


def _under_way(last: Plan) -> Overwrite | None:
    found = last.overwrite
    return found if found is not None and found.under_way else None


def _is_done(last: Plan, mode: Mode, given: frozenset[str]) -> bool:
    """Whether the last that was done was this overwrite, with these contents: nothing was read since."""
    known = last.overwrite
    if known is None or known.mode != mode or known.step not in ("decided", "done"):
        return False
    return finished_topics(known.contents) == given


def _begun_topics(plan: Plan) -> list[str]:
    """Topics of files among the ranges of which something was read."""
    return [one.topic for one in plan.ranges if one.stop > 0]


def _option(mode: Mode) -> str:
    return "--overwrite" if mode == "table" else "--overwrite-partitions"
