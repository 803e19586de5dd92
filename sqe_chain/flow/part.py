"""What the parts of a stream share: its place in the flow, and how they declare a stage after it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import check_int, check_name
from sqe_chain.flow.fields import declared_key
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.kinds import check_fit
from sqe_chain.flow.nodes import ChangesNode, Node, SourceNode, StageNode
from sqe_chain.flow.signatures import Value
from sqe_chain.flow.stage_kind import OwnTimes, StageKind
from sqe_chain.flow.view_tables import view_in

if TYPE_CHECKING:
    from sqe_chain.flow.stream import Filter, Stage, Stream, WindowStage
    from sqe_chain.flow.topology import Topology

_MAX_BUCKETS = 1024


class StreamPart(Generic[Value]):
    """Base of the parts of a stream."""

    __slots__ = ()

    flow: Topology
    node: Node

    # The parts know what they declare, `Stream` alone knows the classes: it is made of the parts, so they cannot import it.
    @abstractmethod
    def _as_stream(self, node: Node) -> Stream[Any]: ...

    @abstractmethod
    def _as_stage(self, node: Node) -> Stage[Any, Any]: ...

    @abstractmethod
    def _as_filter(self, node: Node) -> Filter[Any]: ...

    @abstractmethod
    def _as_windows(self, node: Node) -> WindowStage[Any]: ...

    def _stage(
        self,
        name: str,
        kind: StageKind,
        where: str,
        *,
        store: str | None,
        key: UserFunction | str | None = None,
        buckets: int = 1,
        view: str | None = None,
        others: Sequence[Node] = (),
    ) -> StageNode:
        self._check_stage(name, where)
        check_int("buckets", buckets, 1, _MAX_BUCKETS, where)
        if store is not None:
            check_name("store", store, where)
        if kind.traits.own_times is not None:
            self._check_own_times(name, kind.traits.own_times, (self.node, *others), where)
        letters, inputs = self.flow.poison == "dead_letter", 1 + len(others)
        check_fit(kind, where, buckets=buckets, view=view, key=key, dead_letters=letters, inputs=inputs)
        kind_of_view, table = view_in(kind, view, f"{where}: stage {name!r}")
        return self.flow.add(
            StageNode,
            where,
            self.node,
            *others,
            name=name,
            key=declared_key(key, self._value_type(), where),
            stage_kind=kind,
            store=store,
            buckets=buckets,
            view=kind_of_view,
            table=table,
        )

    def _check_stage(self, name: str, where: str) -> None:
        check_name("stage", name, where)
        for other in self.flow.so_far().stages:
            if other.name == name:
                raise FlowError(f"{where}: stage {name!r} already exists at {other.declared_at}")
        if self._follows_changes():
            raise FlowError(
                f"{where}: a stage cannot follow changes(): its result would depend on where "
                "batches end; emit from the fold instead"
            )

    def _check_own_times(self, name: str, own: OwnTimes, streams: Sequence[Node], where: str) -> None:
        """Refuse values that are all late: older than the records that they come in, where nothing allows for that."""
        if own.allowed_ms:
            return
        known = self.flow.so_far()
        # After a stage, places are no records'.
        first = [streams[number].index for number in own.inputs if not known.depths[streams[number].index]]
        topics = frozenset[str]().union(*(known.topics_before[index] for index in first))
        for source in known.sources:
            if source.name in topics and source.raw and source.timestamp is None:
                setting = f"{own.setting}= (by how much), or " if own.setting else ""
                raise FlowError(
                    f"{where}: stage {name!r}: values with times of their own are older than the records of source {source.name!r}. "
                    f"Expected a time of these inputs that no value comes before. Give {setting}timestamp= at the source (the "
                    "earliest time of an input)"
                )

    def _follows_changes(self) -> bool:
        node = self.node
        while not isinstance(node, ChangesNode | StageNode | SourceNode):
            node = self.flow.nodes[node.parents[0]]
        return isinstance(node, ChangesNode)

    def _after_stage(self) -> bool:
        return self.flow.so_far().depths[self.node.index] > 0

    def _value_type(self) -> type | None:
        return self.node.value_type(self.flow.nodes)
