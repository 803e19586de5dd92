"""Streams of a flow, on which its operators, stages and outputs are declared: `Stream`, `Stage`, `Filter`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sqe_chain.codecs.change import Change, Row, deltas_of
from sqe_chain.errors import FlowError
from sqe_chain.flow.aggregates import AggregateSteps
from sqe_chain.flow.batches import BatchSteps
from sqe_chain.flow.context import Context
from sqe_chain.flow.declaration import caller_line, declared
from sqe_chain.flow.fields import declared_key
from sqe_chain.flow.filtering import FilterSteps
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.joins import ChangeTable, JoinSteps
from sqe_chain.flow.kinds import kind_of
from sqe_chain.flow.nodes import (
    ChangesNode,
    DroppedNode,
    FilterNode,
    FlatMapNode,
    FunctionNode,
    KeyByNode,
    MapNode,
    MergeNode,
    Node,
    SideNode,
)
from sqe_chain.flow.publishing import PublishSteps
from sqe_chain.flow.shapes import Gives
from sqe_chain.flow.signatures import Emitted, KeyInContext, KeyOf, Made, Value
from sqe_chain.flow.stage_kind import StageKind
from sqe_chain.flow.windows import WindowSteps

if TYPE_CHECKING:
    from sqe_chain._proto.dropped_pb2 import Dropped
    from sqe_chain.flow.topology import Topology

Changed = TypeVar("Changed")


@dataclass(frozen=True, slots=True)
class Stream(
    AggregateSteps[Value],
    BatchSteps[Value],
    FilterSteps[Value],
    WindowSteps[Value],
    JoinSteps[Value],
    PublishSteps[Value],
    Generic[Value],
):
    """The output of a node: units with values of one type. May be used more than once. Functions may take the context as last argument."""

    flow: Topology
    node: Node

    @overload
    def map(self, function: Callable[[Value], Made]) -> Stream[Made]: ...

    @overload
    def map(self, function: Callable[[Value, Context], Made]) -> Stream[Made]: ...

    def map(self, function: UserFunction) -> Stream[Any]:
        """One value for each value: ``value -> value``.

        Raises:
            FlowError: it is not a function, or takes other arguments.
        """
        return self._apply(MapNode, function)

    @overload
    def filter(self, function: Callable[[Value], bool]) -> Stream[Value]: ...

    @overload
    def filter(self, function: Callable[[Value, Context], bool]) -> Stream[Value]: ...

    def filter(self, function: UserFunction) -> Stream[Value]:
        """Only the values for which a function is true: ``value -> bool``.

        Raises:
            FlowError: it is not a function, or takes other arguments.
        """
        return self._apply(FilterNode, function)

    @overload
    def flat_map(self, function: Callable[[Value], Iterable[Made]]) -> Stream[Made]: ...

    @overload
    def flat_map(self, function: Callable[[Value, Context], Iterable[Made]]) -> Stream[Made]: ...

    def flat_map(self, function: UserFunction) -> Stream[Any]:
        """Any number of values for each value: ``value -> values``.

        They all belong to the one input: it counts as a whole or not at all.

        Raises:
            FlowError: it is not a function, takes other arguments, or follows `changes()`.
        """
        return self._apply(FlatMapNode, function)

    @overload
    def key_by(self, key: str | KeyOf[Value]) -> Stream[Value]: ...

    @overload
    def key_by(self, key: KeyInContext[Value]) -> Stream[Value]: ...

    def key_by(self, key: UserFunction | str) -> Stream[Value]:
        """The same values under another key: ``value -> bytes | str``, or the name of a field; str is taken as UTF-8.

        Raises:
            FlowError: it is not a function, takes other arguments, values lack the field, or it follows `changes()`.
        """
        where = caller_line()
        function = declared_key(key, self._value_type(), where) or declared("key", key, 1, where)
        if self._follows_changes():
            raise FlowError(f"{where}: changes() may feed map, filter and to() only; to() takes a key")
        return self._then(KeyByNode, where, function=function)

    def merge(self, other: Stream[Made]) -> Stream[Value | Made]:
        """The units of both streams, in the order of their inputs.

        Raises:
            FlowError: a stream of another flow, or one after a stage, where the order would not be defined.
        """
        where = caller_line()
        if not isinstance(other, Stream):
            raise FlowError(f"{where}: merge needs a stream, got {other!r}")
        if other.flow is not self.flow:
            raise FlowError(f"{where}: a stream of flow {other.flow.name!r} cannot be merged here")
        for stream in (self, other):
            if stream._after_stage():  # noqa: SLF001 - of the same class
                raise FlowError(f"{where}: streams after a stage cannot be merged; merge before the stage")
        if other.node.index == self.node.index:
            raise FlowError(f"{where}: a stream cannot be merged with itself; every unit would count twice")
        return Stream(self.flow, self.flow.add(MergeNode, where, self.node, other.node))

    def stage(
        self,
        name: str,
        kind: StageKind | str,
        *,
        key: str | KeyOf[Value] | KeyInContext[Value] | None = None,
        store: str | None = None,
        buckets: int = 1,
        view: str | None = None,
        **settings: Any,  # noqa: ANN401 - whatever the kind takes
    ) -> CustomStage:
        """A stage of any kind: your own, or one of an installed package; see docs/extending.md.

        Args:
            name: stage name; permanent, rows are stored under it.
            kind: a `StageKind` of `sqe_chain.stages`, or the name of a kind.
            key: ``value -> bytes | str``, or the name of a field; without it the stream's key is kept.
            store: name of the store for this stage; by default the service's.
            buckets: as for `aggregate`; only for kinds that keep a state by key.
            view: as for `aggregate`; only for such kinds.
            settings: arguments of the kind, if it is given by name.

        Raises:
            FlowError: name clash, an unknown kind, a setting it does not take, or a stage after `changes()`.
        """
        where = caller_line()
        placed: dict[str, Any] = {"store": store, "key": key, "buckets": buckets, "view": view}
        return CustomStage(self.flow, self._stage(name, kind_of(kind, settings, where), where, **placed))

    def _apply(self, kind: type[FunctionNode], function: UserFunction) -> Stream[Any]:
        where = caller_line()
        gives: Gives = "many" if kind is FlatMapNode else "one"
        checked = declared(kind.word, function, 1, where, gives)
        if kind is FlatMapNode and self._follows_changes():
            raise FlowError(f"{where}: changes() may feed map, filter and to() only")
        return self._then(kind, where, function=checked)

    def _as_stream(self, node: Node) -> Stream[Any]:
        return Stream(self.flow, node)

    def _as_stage(self, node: Node) -> Stage[Any, Any]:
        return Stage(self.flow, node)

    def _as_filter(self, node: Node) -> Filter[Any]:
        return Filter(self.flow, node)

    def _as_windows(self, node: Node) -> WindowStage[Any]:
        return WindowStage(self.flow, node)

    def _then(self, kind: type[Node], where: str, **fields: Any) -> Stream[Any]:  # noqa: ANN401 - the fields of the node
        return Stream(self.flow, self.flow.add(kind, where, self.node, **fields))


@dataclass(frozen=True, slots=True)
class Stage(Stream[Emitted], Generic[Changed, Emitted]):
    """A keyed stage. As a stream it has what its fold emits; its first type argument is that of `changes()`."""

    def changes(self) -> Stream[Changed]:
        """The newest state of each key that changed, once a batch; None for a deleted state.

        May feed `map`, `filter` and `to`, but no further stage.
        """
        return self._then(ChangesNode, caller_line())


@dataclass(frozen=True, slots=True)
class Filter(Stream[Value], Generic[Value]):
    """A stateful filter. As a stream it has the values that pass."""

    def dropped(self) -> Stream[Dropped]:
        """One `Dropped` (proto/sqe_chain/v1/dropped.proto) for each record that is dropped, with the reason.

        Also for a record that passes after missing numbers (`gap`), or without a number (`malformed="pass"`). May feed
        the same as any stream after a stage.
        """
        return self._then(DroppedNode, caller_line())


@dataclass(frozen=True, slots=True)
class Changes(Filter["Change[Row]"], Generic[Row]):
    """The changes of a table in a database, each once. As a stream it has `Change` values, under the text of the table's key."""

    def deltas(self) -> Stream[Change[Row]]:
        """Each change as what it takes away and what it adds. An update is a "delete" of the row before and an "insert" of the new one.

        So a fold of `sign` times a column of `row` is what a query sums up over the table. Both have the keys of their own row,
        and count together or not at all.
        """
        return self.flat_map(deltas_of)

    def table(self) -> ChangeTable[Row]:
        """The table of its rows, for `join_table`: the last row of each key holds, until it is deleted."""
        return ChangeTable(self)


