"""How a stream declares a stage with windows. Data only; the stage is in `sqe_chain.stages`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.context import Context
from sqe_chain.flow.declaration import (
    check_callable,
    check_duration,
    check_windows,
    place,
    state_codec,
    wants_context,
)
from sqe_chain.flow.filtering import STANDARD, FilterSpec, guarded
from sqe_chain.flow.functions import Condition, KeyInContext, KeyOf, State, UserFunction, Value

Windowed = TypeVar("Windowed")
"""What a declared stage with windows is: a stream of their results."""


class WindowSteps(Generic[Value, Windowed]):
    """The stage with windows of a stream."""

    __slots__ = ()

    def _windowed(
        self, name: str, spec: FilterSpec, store: str | None, where: str, key: UserFunction | None
    ) -> Windowed:
        raise NotImplementedError

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        state: type[State],
        fold: Callable[[State, Value], None],
        key: KeyOf[Value] | None = None,
        codec: Codec[State] | str | None = None,
        merge: Callable[[State, State], None] | None = None,
        lateness_ms: int = 0,
        retention_ms: int = 0,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Windowed: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        state: type[State],
        fold: Callable[[State, Value, Context], None],
        key: KeyOf[Value] | None = None,
        codec: Codec[State] | str | None = None,
        merge: Callable[[State, State], None] | None = None,
        lateness_ms: int = 0,
        retention_ms: int = 0,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Windowed: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        state: type[State],
        fold: Callable[[State, Value], None],
        key: KeyInContext[Value],
        codec: Codec[State] | str | None = None,
        merge: Callable[[State, State], None] | None = None,
        lateness_ms: int = 0,
        retention_ms: int = 0,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Windowed: ...

    @overload
    def windowed(
        self,
        name: str,
        windows: object,
        *,
        state: type[State],
        fold: Callable[[State, Value, Context], None],
        key: KeyInContext[Value],
        codec: Codec[State] | str | None = None,
        merge: Callable[[State, State], None] | None = None,
        lateness_ms: int = 0,
        retention_ms: int = 0,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Windowed: ...

    def windowed(  # noqa: PLR0913 - a declaration names what it needs
        self,
        name: str,
        windows: object,
        *,
        state: type[Any],
        fold: UserFunction,
        key: UserFunction | None = None,
        codec: Codec[Any] | str | None = None,
        merge: UserFunction | None = None,
        lateness_ms: int = 0,
        retention_ms: int = 0,
        heartbeat: UserFunction | None = None,
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Windowed:
        """Fold each value into the windows of its key that its event time lies in.

        When stream time has passed the end of a window, and the lateness, it is final: then it goes on as a
        `WindowResult` (proto/sqe_chain/v1/window_result.proto) under its key. What comes later is dropped.

        Args:
            name: stage name; permanent.
            windows: `Tumbling`, `Hopping` or `Sessions` of `sqe_chain.stages.windowing`.
            state: type of what a window holds, as for `aggregate`; a new one begins with ``state()``.
            fold: ``(state, value) -> None``, or with the context as third argument: changes the state in place.
            key: ``value -> bytes | str``; without it the stream's key is kept.
            codec: of what a window holds: a codec, or its name; by default the one that takes its type.
            merge: for sessions: ``(state, later) -> None``, when a value joins two of them.
            lateness_ms: how long windows stay open for values that come late.
            retention_ms: how long final windows are kept in the store, to be read: `sqe-chain state`.
            heartbeat: ``value -> bool``, or with the context as second argument: such a value is folded nowhere. It
                moves stream time of every state partition to its event time (not beyond the service's clock), so
                that windows close although their inputs are silent.
            guard: as for `distinct`.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: name clash, or a stage behind `changes()`.
        """
        where = place()
        if check_windows(windows, where, overlap=True).join and merge is None:
            raise FlowError(
                f"{where}: sessions need merge: a record between two of them makes one of their states"
            )
        found = state_codec(name, state, codec, where)
        check_duration("lateness_ms", lateness_ms, where)
        check_duration("retention_ms", retention_ms, where)
        for what, function in (("fold", fold), ("key", key), ("merge", merge), ("heartbeat", heartbeat)):
            if function is not None or what == "fold":
                check_callable(what, function, where)
        settings = {
            "windows": windows,
            "state": found,
            "merge": merge,
            "lateness_ms": lateness_ms,
            "retention_ms": retention_ms,
        } | guarded(guard, where, windows=True)
        spec = FilterSpec(
            "windows",
            "key",
            settings,
            fold,
            wants_context(fold, 2, where),
            heartbeat=heartbeat,
            heartbeat_takes_context=wants_context(heartbeat, 1, where),
        )
        return self._windowed(name, spec, store, where, key)
