"""The windowed stage of a stream. Its kind, in `sqe_chain.stages`, checks the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, Unpack, overload

from sqe_chain.codecs import Codec
from sqe_chain.flow.context import Context
from sqe_chain.flow.declaration import LateValues, caller_line, declared, declared_fold, state_codec
from sqe_chain.flow.declared_aggregates import Aggregation, check_plain
from sqe_chain.flow.declared_stage import checked_key, declared_stage
from sqe_chain.flow.functions import (
    Condition,
    DeclaredFunction,
    KeyInContext,
    KeyOf,
    MessageState,
    State,
    UserFunction,
    Value,
)
from sqe_chain.flow.kinds import kind_named
from sqe_chain.flow.part import STREAMS, StreamPart
from sqe_chain.flow.stage_kind import STANDARD
from sqe_chain.ports import ViewKind

if TYPE_CHECKING:
    from sqe_chain._proto.window_result_pb2 import WindowResult
    from sqe_chain.codecs.window import Window
    from sqe_chain.flow.stream import WindowStage


class WindowOptions(TypedDict, Generic[Value, State], total=False):
    """What windows with a fold may be given besides their state."""

    fold: Required[Callable[[State, Value], None] | Callable[[State, Value, Context], None]]
    key: KeyOf[Value] | KeyInContext[Value] | None
    codec: Codec[State] | str | None
    merge: Callable[[State, State], None] | None
    lateness_ms: int
    late: LateValues
    retention_ms: int
    heartbeat: Condition[Value] | None
    guard: object
    store: str | None
    view: ViewKind | None


class WindowSteps(StreamPart[Value]):
    """The windowed stage of a stream."""

    __slots__ = ()

    @overload
    def windowed(  # type: ignore[overload-overlap]
        self,
        name: str,
        windows: object,
        *,
        state: type[MessageState],
        **options: Unpack[WindowOptions[Value, MessageState]],
    ) -> WindowStage[WindowResult]: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        state: type[State],
        **options: Unpack[WindowOptions[Value, State]],
    ) -> WindowStage[Window[State]]: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        key: str | KeyOf[Value] | KeyInContext[Value] | None = None,
        lateness_ms: int = 0,
        late: LateValues = "drop",
        retention_ms: int = 0,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        view: ViewKind | None = None,
        **aggregates: Aggregation,
    ) -> WindowStage[Window[Any]]: ...

    def windowed(  # type: ignore[misc]  # noqa: PLR0913 - mypy: `state` might name an aggregate
        self,
        name: str,
        windows: object,
        *,
        state: type[Any] | None = None,
        fold: UserFunction | None = None,
        key: UserFunction | str | None = None,
        codec: Codec[Any] | str | None = None,
        merge: UserFunction | None = None,
        lateness_ms: int = 0,
        late: LateValues = "drop",
        retention_ms: int = 0,
        heartbeat: UserFunction | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        view: ViewKind | None = None,
        **aggregates: Aggregation,
    ) -> Any:
        """Fold each value into the windows of its key that its event time lies in.

        When stream time has passed the end of a window plus the lateness, the window is final, and is emitted under its
        key: where the state is JSON, as a `Window` with the state; else as a `WindowResult`
        (proto/sqe_chain/v1/window_result.proto) with the state as its codec encodes it. Later values are dropped.

        Args:
            name: stage name; permanent.
            windows: `Tumbling`, `Hopping`, `Calendar` (days of a time zone) or `Sessions` of `sqe_chain.stages`.
            state: type of a window's state, as for `aggregate`; a new window begins with ``state()``.
            fold: ``(state, value) -> None``, or with the context as third argument: changes the state in place.
            key: ``value -> bytes | str``; without it the stream's key is kept. With declared aggregates it may be the name of a
                field, or a path such as ``"meta.robot"``.
            codec: of a window's state: a codec, or its name; by default the one that takes its type.
            merge: for sessions: ``(state, later) -> None``, called when a value joins two of them. Declared aggregates have theirs.
            lateness_ms: how long windows stay open for late values.
            late: what becomes of values that come later: "drop", they are dropped, counted, and given by `dropped()`; "stop", each is
                poison, so that the flow's policy decides.
            retention_ms: how long final windows are kept in the store, to be read (`sqe-chain state`).
            heartbeat: ``value -> bool``, or with the context as second argument. A value for which it is true is not
                folded. It moves stream time of every state partition to its event time (not beyond the service's
                clock), so that windows close although their inputs are silent.
            guard: as for `distinct`.
            store: name of the store for this stage; by default the service's.
            view: as for `aggregate`: also write each window, open or retained, in a form for programs without protobuf, under
                its key and its beginning (docs/stores.md).
            **aggregates: name -> `count`, `sum_`, `min_`, `max_`, `mean`, `first` or `last` of `sqe_chain.flow`, in place of
                `state`, `fold`, `codec` and `merge`.

        Raises:
            FlowError: name clash, a field that values do not have, or a stage after `changes()`.
        """
        where = caller_line()
        folded: DeclaredFunction
        if state is None and fold is None:
            key_of, states, folded, merge = declared_stage(
                name,
                "windowed",
                where,
                key=key,
                python_type=self._value_type(),
                aggregations=aggregates,
                refused={"codec": codec, "merge": merge},
                settings={
                    "lateness_ms": lateness_ms,
                    "late": late,
                    "retention_ms": retention_ms,
                    "heartbeat": heartbeat,
                    "guard": guard,
                    "store": store,
                    "view": view,
                },
            )
        else:
            check_plain(aggregates, "windowed", where)
            states = state_codec(name, state, codec, where)
            folded = declared_fold("fold", fold, states, where, "nothing")
            if merge is not None:
                declared_fold("merge", merge, states, where, "nothing")
            key_of = checked_key(key, where)
        kind = kind_named("windows")(
            windows=windows,
            states=states,
            fold=folded,
            merge=merge,
            lateness_ms=lateness_ms,
            late=late,
            retention_ms=retention_ms,
            beats=None if heartbeat is None else declared("heartbeat", heartbeat, 1, where),
            guard=guard,
            shown=view is not None,
        )
        return STREAMS["windows"](self.flow, self._stage(name, kind, where, store, key_of, view=view))
