"""Forgets a flow: its commits, states, plans and claim, and its topics if the user asks for that.

It claims the flow first: from then on no run of the flow can write, however long it was asleep, and none can start. It deletes
the home record last. That names what there is to forget, so after a crash the same command continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sqe_chain.errors import ConfigurationError, StoreInconsistent, Superseded
from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.features.readers import Readers, read_record, write_record
from sqe_chain.operations.cells import Cell, delete_rows
from sqe_chain.plans.layout import FILES, Layout
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.stored_plans import read_plan
from sqe_chain.ports import Header, Home, Log, StateStore, Views
from sqe_chain.ports.readers import flow_of, readers_of
from sqe_chain.protocol.claim import FORGETS, is_being_forgotten

_STEP_MS = 200
_UNKNOWN = Home(0, "", "", -1, "")
ATTEMPT = re.compile(r"\.(again|shadow|before)-[0-9]+$")
"""The end of the name under which a rebuild folds a flow, a shadow follows it, or the states before a switch are kept."""
_BLOCK = 64
"""Headers looked at together, beyond those that the last plan knows of."""


@dataclass(frozen=True, slots=True)
class KnownFlow:
    """A flow as its metadata store knows it.

    Attributes:
        home: its claim and the number of its last plan.
        plan: its last plan; None: it has not run, or its plan cannot be read.
        unreadable: why its home or plan cannot be read; "" when both can.
    """

    name: str
    home: Home
    plan: Plan | None
    unreadable: str = ""

    @property
    def forgotten_in_part(self) -> bool:
        """Whether a process has begun to forget it, and has not finished."""
        return is_being_forgotten(self.home)


def known_flows(home: StateStore) -> list[KnownFlow]:
    """All flows with their metadata in this store, by name; of a flow with several readers, each of them."""
    known = (known_flow(home, name) for name in home.flows() if name != readers_of(flow_of(name)))
    return [flow for flow in known if flow is not None]


def known_flow(home: StateStore, name: str) -> KnownFlow | None:
    """What the store knows of one flow; None: nothing."""
    record: Home | None = _UNKNOWN
    try:
        record, _ = home.home(name)
        return None if record is None else KnownFlow(name, record, read_plan(home, name, record.number))
    except StoreInconsistent as error:
        return KnownFlow(name, record or _UNKNOWN, None, str(error))


@dataclass(slots=True)
class ForgetFlow:
    """Forgets one flow. May be killed and repeated.

    Args:
        name: the flow's name.
        stores: store name -> store; "" is its metadata store. All that its stages use must be there.
        log: Kafka; None for a flow that reads files and publishes nothing.
        topics: also delete the topics that the flow writes, and its dead-letter topic.
        run_id: a random name for this claim.
        is_dead: whether the process that an owner text names is known to be dead.
        wait: wait this number of milliseconds.
        standby_ms: how long a heartbeat must not move.
    """

    name: str
    stores: Mapping[str, StateStore]
    log: Log | None
    topics: bool
    run_id: str
    is_dead: Callable[[str], bool]
    wait: Callable[[int], None]
    standby_ms: int = 6_000

    def run(self) -> list[str]:
        """Forget the flow; a flow with several readers with all of them.

        Returns:
            The topics that were deleted.

        Raises:
            ConfigurationError: the store does not know the flow, or a run of it is alive. Its stores or Kafka are not given,
                or another flow uses one of the topics.
            Superseded: a run has claimed the flow in between.
        """
        if flow_of(self.name) != self.name:
            raise ConfigurationError(
                f"{self.name!r} is one of several readers. Expected a flow. Forget it with all of its readers: {flow_of(self.name)}"
            )
        home, record = self.stores[""], read_record(self.stores[""], self.name)
        own = self._check_own(record.readers)
        others = known_flows(home)
        names = {flow.name for flow in own} | {self.name}
        attempts = [flow for flow in others if ATTEMPT.sub("", flow.name) in names - {flow.name}]
        layouts = [flow.plan.layout for flow in (*own, *attempts) if flow.plan is not None]
        self._check_log(layouts)
        begun = record.readers is not None and record.readers.forgotten
        if not begun and not any(flow.forgotten_in_part for flow in own):
            self._check_stores(layouts)
        topics = self._topics(
            own, [flow for flow in others if flow not in attempts and flow.name not in names]
        )
        if record.readers is not None:
            readers = replace(record.readers, forgotten=True)
            written = write_record(home, self.name, record, readers, self.run_id)
            if written is None:
                raise self._superseded("a reader was started in between; nothing was forgotten")
            record = written
        claimed = {flow.name: self._claim(flow) for flow in own}
        self._forget_in_kafka(topics)
        for flow in own:
            self._forget_flow(flow, claimed[flow.name], attempts)
        if record.home is not None and home.forget(readers_of(self.name), record.home) is not None:
            raise self._superseded("another process forgets it as well")
        return topics

    def _forget_flow(self, flow: KnownFlow, claimed: Home, attempts: list[KnownFlow]) -> None:
        """Forget a flow that runs as one, or one reader, with its attempts at a rebuild. Its home record goes last."""
        home = self.stores[""]
        again = [attempt for attempt in attempts if ATTEMPT.sub("", attempt.name) == flow.name]
        for store in self.stores.values():
            stored = store.locations(flow.name)
            self._check_claim(flow.name, claimed)
            # First: no program shall be led to states that are half deleted.
            if stored is not None and store.forget_locations(flow.name, stored) is not None:
                raise self._superseded()
        for known in (flow, *again):
            if known.plan is not None:
                self._forget_states(
                    known.plan.layout, claimed, [flow.name, *(attempt.name for attempt in again)]
                )
        for attempt in again:
            home.forget(attempt.name, attempt.home)
        if home.forget(flow.name, claimed) is not None:
            raise self._superseded()

    def _superseded(
        self, text: str = "a run has claimed it in between; some of it is forgotten"
    ) -> Superseded:
        return Superseded(f"flow {self.name!r}: {text}. Stop the other process, then forget the flow again")

    # ------------------------------------------------------------------ checks

    def _check_own(self, readers: Readers | None) -> list[KnownFlow]:
        """The flow, or all of its readers; each can be read, and none is alive."""
        home = self.stores[""]
        # A flow that ran as one before it had readers is among the former readers, too.
        names = [self.name] if readers is None else dict.fromkeys([*readers.names, self.name])
        own = [flow for name in names if (flow := known_flow(home, name)) is not None]
        if not own and readers is None:
            raise ConfigurationError(
                f"flow {self.name!r}: the store knows nothing of it. Expected a flow of `sqe-chain flows list`. Give its name and its --store"
            )
        for flow in own:
            if flow.unreadable:
                raise ConfigurationError(
                    f"flow {flow.name!r}: {flow.unreadable}. Expected a plan, which names what belongs to the flow. Nothing was forgotten"
                )
            self._check_not_alive(flow.home, flow.name)
        return own

    def _check_log(self, layouts: list[Layout]) -> None:
        """Check that Kafka is given if the flow has anything there."""
        if self.log is not None:
            return
        used = {
            name for layout in layouts for name, (topic_id, _) in layout.sources.items() if topic_id != FILES
        }
        used |= _outputs(layouts)
        if used or self.topics or not layouts:
            what = f"reads or writes {', '.join(sorted(used))}" if used else "may have topics"
            raise ConfigurationError(
                f"flow {self.name!r} {what}. Expected the brokers: give --kafka HOST:PORT. Nothing was forgotten"
            )

    def _check_not_alive(self, home: Home, name: str) -> None:
        """Check that the run with the claim is known to be dead, or that its heartbeat has stopped."""
        if not home.run_id or self.is_dead(home.owner):
            return
        before = self.stores[""].home(name)
        for _ in range(0, self.standby_ms, _STEP_MS):
            self.wait(_STEP_MS)
            now = self.stores[""].home(name)
            if now != before and now[0] is not None and now[0].run_id:
                raise ConfigurationError(
                    f"flow {name!r} is running: {now[0]}. Expected a stopped flow. Stop it, then forget it"
                )
            before = now

    def _check_stores(self, layouts: list[Layout]) -> None:
        """Check that each stage is in one of the stores, under any of these layouts: readers that never ran have no headers."""
        for stage in dict.fromkeys(name for layout in layouts for name in layout.stages):
            if not any(self._is_stored(layout, stage) for layout in layouts if stage in layout.stages):
                raise ConfigurationError(
                    f"flow {self.name!r}: stage {stage!r} is in none of the stores given. Expected all stores of its stages. Give "
                    "that of this stage as well: --store NAME=URL"
                )

    def _is_stored(self, layout: Layout, stage: str) -> bool:
        flow, cells = layout.stages[stage].flow, range(_count_cells(layout, stage))
        return any(any(store.headers(flow, stage, cells)) for store in self.stores.values())

    def _topics(self, own: list[KnownFlow], others: list[KnownFlow]) -> list[str]:
        """The topics to delete. None that another flow of this store reads or writes."""
        layouts = [flow.plan.layout for flow in own if flow.plan is not None]
        if not self.topics or not layouts or self.log is None:
            return []
        read = {topic for layout in layouts for topic in layout.sources}
        chosen = sorted({*_outputs(layouts), f"{self.name}.dead-letters", f"{self.name}.published"} - read)
        for other in others:
            if other.unreadable:
                raise ConfigurationError(
                    f"flow {other.name!r}: {other.unreadable}. Expected a plan, which names its topics. Do without --topics, and "
                    "delete topics with Kafka's tools"
                )
            layout = other.plan.layout if other.plan else Layout(1)
            used = {*layout.sources, *_outputs([layout])} & set(chosen)
            if used:
                raise ConfigurationError(
                    f"topic {min(used)!r}: flow {other.name!r} uses it as well. Forget that flow first, or do without --topics and "
                    "delete topics with Kafka's tools"
                )
        return sorted(self.log.describe(chosen))

    # ------------------------------------------------------------------ what it does

    def _claim(self, flow: KnownFlow) -> Home:
        """Fence off every run. `FORGETS` in the claim keeps others from it until this is finished."""
        owner = json.dumps({FORGETS: flow.name})
        claimed = replace(flow.home, epoch=flow.home.epoch + 1, run_id=self.run_id, owner=owner)
        if self.stores[""].set_home(flow.name, flow.home, claimed) != claimed:
            raise self._superseded("a run has claimed it in between; nothing was forgotten")
        return claimed

    def _check_claim(self, name: str, claimed: Home) -> None:
        """Check that what was just read, and is to be deleted now, is not that of a flow that began again since."""
        if self.stores[""].home(name)[0] != claimed:
            raise self._superseded()

    def _forget_in_kafka(self, topics: list[str]) -> None:
        if self.log is None:
            return
        for topic in topics:
            self.log.delete_topic(topic)
        for group in (self.name, replay_group(self.name)):
            self.log.delete_group(group)

    def _forget_states(self, layout: Layout, claimed: Home, names: list[str]) -> None:
        """Forget states under every name that the flow has ever used: a rebuild leaves headers under the old name."""
        for stage, stored in layout.stages.items():
            for flow in dict.fromkeys([stored.flow, *names]):
                for store in self.stores.values():
                    for start, headers in _blocks(store, flow, stage, _count_cells(layout, stage)):
                        self._check_claim(names[0], claimed)
                        for number, header in enumerate(headers, start):
                            if header is not None:
                                _forget_cell(store, (flow, stage, number), header)


def _forget_cell(store: StateStore, cell: Cell, header: Header) -> None:
    if (
        delete_rows(store, cell, header, Views("hash", {})) != header
        or store.forget_part(*cell, header) is not None
    ):
        raise Superseded(
            f"{'/'.join(map(str, cell))}: a run writes there. Stop it, then forget the flow again"
        )


def _outputs(layouts: list[Layout]) -> set[str]:
    return {topic for layout in layouts for topic, _ in layout.outputs.values()}


def _count_cells(layout: Layout, stage: str) -> int:
    return layout.state_partitions * layout.stages[stage].buckets


def _blocks(
    store: StateStore, flow: str, stage: str, known: int
) -> Iterator[tuple[int, list[Header | None]]]:
    """Headers in blocks: of the cells that the plan knows, and of those that earlier layouts have left beyond."""
    start = 0
    while True:  # until a block beyond the known cells holds no header
        headers = store.headers(flow, stage, range(start, start + _BLOCK))
        if start >= known and not any(headers):
            return
        yield start, headers
        start += _BLOCK
