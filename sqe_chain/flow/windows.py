"""The windowed stage of a stream. Its kind, in `sqe_chain.stages`, checks the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypedDict, Unpack, overload

from sqe_chain.codecs import Codec
from sqe_chain.flow.declaration import LateValues, caller_line, declared_if
from sqe_chain.flow.declared_aggregates import Aggregation
from sqe_chain.flow.declared_stage import FoldingStage
from sqe_chain.flow.fields import declared_value
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.kinds import kind_named
from sqe_chain.flow.part import StreamPart
from sqe_chain.flow.signatures import (
    Condition,
    KeyInContext,
    KeyOf,
    MessageState,
    State,
    TimeOf,
    Value,
    WindowFold,
    WindowFoldInContext,
    WindowFoldWithContext,
)
from sqe_chain.flow.stage_kind import STANDARD

if TYPE_CHECKING:
    from sqe_chain._proto.window_result_pb2 import WindowResult
    from sqe_chain.codecs.window import Window
    from sqe_chain.flow.stream import WindowStage


class WindowOptions(TypedDict, Generic[Value, State], total=False):
    """What windows may be given besides key, state and fold."""

    codec: Codec[State] | str | None
    merge: Callable[[State, State], None] | None
    time: TimeOf[Value] | None
    lateness_ms: int
    late: LateValues
    retention_ms: int
    heartbeat: Condition[Value] | None
    guard: object
    store: str | None
    view: str | None


class WindowSteps(StreamPart[Value]):
    """The windowed stage of a stream. Overloads are for lambdas, as for `aggregate`."""

    __slots__ = ()

    @overload
    def windowed(  # type: ignore[overload-overlap]
        self,
        name: str,
        windows: object,
        *,
        state: type[MessageState],
        fold: WindowFold[MessageState, Value] | WindowFoldWithContext[MessageState, Value],
        key: str | KeyOf[Value] | None = None,
        **options: Unpack[WindowOptions[Value, MessageState]],
    ) -> WindowStage[WindowResult]: ...

    @overload
    def windowed(  # type: ignore[overload-overlap]
        self,
        name: str,
        windows: object,
        *,
        state: type[MessageState],
        fold: WindowFold[MessageState, Value] | WindowFoldInContext[MessageState, Value],
        key: KeyInContext[Value],
        **options: Unpack[WindowOptions[Value, MessageState]],
    ) -> WindowStage[WindowResult]: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        state: type[State],
        fold: WindowFold[State, Value] | WindowFoldWithContext[State, Value],
        key: str | KeyOf[Value] | None = None,
        **options: Unpack[WindowOptions[Value, State]],
    ) -> WindowStage[Window[State]]: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        state: type[State],
        fold: WindowFold[State, Value] | WindowFoldInContext[State, Value],
        key: KeyInContext[Value],
        **options: Unpack[WindowOptions[Value, State]],
    ) -> WindowStage[Window[State]]: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        key: str | KeyOf[Value] | None = None,
        time: TimeOf[Value] | None = None,
        lateness_ms: int = 0,
        late: LateValues = "drop",
        retention_ms: int = 0,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        view: str | None = None,
        **aggregates: Aggregation,
    ) -> WindowStage[Window[Any]]: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        key: KeyInContext[Value],
        time: TimeOf[Value] | None = None,
        lateness_ms: int = 0,
        late: LateValues = "drop",
        retention_ms: int = 0,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        view: str | None = None,
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
        time: UserFunction | str | None = None,
        lateness_ms: int = 0,
        late: LateValues = "drop",
        retention_ms: int = 0,
        heartbeat: UserFunction | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        view: str | None = None,
        **aggregates: Aggregation,
    ) -> Any:
        """Fold each value into the windows of its key that its event time lies in.

        When stream time has passed the end of a window plus the lateness, the window is final, and is emitted under its
        key: where the state is JSON, as a `Window` with the state; else as a `WindowResult`
        (proto/sqe_chain/v1/window_result.proto) with the encoded state. Later values are dropped.

        Args:
            name: stage name; permanent.
            windows: `Tumbling`, `Hopping`, `Calendar` (days of a time zone) or `Sessions` of `sqe_chain.stages`.
            state: type of a window's state, as for `aggregate`.
            fold: ``(state, value) -> None``: changes the state.
            key: as for `aggregate`.
            codec: as for `aggregate`.
            merge: for sessions: ``(state, later) -> None``, called when a value joins two. Declared aggregates have theirs.
            time: ``value -> time``, or the name of a field: the event time of each value, where one input gives values of several
                times. It is given as for `Flow.source`. Without it, a value has the time of its input (docs/exploded-times.md).
            lateness_ms: how long windows stay open for late values.
            late: what becomes of later values. "drop": the stage drops and counts them, and `dropped()` has them. With "stop"
                each is poison, so that the flow's policy decides.
            retention_ms: how long the store keeps final windows, to be read (`sqe-chain state`).
            heartbeat: ``value -> bool``. A value for which it is true is not
                folded. It moves stream time of every state partition to its event time (not beyond the service's
                clock). So windows close although their inputs are silent.
            guard: as for `deduplicate_by_key`. "standard": 31 days, and `hold`.
            store: name of the store for this stage; by default the service's.
            view: as for `aggregate`, for each window, open or retained, under its key and its beginning (docs/stores.md).
            **aggregates: as for `aggregate`, in place of `state`, `fold`, `codec` and `merge`.

        Raises:
            FlowError: a name exists, a setting is wrong, values lack a field, or a stage would follow `changes()`.
        """
        where = caller_line()
        timed: dict[str, Any] = {
            "lateness_ms": lateness_ms, "late": late, "retention_ms": retention_ms, "guard": guard,
        }  # fmt: skip
        placed: dict[str, Any] = {"store": store, "view": view}
        parts = FoldingStage(name, "windowed", where, "nothing", self._value_type()).folding(
            aggregates,
            state,
            fold,
            codec,
            own={"merge": merge},
            settings={**timed, "heartbeat": heartbeat, "time": time, **placed},
        )
        kind = kind_named("windows")(
            windows=windows,
            states=parts.states,
            fold=parts.fold,
            merge=parts.own.get("merge"),
            beats=declared_if("heartbeat", heartbeat, where),
            shown=view is not None,
            time=declared_value("time", time, self._value_type(), where),
            **timed,
        )
        return self._as_windows(self._stage(name, kind, where, key=key, **placed))
