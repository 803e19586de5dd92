"""Kinds of the filters of streams: each connects a declaration of `sqe_chain.flow.filtering` with its stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import check_choice, check_duration, check_int, check_windows
from sqe_chain.flow.filtering import MAX_WINDOW, guard_setting
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_callable
from sqe_chain.flow.stage_kind import STANDARD, StageTraits
from sqe_chain.flow.table import Table
from sqe_chain.stages.deduplicate import Deduplicate
from sqe_chain.stages.distinct import Distinct
from sqe_chain.stages.identity import by_key, by_key_and
from sqe_chain.stages.record_work import FILTER, RecordFunctions, RecordKind, id_of
from sqe_chain.stages.replays import SqeReplays
from sqe_chain.stages.root_replays import RootReplays
from sqe_chain.stages.sequences import StaleSequences
from sqe_chain.stages.windowing import WINDOW_GUARD


@dataclass(frozen=True)
class ReplaysKind(RecordKind[SqeReplays]):
    """The kind of ``drop_replays(by="source")``; see there, and `SqeReplays`."""

    name = "replays"
    traits = replace(FILTER, method="drop_replays", order="times", spread="partition")

    expiry_ms: int
    compat: Any = None

    def check(self, where: str, *, dead_letters: bool) -> None:
        """See `StageKind`."""
        check_choice("compat", self.compat, ("sqe", None), where)
        check_duration("expiry_ms", self.expiry_ms, where)
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> SqeReplays:
        """See `RecordKind`."""
        del functions, clock_ms
        return SqeReplays(table, expiry_ms=self.expiry_ms, compat=self.compat)


@dataclass(frozen=True)
class RootsKind(RecordKind[RootReplays]):
    """The kind of ``drop_replays(by="key")``; see there, and `RootReplays`."""

    name = "roots"
    traits = replace(FILTER, method="drop_replays", order="times", needs_root=True)

    compat: Any = None

    def check(self, where: str, *, dead_letters: bool) -> None:
        """See `StageKind`."""
        check_choice("compat", self.compat, ("kuka", None), where)
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> RootReplays:
        """See `RecordKind`."""
        del functions, clock_ms
        return RootReplays(table, compat=self.compat)


@dataclass(frozen=True)
class SequencesKind(RecordKind[StaleSequences]):
    """The kind of `drop_stale`; see there, and `StaleSequences`."""

    name = "sequences"

    sequence: DeclaredFunction
    scope: Any = "partition"
    epoch: DeclaredFunction | None = None
    producer: DeclaredFunction | None = None
    malformed: Any = "stop"
    window: int = 0
    compat: Any = None

    @property
    def traits(self) -> StageTraits:
        """See `StageKind`."""
        return replace(FILTER, method="drop_stale", order="times", spread=self.scope)

    @property
    def functions(self) -> tuple[DeclaredFunction, ...]:
        """See `StageKind`."""
        return tuple(one for one in (self.sequence, self.epoch, self.producer) if one is not None)

    def check(self, where: str, *, dead_letters: bool) -> None:
        """See `StageKind`."""
        check_callable("sequence", self.sequence.function, where)
        check_choice("scope", self.scope, ("partition", "lane", "key"), where)
        check_choice("malformed", self.malformed, ("stop", "drop", "pass", "dead_letter"), where)
        check_int("window", self.window, 0, MAX_WINDOW, where)
        check_choice("compat", self.compat, ("juplo", None), where)
        extended = self.scope != "partition" or self.epoch or self.producer or self.malformed != "stop"
        if self.compat and (extended or self.window > 1):
            raise FlowError(
                f"{where}: compat='juplo' takes no scope, epoch, producer, window or policy for malformed records; leave them out"
            )
        if self.malformed == "dead_letter" and not dead_letters:
            raise FlowError(f"{where}: malformed='dead_letter' needs a flow with poison='dead_letter'")
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> StaleSequences:
        """See `RecordKind`. Exceptions of the extractors are caught, for `malformed` decides what becomes of them."""
        del clock_ms
        sequence = functions.of(self.sequence, catch=True)
        if sequence is None:
            raise AssertionError("checked when declared")
        return StaleSequences(
            table,
            sequence=sequence,
            epoch=functions.of(self.epoch, catch=True),
            producer=functions.of(self.producer, catch=True),
            scope=self.scope,
            malformed=self.malformed,
            window=self.window,
            compat=self.compat,
        )


@dataclass(frozen=True)
class DeduplicateKind(RecordKind[Deduplicate]):
    """The kind of `deduplicate`, `deduplicate_by_key` and `deduplicate_by_key_value`; see there, and `Deduplicate`."""

    name = "deduplicate"

    by_id: bool
    id: DeclaredFunction | None
    interval_ms: int
    late: Any = "forward"
    guard: Any = STANDARD
    compat: Any = None

    @property
    def traits(self) -> StageTraits:
        """See `StageKind`."""
        by_value = "deduplicate_by_key_value" if self.id else "deduplicate_by_key"
        return replace(
            FILTER,
            method="deduplicate" if self.by_id else by_value,
            order="times",
            spread="id" if self.by_id else "key",
            identity=self.id if self.by_id else None,
            guard=self.guard,
        )

    @property
    def functions(self) -> tuple[DeclaredFunction, ...]:
        """See `StageKind`."""
        return () if self.id is None else (self.id,)

    def check(self, where: str, *, dead_letters: bool) -> None:
        """See `StageKind`."""
        check_duration("interval_ms", self.interval_ms, where)
        check_choice("late", self.late, ("forward", "drop", "stop"), where)
        check_choice("compat", self.compat, ("kip655", None), where)
        guard_setting(self.guard, where)
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> Deduplicate:
        """See `RecordKind`."""
        found = functions.of(self.id)
        identity = id_of if self.by_id else by_key if found is None else by_key_and(found)
        return Deduplicate(
            table,
            interval_ms=self.interval_ms,
            identity=identity,
            late="drop" if self.late == "stop" else self.late,
            clock_ms=clock_ms,
            compat=self.compat,
            **guard_setting(self.guard, ""),
        )


@dataclass(frozen=True)
class DistinctKind(RecordKind[Distinct]):
    """The kind of `distinct`; see there, and `Distinct`."""

    name = "distinct"

    windows: Any
    grace_ms: int = 0
    late: Any = "drop"
    guard: Any = STANDARD

    @property
    def traits(self) -> StageTraits:
        """See `StageKind`."""
        guard = WINDOW_GUARD if self.guard == STANDARD else self.guard
        return replace(FILTER, order="times", guard=guard)

    def check(self, where: str, *, dead_letters: bool) -> None:
        """See `StageKind`."""
        check_windows(self.windows, where, overlap=False)
        check_duration("grace_ms", self.grace_ms, where)
        check_choice("late", self.late, ("drop", "forward", "stop"), where)
        guard_setting(self.guard, where)
        super().check(where, dead_letters=dead_letters)

    def stage(self, table: Table, functions: RecordFunctions, clock_ms: int | None) -> Distinct:
        """See `RecordKind`."""
        del functions
        return Distinct(
            table,
            windows=self.windows,
            grace_ms=self.grace_ms,
            late="drop" if self.late == "stop" else self.late,
            clock_ms=clock_ms,
            **guard_setting(self.guard, ""),
        )
