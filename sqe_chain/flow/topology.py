"""The nodes of a flow that is being declared, and how they are connected."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from sqe_chain.envelope.marks import DEFAULT_MAX_LANES, Recreated
from sqe_chain.errors import FlowError
from sqe_chain.flow.compiled import CompiledFlow, PoisonPolicy
from sqe_chain.flow.complete import check_complete
from sqe_chain.flow.declaration import (
    MAX_PARTITIONS,
    caller_line,
    check_bool,
    check_choice,
    check_int,
    check_name,
    check_topic,
)
from sqe_chain.flow.event_time import NO_TIMES
from sqe_chain.flow.nodes import Node
from sqe_chain.ports.readers import flow_of

_FoundNode = TypeVar("_FoundNode", bound=Node)

_DEFAULT_STATE_PARTITIONS = 8
_MOST = {
    "state_partitions": 65_536,
    "dead_letter_partitions": MAX_PARTITIONS,
    "max_lanes": 10_000_000,
}


@dataclass
class Topology:
    """The nodes of a flow and how they are connected. See `sqe_chain.flow.flow.Flow` for the arguments.

    Attributes:
        nodes: in the order of their declaration; parents come before children.
    """

    name: str
    poison: PoisonPolicy = "stop"
    dead_letter_topic: str = ""
    dead_letter_partitions: int = 1
    state_partitions: int = _DEFAULT_STATE_PARTITIONS
    max_lanes: int = DEFAULT_MAX_LANES
    recreated: Recreated = "stop"
    allow_compacted: bool = False
    traces: bool = False
    transactional: bool = False
    nodes: list[Node] = field(default_factory=list, init=False, repr=False)
    # The nodes so far, compiled; None: one was added or replaced since. Each declaration asks for it.
    _so_far: CompiledFlow | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = caller_line()
        check_name("flow", self.name, where)
        if flow_of(self.name) != self.name:
            raise FlowError(
                f"{where}: flow name {self.name!r} ends as the names of readers do; choose another one"
            )
        check_choice("poison", self.poison, ("stop", "dead_letter", "skip", "park"), where)
        check_choice("recreated", self.recreated, ("stop", "count", "skip"), where)
        if self.dead_letter_topic == "":
            self.dead_letter_topic = f"{self.name}.dead-letters"
        check_topic(self.dead_letter_topic, where)
        for what, most in _MOST.items():
            check_int(what, getattr(self, what), 1, most, where)
        check_bool("allow_compacted", self.allow_compacted, where)
        check_bool("traces", self.traces, where)
        check_bool("transactional", self.transactional, where)
        if self.transactional:
            check_topic(f"{self.name}.published", where)

    def so_far(self) -> CompiledFlow:
        """The flow as far as it is declared, unchecked."""
        if self._so_far is None:
            settings = {
                setting.name: getattr(self, setting.name) for setting in fields(Topology) if setting.init
            }
            self._so_far = CompiledFlow(**settings, nodes=tuple(self.nodes))
        return self._so_far

    def compile(self) -> CompiledFlow:
        """The flow as it runs, frozen: what is declared afterwards is no part of it.

        Raises:
            FlowError: it is not complete, or its parts do not go together.
        """
        flow = self.so_far()
        check_complete(flow)
        return flow

    def leave_out_times(self, table: Node, where: str) -> None:
        """Let what the sources before a node read have no times: a join reads it as a table without history.

        Raises:
            FlowError: the table has passed a stage, or its sources have times of their own.
        """
        known = self.so_far()
        if known.depths[table.index]:
            raise FlowError(
                f"{where}: a static table is read from a source, and this one comes from a stage: publish it first"
            )
        for source in known.sources:
            if not known.topics_before[table.index].isdisjoint(source.topics):
                if source.timestamp not in (None, NO_TIMES):
                    raise FlowError(
                        f"{where}: a static table has no times: remove timestamp= from source {source.name!r} ({source.declared_at})"
                    )
                self.nodes[source.index] = replace(source, timestamp=NO_TIMES)
        self._so_far = None

    def add(self, kind: type[_FoundNode], declared_at: str, *parents: Node, **fields: Any) -> _FoundNode:  # noqa: ANN401 - the fields of the node
        """Append a node of a class, with its fields, which the stream that declares it has checked."""
        node = kind(len(self.nodes), declared_at, tuple(parent.index for parent in parents), **fields)
        self.nodes.append(node)
        self._so_far = None
        return node
