"""The joins of a stream. Their kinds, in `sqe_chain.stages`, check the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Required, TypedDict, TypeVar, Unpack, overload

from sqe_chain.codecs.change import Change, Row
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import LateValues, caller_line, check_bool, declared_plain
from sqe_chain.flow.event_time import refuse_times
from sqe_chain.flow.fields import declared_value
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.kinds import kind_named
from sqe_chain.flow.part import StreamPart
from sqe_chain.flow.signatures import Made, TimeOf, Value
from sqe_chain.flow.stage_kind import STANDARD, StageKind

if TYPE_CHECKING:
    from sqe_chain.flow.stream import Filter, Stream

Other = TypeVar("Other")
How = Literal["inner", "left"]
"""Whether a value that finds no partner is skipped, or joined with None."""


@dataclass(frozen=True, slots=True)
class ChangeTable(Generic[Row]):
    """A table in a database, by its changes: see `Changes.table`."""

    changes: StreamPart[Change[Row]]


@dataclass(frozen=True, slots=True)
class _WithRow:
    """Calls a function with the row of a change in place of the change."""

    combine: Callable[[Any, Any], Any]

    def __call__(self, value: Any, change: Change[Any] | None) -> Any:  # noqa: ANN401 - see `join_table`
        return self.combine(value, None if change is None else change.after)


def _is_deleted(change: Change[Any]) -> bool:
    return change.after is None


class TableJoinOptions(TypedDict, Generic[Other], total=False):
    """What a join with a table may be given besides it."""

    deleted: Callable[[Other], bool] | None
    table_time: TimeOf[Other] | None
    history_ms: int
    late: LateValues
    static: bool
    guard: object
    store: str | None


class StreamJoinOptions(TypedDict, Generic[Value, Other], total=False):
    """What a join of two streams is given besides them."""

    before_ms: Required[int]
    after_ms: Required[int]
    time: TimeOf[Value] | None
    other_time: TimeOf[Other] | None
    lateness_ms: int
    late: LateValues
    guard: object
    store: str | None


class JoinSteps(StreamPart[Value]):
    """The joins of a stream with another one. Each is a stage: it has a name, states in a store, and is exact through crashes.

    Both streams have to be of the same flow, to have keys (`key_by`), and to have passed the same number of stages. What they
    bring is taken in one order of event time (docs/event-time.md).
    """

    __slots__ = ()

    def _joined(
        self,
        name: str,
        kind: StageKind,
        other: object,
        store: str | None,
        where: str,
        *,
        static: bool = False,
    ) -> Any:  # noqa: ANN401 - see `join_table` and `join_stream`
        if not isinstance(other, StreamPart) or other.flow is not self.flow:
            raise FlowError(
                f"{where}: {kind.traits.method} takes a second stream of the same flow, not {other!r}"
            )
        if other.node is self.node:
            raise FlowError(
                f"{where}: {kind.traits.method} of a stream with itself: put a map() or filter() before one of the two"
            )
        depths_of = self.flow.so_far().depths
        depths = [depths_of[stream.node.index] for stream in (self, other)]
        if depths[0] != depths[1]:
            raise FlowError(
                f"{where}: {kind.traits.method} takes streams that have passed the same number of stages. These have passed "
                f"{depths[0]} and {depths[1]}. Publish one of them, and read it in another flow"
            )
        other._check_stage(name, where)  # noqa: SLF001 - of the same class
        if static:
            self.flow.leave_out_times(other.node, where)
        return self._as_filter(self._stage(name, kind, where, store=store, others=(other.node,)))

    @overload
    def join_table(
        self,
        name: str,
        table: Stream[Other] | ChangeTable[Other],
        combine: Callable[[Value, Other], Made | None],
        *,
        how: Literal["inner"] = "inner",
        **options: Unpack[TableJoinOptions[Other]],
    ) -> Filter[Made]: ...

    @overload
    def join_table(
        self,
        name: str,
        table: Stream[Other] | ChangeTable[Other],
        combine: Callable[[Value, Other | None], Made | None],
        *,
        how: Literal["left"],
        **options: Unpack[TableJoinOptions[Other]],
    ) -> Filter[Made]: ...

    def join_table(  # noqa: PLR0913 - a declaration names what it needs
        self,
        name: str,
        table: Any,
        combine: Callable[[Any, Any], Any],
        *,
        how: How = "inner",
        deleted: Callable[[Any], bool] | None = None,
        time: None = None,
        table_time: Any = None,
        history_ms: int = 0,
        late: LateValues = "drop",
        static: bool = False,
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Any:
        """Join each value with the table's value of its key at its event time.

        Args:
            name: stage name; permanent.
            table: the table's changes, as a stream: the latest value of a key holds. A change joins nothing by itself. Or a table of a
                database (`Changes.table`): `combine` gets its rows.
            combine: ``(value, value of the table) -> output``; None for no output.
            how: "inner": what finds nothing gives nothing. "left": it is combined with None.
            deleted: ``change -> bool``: whether it deletes its key. A table of a database knows.
            time: refused: the values of the first stream are joined in the order of their inputs' times.
            table_time: as `time` of `windowed`, for the changes of the table.
            history_ms: how long older versions are kept, for values and changes of the table that are late.
            late: what becomes of later ones, as for `windowed`.
            static: it is reference data without history: the last value of a key holds, whatever the times. Values wait
                until the table is read to its end and silent. It comes from sources that nothing else takes.
            guard: as for `windowed`.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: a name clash, streams that do not fit together, or a stage after `changes()`.
        """
        where = caller_line()
        check_bool("static", static, where)
        refuse_times(time, f"{where}: stage {name!r}", "a table join goes")
        combined = declared_plain("combine", combine, 2, where)
        if isinstance(table, ChangeTable):
            if deleted is not None:
                raise FlowError(
                    f"{where}: stage {name!r}: deleted= is given beside a table of a database, which knows. Remove deleted="
                )
            table, combined, deleted = table.changes, DeclaredFunction(_WithRow(combine)), _is_deleted
        kind = kind_named("table-join")(
            combine=combined,
            how=how,
            deleted=None if deleted is None else declared_plain("deleted", deleted, 1, where),
            history_ms=history_ms,
            late=late,
            static=static,
            guard=guard,
            table_time=declared_value("table_time", table_time, _type_of(table), where),
        )
        return self._joined(name, kind, table, store, where, static=static)

    @overload
    def join_stream(
        self,
        name: str,
        other: Stream[Other],
        combine: Callable[[Value, Other], Made | None],
        *,
        how: Literal["inner"] = "inner",
        **options: Unpack[StreamJoinOptions[Value, Other]],
    ) -> Filter[Made]: ...

    @overload
    def join_stream(
        self,
        name: str,
        other: Stream[Other],
        combine: Callable[[Value, Other | None], Made | None],
        *,
        how: Literal["left"],
        **options: Unpack[StreamJoinOptions[Value, Other]],
    ) -> Filter[Made]: ...

    def join_stream(  # noqa: PLR0913 - a declaration names what it needs
        self,
        name: str,
        other: Any,
        combine: Callable[[Any, Any], Any],
        *,
        before_ms: int,
        after_ms: int,
        time: Any = None,
        other_time: Any = None,
        how: How = "inner",
        lateness_ms: int = 0,
        late: LateValues = "drop",
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Any:
        """Join values of two streams with the same key whose event times are close to each other, each pair once.

        Args:
            name: stage name; permanent.
            other: the second stream.
            combine: ``(value, value of the second stream) -> output``; None for no output.
            before_ms: how much earlier than a value its partner may be.
            after_ms: how much later.
            time: as for `windowed`, of the values of this stream.
            other_time: the same for the second stream.
            how: "inner": what finds no partner gives nothing. "left": it is combined with None, when none can come any more.
            lateness_ms: how late values may be.
            late: what becomes of later ones, as for `windowed`.
            guard: as for `windowed`.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: a name clash, streams that do not fit together, or a stage after `changes()`.
        """
        where = caller_line()
        kind = kind_named("stream-join")(
            combine=declared_plain("combine", combine, 2, where),
            how=how,
            before_ms=before_ms,
            after_ms=after_ms,
            lateness_ms=lateness_ms,
            late=late,
            guard=guard,
            time=declared_value("time", time, self._value_type(), where),
            other_time=declared_value("other_time", other_time, _type_of(other), where),
        )
        return self._joined(name, kind, other, store, where)


def _type_of(stream: object) -> type | None:
    return stream._value_type() if isinstance(stream, StreamPart) else None  # noqa: SLF001 - of the same class
