"""The keyed aggregate of a stream. Its kinds, in `sqe_chain.stages`, check the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Never, TypedDict, Unpack, overload

from sqe_chain.codecs import Codec
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import caller_line, declared, declared_fold, state_codec
from sqe_chain.flow.declared_aggregates import Aggregation, check_plain
from sqe_chain.flow.declared_stage import checked_key, declared_stage
from sqe_chain.flow.functions import (
    Condition,
    DeclaredFunction,
    Emitted,
    Fold,
    FoldInContext,
    KeyInContext,
    KeyOf,
    OnTimer,
    OnTimerInContext,
    State,
    UserFunction,
    Value,
)
from sqe_chain.flow.kinds import kind_named
from sqe_chain.flow.part import STREAMS, StreamPart
from sqe_chain.flow.stage_kind import STANDARD
from sqe_chain.ports import ViewKind

if TYPE_CHECKING:
    from sqe_chain.flow.stream import Stage


class StateOptions(TypedDict, Generic[Value, State], total=False):
    """What an aggregate may be given besides state and fold."""

    key: KeyOf[Value] | KeyInContext[Value] | None
    codec: Codec[State] | str | None
    store: str | None
    buckets: int
    view: ViewKind | None


class TimedOptions(TypedDict, Generic[Value, State], total=False):
    """What an aggregate that goes by event time may be given besides state, fold and timers."""

    key: KeyOf[Value] | KeyInContext[Value] | None
    codec: Codec[State] | str | None
    expire_after_ms: int | None
    heartbeat: Condition[Value] | None
    guard: object
    store: str | None


class AggregateSteps(StreamPart[Value]):
    """The keyed aggregate of a stream."""

    __slots__ = ()

    @overload
    def aggregate(
        self,
        name: str,
        *,
        state: type[State],
        fold: Fold[State, Value, Emitted],
        **options: Unpack[StateOptions[Value, State]],
    ) -> Stage[State, Emitted]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        state: type[State],
        fold: FoldInContext[State, Value, Emitted],
        **options: Unpack[StateOptions[Value, State]],
    ) -> Stage[State | None, Emitted]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        state: type[State],
        fold: Fold[State, Value, Emitted] | FoldInContext[State, Value, Emitted],
        on_timer: OnTimer[State, Emitted] | OnTimerInContext[State, Emitted] | None = None,
        **options: Unpack[TimedOptions[Value, State]],
    ) -> Stage[State | None, Emitted]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        key: str | KeyOf[Value] | KeyInContext[Value] | None = None,
        store: str | None = None,
        buckets: int = 1,
        view: ViewKind | None = None,
        **aggregates: Aggregation,
    ) -> Stage[Any, Never]: ...

    @overload
    def aggregate(
        self,
        name: str,
        *,
        key: str | KeyOf[Value] | KeyInContext[Value] | None = None,
        expire_after_ms: int,
        heartbeat: Condition[Value] | None = None,
        guard: object = STANDARD,
        store: str | None = None,
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
        view: ViewKind | None = None,
        **aggregates: Aggregation,
    ) -> Stage[Any, Any]:
        """A keyed stage: fold each value into the state of its key.

        Either with a state and a fold of your own, or with declared aggregates, each named: ``events=count(),
        screws=sum_("screws")``. Their state has a field for each of them (docs/payloads.md), and their fold is generated.

        With `on_timer` or `expire_after_ms` values are folded in the order of their event times (docs/event-time.md), and
        the stage is of another kind: one that is declared without them first needs another name.

        Args:
            name: stage name; permanent, states are stored under it.
            state: type of the states: a protobuf message, a `msgspec.Struct`, a dataclass, dict or list; a new key
                starts with ``state()``.
            fold: ``(state, value) -> None | iterable of values``: changes the state in place and may
                emit values to the operators after the stage. It may take the context as third argument, and then
                delete the state with ``context.delete_state()``.
            key: ``value -> bytes | str``; without it the stream's key is kept. With declared aggregates it may be the name of a
                field, or a path such as ``"meta.robot"``.
            codec: of the states: a codec, or its name; by default the one that takes their type.
            on_timer: ``(state, timer) -> None | iterable of values``, or with the context as third argument: called when
                event time reaches a timer that the fold has set with ``context.set_timer(at_ms)``. It may do what a fold may.
            expire_after_ms: how long, in event time, a state stays without a value; 1 to 10**15.
            heartbeat: with timers or expiry: ``value -> bool``, or with the context as second argument. A value for which it
                is true is not folded. It moves event time of every state partition, as for `windowed`.
            guard: with timers or expiry: of event time, as for `distinct`.
            store: name of the store for this stage; by default the service's.
            buckets: into how many buckets each state partition is split in the store, each with a header
                of its own, so that no partition of a Cassandra table grows beyond some 100,000 keys.
                Permanent, like the flow's number of state partitions. Not with timers or expiry.
            view: also write each state, in the same atomic operation, in a form for programs without protobuf: as
                "json", or as a "hash" of its fields where the store has hashes (Redis). A key's view is written when
                the key changes. Not with timers or expiry.
            **aggregates: name -> `count`, `sum_`, `min_`, `max_`, `mean`, `first` or `last` of `sqe_chain.flow`, in place of
                `state`, `fold`, `codec` and `on_timer`.

        Raises:
            FlowError: name clash, not a type of states, a wrong number of buckets, an unknown view, a field that values do not have, settings that do not go
                together, or a stage after `changes()`.
        """
        where = caller_line()
        folded: DeclaredFunction
        if state is None and fold is None:
            key_of, states, folded, _ = declared_stage(
                name,
                "aggregate",
                where,
                key=key,
                python_type=self._value_type(),
                aggregations=aggregates,
                refused={"codec": codec, "on_timer": on_timer},
                settings={
                    "expire_after_ms": expire_after_ms,
                    "heartbeat": heartbeat,
                    "guard": guard,
                    "store": store,
                    "buckets": buckets,
                    "view": view,
                },
            )
        else:
            check_plain(aggregates, "aggregate", where)
            states = state_codec(name, state, codec, where)
            folded = declared_fold("fold", fold, states, where, "many")
            key_of = checked_key(key, where)
        if on_timer is None and expire_after_ms is None:
            _check_untimed(heartbeat, guard, where)
            kind = kind_named("aggregate")(fold=folded, states=states)
        elif buckets != 1 or view is not None:
            raise FlowError(
                f"{where}: buckets and view are for aggregates without timers and expiry; leave out buckets= and view=, or "
                "on_timer= and expire_after_ms="
            )
        else:
            fires = None if on_timer is None else declared_fold("on_timer", on_timer, states, where, "many")
            kind = kind_named("timers")(
                fold=folded,
                states=states,
                on_timer=fires,
                expire_after_ms=expire_after_ms,
                beats=None if heartbeat is None else declared("heartbeat", heartbeat, 1, where),
                guard=guard,
            )
        node = self._stage(name, kind, where, store, key_of, buckets, view)
        found: Stage[Any, Any] = STREAMS["stage"](self.flow, node)
        return found


def _check_untimed(heartbeat: object, guard: object, where: str) -> None:
    for setting, is_set in (("heartbeat", heartbeat is not None), ("guard", guard != STANDARD)):
        if is_set:
            raise FlowError(
                f"{where}: {setting}= is for aggregates that go by event time: give on_timer= or expire_after_ms= too, or leave it out"
            )
