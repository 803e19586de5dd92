"""What the checks look at, gathered once. Nothing is changed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from sqe_chain.errors import AnotherCluster, ChainError, StoreInconsistent
from sqe_chain.ext.doctor.machine import Clocked, Machine, clock_differences
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.waiting import holder_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.undecided import find_undecided, undecided_line
from sqe_chain.plans.finding_revisions import find_revisions
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.rights import READ, ReportsRights, rights_on_topics
from sqe_chain.plans.stored_plans import read_plan
from sqe_chain.ports import Bounds, Commit, Header, Home, Log, StateStore, TopicInfo, TopicPartition
from sqe_chain.protocol.redo import to_redo
from sqe_chain.runtime.trying import try_store


@runtime_checkable
class KeepsCommits(Protocol):
    """A log that reports when it forgets commits."""

    def commits_kept_ms(self) -> int:
        """For how long it keeps what a group without members has committed, in milliseconds; -1: without limit, or unknown.

        Raises:
            Unavailable: no answer.
        """


@runtime_checkable
class ListsMembers(Protocol):
    """A log that reports who is in a group."""

    def members(self, group: str) -> list[str]:
        """Client and host of each program that has joined a group.

        Raises:
            Unavailable: no answer.
        """


_LONGEST_BEAT_MS = 3_000
"""A heartbeat that has not moved for this time has stopped."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of a flow and of what it runs on.

    Attributes:
        now_ms: time of this machine, milliseconds since 1970.
        bounds: partition of an input -> where its log begins and ends.
        home: the home record; None: the flow has never run with this store.
        alive: whether the run that holds the claim is alive: its heartbeat moves.
        plan: the last plan; None: there is none, or it is lost.
        redone: plans that a start finishes, and whose inputs it reads again; none while a run is alive.
        inconsistent: why a start cannot finish them; "": it can.
        headers: (stage, cell) -> header.
        located: the stages that readers can find.
        weak: store -> what makes it lose acknowledged writes.
        remarks: store -> what is worth knowing.
        errors: what could not be read -> why.
        elsewhere: why these brokers are not where the flow went on after a failover; empty: they are, or there was none.
        waiting: records that wait for event time.
        holder: the partition that holds them back; empty: nothing waits.
        commits_kept_ms: how long the broker keeps what a group has committed; -1: without limit, or unknown.
        published: whether there are records in the flow's outputs.
        ahead_ms: server of a store -> milliseconds by which its clock is ahead of this machine's; negative: behind.
        refused: store -> why it takes no writes from this login now.
        untried: store -> what of its writes could not be tried.
        rights: topic or group -> what this login may not do there, and needs to.
        unknown_rights: topics and groups whose rights the broker does not report.
        members: programs that have joined the flow's group.
        undecided: what the flow could not process, and may count later, as a sentence; empty: nothing, or it cannot be read.
        newer: output upstream -> its newest revision, and the older one that counts for the flow.
        unknown_revisions: why the revisions of the inputs cannot be read; empty: they can.
    """

    flow: CompiledFlow
    now_ms: int
    machine: Machine
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    bounds: Mapping[TopicPartition, Bounds] = field(default_factory=dict)
    commits: Mapping[TopicPartition, Commit] = field(default_factory=dict)
    home: Home | None = None
    alive: bool = False
    plan: Plan | None = None
    redone: tuple[Plan, ...] = ()
    inconsistent: str = ""
    headers: Mapping[tuple[str, int], Header | None] = field(default_factory=dict)
    located: frozenset[str] = frozenset()
    weak: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    elsewhere: str = ""
    waiting: int = 0
    holder: str = ""
    commits_kept_ms: int = -1
    published: bool = False
    ahead_ms: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    untried: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rights: Mapping[str, str] = field(default_factory=dict)
    unknown_rights: Sequence[str] = ()
    members: Sequence[str] = ()
    undecided: str = ""
    newer: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unknown_revisions: str = ""


@dataclass(slots=True)
class Gathering:
    """Gathers the facts; what cannot be read becomes a fact too.

    Args:
        log: the brokers; None: none were given.
        stores: store name -> store; "" is the metadata store.
        clock: this machine's clock, milliseconds since 1970.
        wait: waits for some milliseconds, to see whether a heartbeat moves.
        directories: where stores have their files.
        inputs: what a start reads: the brokers, and files beside them; None: as `log`.
    """

    flow: CompiledFlow
    log: Log | None
    stores: Mapping[str, StateStore]
    clock: Callable[[], int]
    wait: Callable[[int], object]
    directories: Sequence[Path] = ()
    inputs: Log | None = None
    errors: dict[str, str] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)

    def gather(self) -> Facts:
        """All facts."""
        read: dict[str, Any] = {}
        # A run may be alive. Read in this order, its commits and headers lie within its plan, and its plan within the logs.
        for what, look in (
            ("brokers", self._of_topics),
            ("store", self._of_states),
            ("brokers", self._of_logs),
        ):
            try:
                read |= look()
            except AnotherCluster as error:
                read["elsewhere"] = str(error)
            except ChainError as error:
                self.errors[what] = str(error)
        now_ms = self.clock()
        read |= self._of_servers() | {"undecided": self._undecided()} | self._of_revisions(read.get("plan"))
        return Facts(self.flow, now_ms, Machine.here(self.directories), errors=self.errors, **read)

    def _of_topics(self) -> dict[str, Any]:
        if self.log is None:
            return {}
        flow = self.flow
        self.topics = self.log.describe({*flow.input_topics, *flow.written_topics})
        commits = self.log.committed(flow.declared_name, self._inputs())
        return self._of_login() | {
            "topics": self.topics,
            "commits": commits,
            "commits_kept_ms": self.log.commits_kept_ms() if isinstance(self.log, KeepsCommits) else -1,
        }

    def _undecided(self) -> str:
        """What does not count; no service needs to know it, so what cannot be read is no fault."""
        home = self.stores.get("") if self.flow.keeps_plans else None
        if self.log is None or (self.flow.keeps_plans and home is None):
            return ""
        try:
            return undecided_line(find_undecided(self.flow, self.log, home))
        except ChainError:
            return ""

    def _of_revisions(self, plan: Plan | None) -> dict[str, Any]:
        """What a rebuild would take up, or a first start."""
        flow = self.flow
        if (
            self.log is None
            or not flow.stages
            or self.errors
            or not self.topics.keys() >= {*flow.input_topics}
        ):
            return {}
        follows = Revisions() if plan is None else Revisions.of(plan)
        newest = {family: met.number for family, met in follows.newer.items()}
        try:
            records = find_revisions(flow, self.log, self.topics).records
        except ChainError as error:
            return {"unknown_revisions": str(error)}
        for family, own in records.items():
            newest[family] = max(newest.get(family, 0), own[-1].revision.number)
        behind = {family: (number, follows.follows(family)) for family, number in newest.items()}
        return {
            "newer": {family: own for family, own in behind.items() if plan is not None and own[0] > own[1]}
        }

    def _of_login(self) -> dict[str, Any]:
        """What the login may not do, although a service does it; and who else is in the group."""
        flow, log, group = self.flow, cast("object", self.log), self.flow.declared_name
        read: dict[str, Any] = {}
        if isinstance(log, ReportsRights):
            on_topics = rights_on_topics(flow, log, self.topics.keys())
            missing, unknown = dict(on_topics.missing), [*on_topics.unknown]
            in_group = log.allowed_in_group(group)
            if in_group is None:
                unknown.append(group)
            elif READ not in in_group:
                missing[group] = READ
            read = {"rights": missing, "unknown_rights": unknown}
        if isinstance(log, ListsMembers) and group not in read.get("rights", ()):
            read["members"] = log.members(group)
        return read

    def _of_logs(self) -> dict[str, Any]:
        if self.log is None or "brokers" in self.errors:
            return {}
        written = self.log.bounds(self._partitions({output.topic for output in self.flow.outputs}))
        published = any(bounds.stable_end > 0 for bounds in written.values())
        return {"bounds": self.log.bounds(self._inputs()), "published": published}

    def _inputs(self) -> list[TopicPartition]:
        return self._partitions(self.flow.input_topics)

    def _partitions(self, names: Collection[str]) -> list[TopicPartition]:
        known = [self.topics[name] for name in sorted(names) if name in self.topics]
        return [(info.name, number) for info in known for number in range(info.partitions)]

    def _of_states(self) -> dict[str, Any]:
        home_store = self.stores.get("")
        if home_store is None or not self.flow.keeps_plans:
            return {}
        flow = self.flow
        headers: dict[tuple[str, int], Header | None] = {}
        known = home_store.locations(flow.name)
        for stage in flow.stages:
            where = None if known is None else known.stages.get(stage.name)
            store = self.stores.get(stage.store or "")
            if where is not None and store is not None and stage.stage_kind.sink is None:
                cells = range(where.state_partitions * where.buckets)
                for cell, header in zip(cells, store.headers(where.flow, stage.name, cells), strict=True):
                    headers[stage.name, cell] = header
        home, beats = home_store.home(flow.name)
        alive = False
        if home is not None and home.run_id:
            self.wait(_LONGEST_BEAT_MS)
            before, (home, beats) = (home, beats), home_store.home(flow.name)
            alive = before != (home, beats)
        plan = None if home is None else read_plan(home_store, flow.name, home.number)
        holder = None if plan is None else holder_of(flow, plan)
        unfinished = {} if plan is None or alive else self._unfinished(plan, home_store)
        return unfinished | {
            "home": home,
            "alive": alive,
            "plan": plan,
            "headers": headers,
            "located": frozenset() if known is None else frozenset(known.stages),
            "waiting": 0 if plan is None else EventTime.of(plan).waiting,
            "holder": "" if holder is None else str(holder),
        }

    def _unfinished(self, last: Plan, home_store: StateStore) -> dict[str, Any]:
        """What a start has to finish, by the rule of a start."""
        flow, headers = self.flow, dict[tuple[int, int], Header]()
        for stage in flow.stages:
            stored, store = last.layout.stages.get(stage.name), self.stores.get(stage.store or "")
            if stored is not None and store is not None:
                cells = flow.cells[stage.index]
                of_stage = zip(cells, store.headers(stored.flow, stage.name, cells), strict=True)
                headers |= {(stage.index, cell): header for cell, header in of_stage if header is not None}

        def fetch(number: int) -> Plan | None:
            return last if number == last.number else read_plan(home_store, flow.name, number)

        try:
            levels = {stage.index: flow.depths[stage.index] for stage in flow.stages}
            plans = map(fetch, to_redo(last, headers, levels, fetch))
        except StoreInconsistent as error:
            return {"inconsistent": str(error)}
        return {"redone": tuple(plan for plan in plans if plan is not None and not plan.empty)}

    def _of_servers(self) -> dict[str, Any]:
        weak, remarks = dict[str, tuple[str, ...]](), dict[str, tuple[str, ...]]()
        ahead_ms, refused, untried = dict[str, int](), dict[str, str](), dict[str, Sequence[str]]()
        for name, store in self.stores.items():
            try:
                weak[name], remarks[name] = tuple(store.check()), tuple(store.remarks())
                if isinstance(store, Clocked):
                    ahead_ms |= clock_differences(store, self.clock)
            except ChainError as error:
                self.errors[f"store {name or 'default'}"] = str(error)
        for name, store in self.stores.items():
            if f"store {name or 'default'}" in self.errors:
                continue
            try:
                untried[name] = try_store(store, name, self.flow, secrets.token_hex(4))
            except ChainError as error:
                refused[name] = str(error)
        return {
            "weak": weak,
            "remarks": remarks,
            "ahead_ms": ahead_ms,
            "refused": refused,
            "untried": untried,
        }
