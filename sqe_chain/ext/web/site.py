"""What the page shows, read from stores and topics: plain objects for JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic

from sqe_chain.cli.console import key_as_json
from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.errors.safe_text import shown
from sqe_chain.ext.explain.trace import check_cells, read_states
from sqe_chain.ext.web.runbook import entry_of
from sqe_chain.features.event_times import EventTime, waiting_offsets
from sqe_chain.features.parking import Parking
from sqe_chain.features.shadowing import Compared
from sqe_chain.features.waiting import holder_of
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.operations.attempts import find_shadow
from sqe_chain.operations.forget import ATTEMPT, KnownFlow, known_flow, known_flows
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.stored_plans import kept_plans
from sqe_chain.ports import Bounds, Location, Log, StateStore, TopicPartition
from sqe_chain.runtime.states import location_of, states_in_row

Json = dict[str, object]
_AGAIN_S = 30
"""Brokers that do not answer are asked again after this time: each question takes long, and the rest of the page waits."""
_STOPPED_S = 10
"""A heartbeat that has not moved for this time has stopped."""
CURSOR = "([0-9]{1,9}):((?:[0-9a-f]{2})*)"
"""State partition and key after which a page of keys begins."""
PAGE = 100
"""Most keys, records or plans of one answer."""
MOST_KEY = 4_096
"""Bytes of a key: a longer one does not fit into a path."""


class NotFound(Exception):
    """There is no such flow, stage, key or record."""


class NotCounted(Exception):
    """An input is not counted yet."""


@dataclass(slots=True)
class Site:
    """Everything that can be seen from some brokers and stores.

    Args:
        log: the brokers; None: none were given.
        stores: store name -> store; "" is the metadata store.
        flows: flows that were loaded: their states can be decoded.
    """

    log: Log | None
    stores: Mapping[str, StateStore]
    flows: Mapping[str, CompiledFlow] = field(default_factory=dict)
    _beats: dict[str, tuple[int, float]] = field(default_factory=dict)
    _away: str = ""
    _asked_s: float = 0.0

    # ------------------------------------------------------------------ flows

    def list_flows(self) -> list[Json]:
        """All flows that the metadata store knows, and those that were loaded."""
        known = {flow.name: flow for flow in known_flows(self.stores[""])} if "" in self.stores else {}
        names = {*known, *self.flows}
        # Attempts to rebuild a flow, and those under whose name its states are stored since, belong to it.
        own = sorted(
            name for name in names if name in self.flows or ATTEMPT.sub("", name) not in names - {name}
        )
        return [self._summary(name, known.get(name)) for name in own]

    def _summary(self, name: str, known: KnownFlow | None) -> Json:
        flow = self.flows.get(name)
        plan = known.plan if known else None
        layout = plan.layout if plan else None
        reads = sorted(layout.sources) if layout else list(flow.input_names) if flow else []
        writes = {topic for topic, _ in layout.outputs.values()} if layout else set[str]()
        writes |= {output.topic for output in flow.outputs} if flow else set()
        stages = sorted(layout.stages) if layout else [stage.name for stage in flow.stages] if flow else []
        return {
            "name": name,
            "loaded": flow is not None,
            "plan": plan.number if plan else None,
            "sealed_ms": plan.clock_ms if plan else None,
            "read": sum(planned.stop for planned in plan.ranges) if plan else None,
            "claimed_by": (known.home.run_id or None) if known else None,
            "claims": known.home.epoch if known else None,
            "alive": self._is_alive(name) if known and known.home.run_id else None,
            "unreadable": shown(known.unreadable) if known and known.unreadable else None,
            "reads": reads,
            "writes": sorted(writes),
            "stages": stages,
            "lag": None if plan is None else self._lag(plan),
        }

    def _is_alive(self, name: str) -> bool | None:
        """Whether the heartbeat has moved in the last seconds; None: it was not watched for long enough."""
        _, beats = self.stores[""].home(name)
        before, since = self._beats.get(name, (-1, 0.0))
        if beats != before:
            self._beats[name] = beats, monotonic()
            return True if before >= 0 else None
        return monotonic() - since < _STOPPED_S

    def _lag(self, plan: Plan) -> int | None:
        """Offsets that the flow has not counted."""
        ends = {tp: planned.stop for tp, planned in plan.ends().items() if tp[1] >= 0}
        bounds = self._bounds(ends)
        return (
            None if bounds is None else sum(max(0, bounds[tp].stable_end - stop) for tp, stop in ends.items())
        )

    def _bounds(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Bounds] | None:
        """The bounds of partitions; None: no brokers were given, or they do not answer. Those are asked again after a while."""
        if self.log is None or (self._away and monotonic() - self._asked_s < _AGAIN_S):
            return None
        try:
            bounds = self.log.bounds(partitions)
        except ChainError as error:
            self._away, self._asked_s = shown(str(error)), monotonic()
            return None
        self._away = ""
        return bounds

    def describe_flow(self, name: str) -> Json:
        """One flow: positions, plans, cells, what waits, what was skipped."""
        known = known_flow(self.stores[""], name) if "" in self.stores else None
        if known is None and name not in self.flows:
            raise NotFound(f"there is no flow {name!r}")
        summary = self._summary(name, known)
        if known is None or known.plan is None:
            return {
                **summary,
                "inputs": [],
                "plans": [],
                "cells": [],
                "skipped": None,
                "last_error": None,
                "away": None,
                "open_plan": None,
                "event_time": None,
                "revisions": [],
                "shadow": None,
            }
        plan, plans = known.plan, list(islice(kept_plans(self.stores[""], name), PAGE))
        cells = self._cells(name, plan)
        return {
            **summary,
            "plan_id": plan.plan_id,
            "owner": known.home.owner,
            "inputs": self._inputs(plan),
            "away": self._away or None,
            "plans": [
                {
                    "number": kept.number,
                    "clock_ms": kept.clock_ms,
                    "records": sum(planned.stop - planned.start for planned in kept.ranges),
                    "skipped": len(kept.exclusions),
                    "sections": sorted(kept.sections),
                }
                for kept in plans
            ],
            "cells": cells,
            "open_plan": plan.number if any(cell.get("behind") for cell in cells) else None,
            "last_error": _last_error(plans),
            "skipped": [
                {"error": error, "count": count}
                for error, count in Counter(
                    skip.error for kept in plans for skip in kept.exclusions
                ).most_common()
            ],
            "event_time": self._event_time(name, plan),
            "revisions": _revisions(plan),
            "shadow": self._shadow(name, plan),
        }

    def _inputs(self, plan: Plan) -> list[Json]:
        ends = plan.ends()
        bounds = self._bounds(ends) or {}
        return [
            {
                "topic": tp[0],
                "partition": tp[1],
                "position": planned.stop,
                "begin": bounds[tp].begin if tp in bounds else None,
                "end": bounds[tp].stable_end if tp in bounds else None,
                "lag": max(0, bounds[tp].stable_end - planned.stop) if tp in bounds else None,
                "newest_ms": planned.last_timestamp_ms,
            }
            for tp, planned in sorted(ends.items())
        ]

    def _cells(self, name: str, plan: Plan) -> list[Json]:
        """For each stage, how many cells are at the last plan, behind it, or written in part."""
        counts: list[Json] = []
        located = self.stores[""].locations(name)
        for stage, where in sorted(located.stages.items()) if located else ():
            store = self.stores.get(where.store)
            if store is None:
                counts.append({"stage": stage, "cells": None})
                continue
            headers = store.headers(where.flow, stage, range(where.state_partitions * where.buckets))
            counts.append(
                {
                    "stage": stage,
                    "kind": where.kind,
                    "type": where.type_name,
                    "cells": len(headers),
                    "at_plan": sum(header is not None and header.number == plan.number for header in headers),
                    "behind": sum(header is not None and header.number < plan.number for header in headers),
                    "open": sum(header is not None and bool(header.begun_id) for header in headers),
                    "lost": sum(header is None for header in headers),
                }
            )
        return counts

    def _shadow(self, name: str, live: Plan) -> Json | None:
        """How far the flow's shadow is, by its last plan; states are not read. None: there is none."""
        shadow = find_shadow(self.stores[""], name, live)
        if shadow is None:
            return None
        compared = Compared.of(shadow.plan)
        return {
            "name": shadow.name,
            "alive": self._is_alive(shadow.name) if shadow.home.run_id else None,
            "plans_left": None,
            **shadow.figures(live),
            "examples": compared.examples,
            "modules": sorted(compared.code),
        }

    def _event_time(self, name: str, plan: Plan) -> Json:
        """What event time waits for; of a flow that was not loaded, how many records wait."""
        flow, event_time = self.flows.get(name), EventTime.of(plan)
        holder = None if flow is None else holder_of(flow, plan)
        return {
            "waiting": event_time.waiting,
            "taken_to_ms": event_time.frontier and event_time.frontier.at_ms,
            "holder": None if holder is None else str(holder),
            "known_to_ms": None if holder is None else holder.watermark_ms,
        }

    # ------------------------------------------------------------------ stages and keys

    def stage_of(self, flow: str, stage: str) -> tuple[Location, StateStore, StageNode | None]:
        """Where a stage is, its store, and its declaration if the flow was loaded."""
        if "" not in self.stores:
            raise NotFound("no store was given")
        try:
            where = location_of(self.stores[""], flow, stage)
        except ConfigurationError as error:
            raise NotFound(str(error)) from None
        store = self.stores.get(where.store)
        if store is None:
            raise NotFound(f"stage {stage!r} is in the store {where.store!r}, which was not given")
        loaded = self.flows.get(flow)
        node = (
            None if loaded is None else next((named for named in loaded.stages if named.name == stage), None)
        )
        return where, store, node

    def list_keys(
        self, flow: str, stage: str, prefix: bytes, after: tuple[int, bytes] | None, limit: int
    ) -> Json:
        """A page of keys, one state partition after the other, each in the order of its keys; longer ones are counted only.

        `after` is cell and key of the last one of the page before.

        Raises:
            NotFound: there is no such stage.
            StoreInconsistent: the store has lost a state partition, or states of one.
        """
        where, store, node = self.stage_of(flow, stage)
        keys: list[tuple[int, bytes]] = []
        longer = 0
        first, last = after or (0, b"")
        for cell in range(first, where.state_partitions * where.buckets):
            check_cells(self.stores[""], flow, stage, store, where, [cell])
            rows = store.scan(where.flow, stage, cell)
            named = {
                key
                for row, content in rows
                for key in _keys_in(flow, node, row, content)
                if key.startswith(prefix) and not (after is not None and cell == first and key <= last)
            }
            keys += ((cell, key) for key in sorted(named) if len(key) <= MOST_KEY)
            longer += sum(len(key) > MOST_KEY for key in named)
            if len(keys) > limit:
                break
        page = keys[:limit]
        more = f"{page[-1][0]}:{page[-1][1].hex()}" if len(keys) > limit else None
        return {"keys": [key_as_json(key) for _, key in page], "next": more, "longer": longer}

    def state_of(
        self, flow: str, stage: str, key: bytes, at_least: Sequence[tuple[str, int, int]] = ()
    ) -> Json:
        """The state of a key, with the plan that it belongs to and where the inputs were then.

        Args:
            flow: its name.
            stage: its name.
            key: as in the store.
            at_least: topics, partitions and offsets of inputs that must be counted in it, as far as they ever will be.

        Raises:
            NotFound: there is no such state.
            ConfigurationError: no offset shows what this stage has counted.
            NotCounted: one of the inputs is not read yet, or waits for event time, or is parked.
        """
        _, _, node = self.stage_of(flow, stage)
        if node is None or node.codec is None:
            raise NotFound(
                f"flow {flow!r} was not loaded, so its states cannot be decoded: give MODULE:FLOW to sqe-chain web"
            )
        later = self.flows[flow].giving_later_before(node) if at_least else []
        if later:
            raise ConfigurationError(
                f"at_least= for stage {stage!r} of flow {flow!r}: stage {later[0]!r} before it may give results later, so no offset shows "
                "what is counted. Expected a stage that no window, join of streams or timer is before. "
                "Ask without at_least="
            )
        stored = read_states(self.stores, flow, node, [key])
        if not stored.states:
            raise NotFound(f"stage {stage!r} of flow {flow!r} has no state of this key")
        plan = stored.plan
        _check_counted(plan, at_least)
        codec = node.codec
        return {
            "flow": flow,
            "stage": stage,
            "key": key_as_json(key),
            "plan": plan.number,
            "plan_id": plan.plan_id,
            "sealed_ms": plan.clock_ms,
            "offsets": {f"{tp[0]}:{tp[1]}": planned.stop for tp, planned in sorted(plan.ends().items())},
            "states": [
                {
                    "window": None if state.span is None else list(state.span),
                    "final": state.final,
                    "state": None if state.state is None else codec.to_json(state.state),
                }
                for state in stored.states
            ],
        }