@dataclass(frozen=True, slots=True)
class WindowStage(Filter[Value], Generic[Value]):
    """Windows. As a stream they are the results that are final."""

    def changes(self) -> Stream[Value]:
        """Early results: once a batch, each window that the batch has opened or changed and that is still open, as it is then.

        May feed `map`, `filter` and `to`, but no further stage. Which windows come, and how often, depends on where batches
        end. The last state of a window, before it is final, has all its values so far.
        """
        return self._then(ChangesNode, caller_line())


@dataclass(frozen=True, slots=True)
class CustomStage(Stream[Any]):
    """A stage of any kind. As a stream it has the stage's output; type checkers do not know the type of the values."""

    def changes(self) -> Stream[Any]:
        """The newest state of each key that changed; see `Stage.changes`.

        Raises:
            FlowError: this kind of stage has none.
        """
        return self._side(ChangesNode)

    def dropped(self) -> Stream[Dropped]:
        """One `Dropped` for each record that is dropped; see `Filter.dropped`.

        Raises:
            FlowError: this kind of stage has none.
        """
        return self._side(DroppedNode)

    def _side(self, side: type[SideNode]) -> Stream[Any]:
        where, node = caller_line(), self.flow.so_far().stage_at(self.node.index)
        if side.side not in node.traits.sides:
            raise FlowError(f"{where}: a stage of kind {node.kind!r} has no {side.word}()")
        return self._then(side, where)
