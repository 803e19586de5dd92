"""The keyed aggregate of a stream. Its kinds, in `sqe_chain.stages`, check the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Never, TypedDict, Unpack, overload

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import caller_line, declared_if
from sqe_chain.flow.declared_aggregates import Aggregation
from sqe_chain.flow.declared_stage import Folding, FoldingStage
from sqe_chain.flow.event_time import refuse_times
from sqe_chain.flow.functions import UserFunction
from sqe_chain.flow.kinds import kind_named
from sqe_chain.flow.part import StreamPart
from sqe_chain.flow.signatures import (
    Condition,
    Emitted,
    Fold,
    FoldInContext,
    KeyInContext,
    KeyOf,
    OnTimer,
    OnTimerInContext,
    State,
    Value,
)
from sqe_chain.flow.stage_kind import STANDARD, StageKind

if TYPE_CHECKING:
    from sqe_chain.flow.stream import Stage


class StateOptions(TypedDict, Generic[State], total=False):
    """What an aggregate may be given besides key, state and fold."""

    codec: Codec[State] | str | None
    store: str | None
    buckets: int
    view: str | None


class TimedOptions(StateOptions[State], Generic[Value, State], total=False):
    """What one that goes by event time may be given besides timers."""

    expire_after_ms: int | None
    heartbeat: Condition[Value] | None
    guard: object


class AggregateSteps(StreamPart[Value]):
    """The keyed aggregate of a stream.

    Overloads with `KeyInContext` are for lambdas with two parameters: mypy infers parameters for one type of functions only.
    """

    __slots__ = ()

    @overload
    def aggregate(
        self,
        name: str,
        *,
        state: type[State],
        fold: Fold[State, Value, Emitted],
        key: str | KeyOf[Value] | None = None,
        **options: Unpack[StateOptions[State]],
    ) -> Stage[State, Emitted]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        state: type[State],
        fold: Fold[State, Value, Emitted] | FoldInContext[State, Value, Emitted],
        key: str | KeyOf[Value] | None = None,
        on_timer: OnTimer[State, Emitted] | OnTimerInContext[State, Emitted] | None = None,
        **options: Unpack[TimedOptions[Value, State]],
    ) -> Stage[State | None, Emitted]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        state: type[State],
        fold: Fold[State, Value, Emitted],
        key: KeyInContext[Value],
        **options: Unpack[StateOptions[State]],
    ) -> Stage[State, Emitted]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        state: type[State],
        fold: Fold[State, Value, Emitted] | FoldInContext[State, Value, Emitted],
        key: KeyInContext[Value],
        on_timer: OnTimer[State, Emitted] | OnTimerInContext[State, Emitted] | None = None,
        **options: Unpack[TimedOptions[Value, State]],
    ) -> Stage[State | None, Emitted]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        key: str | KeyOf[Value] | None = None,
        expire_after_ms: int | None = None,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        buckets: int = 1,
        view: str | None = None,
        **aggregates: Aggregation,
    ) -> Stage[Any, Never]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        key: KeyInContext[Value],
        expire_after_ms: int | None = None,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        buckets: int = 1,
        view: str | None = None,
        **aggregates: Aggregation,
    ) -> Stage[Any, Never]: ...

    def aggregate(  # type: ignore[misc]  # noqa: PLR0913 - mypy: `state` might name an aggregate
        self,
        name: str,
        *,
        state: type[Any] | None = None,
        fold: UserFunction | None = None,
        key: UserFunction | str | None = None,
        codec: Codec[Any] | str | None = None,
        on_timer: UserFunction | None = None,
        expire_after_ms: int | None = None,
        heartbeat: UserFunction | None = None,
        guard: object = STANDARD,
        store: str | None = None,
        buckets: int = 1,
        view: str | None = None,
        **aggregates: Aggregation,
    ) -> Stage[Any, Any]:
        """A keyed stage: fold each value into the state of its key.

        Either give a state and a fold, or declare aggregates by name: ``events=count(), screws=sum_("screws")``. Their state
        has a field for each (docs/payloads.md), and their fold is generated. With `on_timer` or `expire_after_ms`, values are
        folded in the order of event time (docs/event-time.md); a stage that had neither needs a new name then.

        Args:
            name: stage name; permanent, states are stored under it.
            state: type of the states: a protobuf message, a `msgspec.Struct`, a dataclass, dict or list. A new key
                starts with ``state()``.
            fold: ``(state, value) -> None | iterable of values``: changes the state, and may emit values to the
                operators after the stage. ``context.delete_state()`` deletes the state.
            key: ``value -> bytes | str``; or the name of a field, or a path such as ``"meta.robot"``; by default the
                stream's key.
            codec: of the states: a codec, or its name; by default the one that takes their type.
            on_timer: ``(state, timer) -> None | iterable of values``: called when
                a timer is due that the fold has set with ``context.set_timer(at_ms)``. It may do what a fold may.
            expire_after_ms: how long, in event time, a state stays without a value; 1 to 10**15.
            heartbeat: with timers or expiry: as for `windowed`.
            guard: with timers or expiry: as for `windowed`.
            store: name of the store for this stage; by default the service's.
            buckets: the number of buckets of each state partition in the store, so that no partition of a Cassandra table
                grows beyond some 100,000 keys. Permanent. Not with timers or expiry.
            view: write each changed state in the same atomic operation also for other programs: as "json", or as a "hash" of
                its fields (Redis). Any other name is that of a table with typed columns (PostgreSQL, docs/stores.md). Not with
                timers or expiry.
            **aggregates: name -> `count`, `sum_`, `min_`, `max_`, `mean`, `first` or `last` of `sqe_chain.flow`, in place of
                `state`, `fold`, `codec` and `on_timer`.

        Raises:
            FlowError: a name exists, a setting is wrong, arguments do not go together, values lack a field, or a stage would
                follow `changes()`.
        """
        where = caller_line()
        if not isinstance(aggregates.get("time"), Aggregation):
            refuse_times(aggregates.get("time"), f"{where}: stage {name!r}", "timers and expiry go")
        timed = {"expire_after_ms": expire_after_ms, "heartbeat": heartbeat, "guard": guard}
        placed: dict[str, Any] = {"store": store, "buckets": buckets, "view": view}
        parts = FoldingStage(name, "aggregate", where, "many", self._value_type()).folding(
            aggregates,
            state,
            fold,
            codec,
            own={"on_timer": on_timer},
            settings={**timed, **placed},
        )
        kind = _kind(parts, timed, placed, where)
        return self._as_stage(self._stage(name, kind, where, key=key, **placed))


def _kind(parts: Folding, timed: Mapping[str, Any], placed: Mapping[str, object], where: str) -> StageKind:
    heartbeat, guard, on_timer = timed["heartbeat"], timed["guard"], parts.own.get("on_timer")
    if on_timer is None and timed["expire_after_ms"] is None:
        for setting, is_set in (("heartbeat", heartbeat is not None), ("guard", guard != STANDARD)):
            if is_set:
                raise FlowError(
                    f"{where}: {setting}= is for aggregates that go by event time: give on_timer= or expire_after_ms= too, or leave it out"
                )
        return kind_named("aggregate")(fold=parts.fold, states=parts.states)
    if placed["buckets"] != 1 or placed["view"] is not None:
        raise FlowError(
            f"{where}: buckets and view are for aggregates without timers and expiry. Remove buckets= and view=, or "
            "on_timer= and expire_after_ms="
        )
    return kind_named("timers")(
        fold=parts.fold,
        states=parts.states,
        on_timer=on_timer,
        expire_after_ms=timed["expire_after_ms"],
        beats=declared_if("heartbeat", heartbeat, where),
        guard=guard,
    )