def _revisions(plan: Plan) -> list[Json]:
    """The outputs upstream that have several revisions: which of them counts, and the newest one that was met."""
    revisions = Revisions.of(plan)
    return [
        {
            "output": family,
            "follows": revisions.follows(family),
            "newer": revisions.newer[family].number if revisions.is_behind(family) else None,
        }
        for family in sorted({*revisions.known, *revisions.newer})
    ]


def _check_counted(plan: Plan, at_least: Sequence[tuple[str, int, int]]) -> None:
    """Check that a plan has counted these inputs, and not only read them.

    Raises:
        NotCounted: it has not.
    """
    ends, waiting = plan.next_offsets(), waiting_offsets(plan)
    parked = {(record.at[0], *record.at[2:]) for record in Parking.of(plan).records}
    for topic, partition, offset in at_least:
        where = f"{topic}:{partition}:{offset}"
        if offset >= ends.get((topic, partition), 0):
            raise NotCounted(f"{where} is not read yet. Ask again")
        if (topic, partition, offset) in parked:
            raise NotCounted(f"{where} is parked. sqe-chain failed release lets it count")
        if offset >= waiting.get((topic, partition), offset + 1):
            raise NotCounted(f"{where} may still wait for event time. Ask again")


def _last_error(plans: Sequence[Plan]) -> Json | None:
    """The error of the newest record that a plan skipped, with its entry of the runbook."""
    for plan in plans:
        for skip in reversed(plan.exclusions):
            return {
                "error": skip.error,
                "text": shown(skip.text),
                "at_ms": plan.clock_ms,
                "record": f"{skip.topic}[{skip.partition}]@{skip.offset}",
                "entry": entry_of(skip.error),
            }
    return None


def _keys_in(flow: str, node: StageNode | None, row: bytes, content: bytes) -> Iterator[bytes]:
    """The keys that a stored row holds; of a flow that was not loaded, the row's name."""
    if node is None or node.traits.states_by_key or node.codec is None:
        yield row
        return
    yield from (state.key for state in states_in_row(node, flow, row, content))


def cursor_in(text: str) -> tuple[int, bytes]:
    """The cell and key of a cursor that `Site.list_keys` gave.

    Raises:
        ValueError: it is no cursor.
    """
    cursor = re.fullmatch(CURSOR, text)
    if cursor is None:
        raise ValueError(f"{text!r}. Expected `next` of the page before")
    return int(cursor[1]), bytes.fromhex(cursor[2])
