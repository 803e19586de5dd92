"""What a rehearsal has stored, published and reported, for the asserts of a test; and stores that go back in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore, StoreCopy
from sqe_chain.chain import Chain
from sqe_chain.envelope.message import Envelope, read
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.waiting import WaitingInputs, waiting_in
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import StageNode
from sqe_chain.plans import inputs
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.ports import Commit, Header, StateStore, TopicPartition
from sqe_chain.stages.contents import Remembered, remembered
from sqe_chain.stages.window_rows import Result, results_in
from sqe_chain.testing.faults import FaultScript


class Results:
    """What a flow in memory has stored, published and reported.

    Attributes:
        log: the broker.
        stores: store name -> store, without injected faults.
        script: the faults to come, and what the service has written and reported.
    """

    log: MemoryLog
    stores: dict[str, StateStore]
    script: FaultScript
    _flow: CompiledFlow

    def states(self, stage: str) -> dict[bytes, Any]:
        """All states of an aggregate, parsed.

        Raises:
            ConfigurationError: there is no such stage, or it is a filter or has windows.
        """
        node = self._stage(stage)
        if node.codec is None or node.traits.windowed:
            raise ConfigurationError(
                f"stage {stage!r} is not an aggregate. Expected one. `windows` reads stages with windows"
            )
        states = (state for row, data in self._rows(node) for state in node.stage_kind.states_in(row, data))
        return {state.key: state.state for state in states}

    def windows(self, stage: str) -> list[Result]:
        """All windows of a stage that are open or retained, in the order (key, window).

        Raises:
            ConfigurationError: there is no such stage, or it has no windows.
        """
        node = self._stage(stage)
        if node.codec is None or not node.traits.windowed:
            raise ConfigurationError(f"stage {stage!r} has no windows")
        return results_in(dict(self._rows(node)), node.codec)

    def waiting(self, stage: str) -> list[WaitingInputs]:
        """What waits for event time in each state partition of a stage.

        Raises:
            ConfigurationError: there is no such stage, it takes its records as they come, or the flow has not run yet.
        """
        return waiting_in(self.stores[""], self._flow, self._stage(stage))

    def remembered(self, stage: str) -> list[Remembered]:
        """What a filter remembers: marks of producers or roots, sequence numbers or ids; see `Remembered`.

        Raises:
            ConfigurationError: there is no such stage, or it is not a filter or has windows.
        """
        node = self._stage(stage)
        if node.traits.states_by_key:
            raise ConfigurationError(
                f"stage {stage!r} is not a filter. Expected one. `states` reads an aggregate"
            )
        return remembered(node.kind, dict(self._rows(node)))

    def headers(self, stage: str) -> list[Header | None]:
        """The header of each cell of a stage: of its state partitions, or of their buckets."""
        node = self._stage(stage)
        return self.stores[node.store or ""].headers(
            self._store_flow(stage), stage, self._flow.cells[node.index]
        )

    def published(self, topic: str) -> list[Envelope]:
        """All envelopes in a topic, by partition and offset."""
        return [read(message.value(), headers=message.headers()) for message in self.log.records(topic)]

    def chains(self, topic: str) -> list[Chain]:
        """The source topic chains of all envelopes in a topic."""
        return [envelope.chain for envelope in self.published(topic)]

    def commits(self) -> dict[TopicPartition, Commit]:
        """The group's commits."""
        infos = self.log.describe(self._flow.input_topics)
        return self.log.committed(self._flow.declared_name, inputs.input_partitions(self._flow, infos))

    def events(self, name: str) -> list[dict[str, object]]:
        """All events of this name that the service reported, in all its runs."""
        return [event.fields() for event in self.script.events if event.name == name]

    def copy_stores(self) -> dict[str, StoreCopy]:
        """Copy all stores, for `roll_back`."""
        return {name: self._memory(name).copy_all() for name in self.stores}

    def roll_back(
        self, copies: Mapping[str, StoreCopy], *, stage: str | None = None, cells: Sequence[int] | None = None
    ) -> None:
        """Restore stores to an earlier state, as after a backup was restored, or a failover lost acknowledged writes.

        Args:
            copies: from `copy_stores`.
            stage: restore only this stage; by default everything, including claim and plans.
            cells: restore only these cells of the stage: state partitions, or their buckets.
        """
        if stage is None:
            for name, copy in copies.items():
                self._memory(name).restore_all(copy)
            return
        node = self._stage(stage)
        store, flow = self._memory(node.store or ""), self._store_flow(stage)
        parts = copies[node.store or ""].parts
        for cell in self._flow.cells[node.index] if cells is None else cells:
            store.restore_part(flow, stage, cell, parts.get((flow, stage, cell)))

    def _memory(self, name: str) -> MemoryStore:
        store = self.stores[name]
        if not isinstance(store, MemoryStore):
            raise ConfigurationError(
                f"{store!r} cannot be rolled back. Expected a MemoryStore. Rehearse with one"
            )
        return store

    def _store_flow(self, stage: str) -> str:
        """The name under which a stage's states are stored; a rebuild changes it."""
        plan = read_last_plan(self.stores[""], self._flow.name)
        return plan.layout.stored_in().get(stage, self._flow.name) if plan else self._flow.name

    def _rows(self, node: StageNode) -> Iterator[tuple[bytes, bytes]]:
        store = self.stores[node.store or ""]
        for cell in self._flow.cells[node.index]:
            yield from store.scan(self._store_flow(node.name), node.name, cell)

    def _stage(self, name: str) -> StageNode:
        for stage in self._flow.stages:
            if stage.name == name:
                return stage
        raise ConfigurationError(f"flow {self._flow.name!r} has no stage {name!r}")
