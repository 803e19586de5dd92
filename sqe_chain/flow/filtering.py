"""How a stream declares stages that drop what was said before; kinds in `sqe_chain.stages` check their settings."""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, TypeVar

from sqe_chain.flow.declaration import check_choice, check_duration, check_guard, declared, place
from sqe_chain.flow.functions import IdOf, NumberOf, Value
from sqe_chain.flow.kinds import kind_named
from sqe_chain.flow.stage_kind import StageKind

Filtered = TypeVar("Filtered")
"""What a declared filter is: a stream of the same values."""

DAY_MS = 86_400_000
MAX_WINDOW: Final = 65_536
"""Of sequence numbers known one by one: 8 KiB for each scope."""

STANDARD: Final = "standard"
"""The guard that a stage has by itself."""


class FilterSteps(Generic[Value, Filtered]):
    """The filters of a stream. Each is a stage: it has a name, states in a store, and is exact through crashes.

    What it gives are the records that go on, under the keys that they had. `Filter.dropped` gives the others.
    """

    __slots__ = ()

    def _filtered(self, name: str, kind: StageKind, store: str | None, where: str) -> Filtered:
        raise NotImplementedError

    def drop_replays(
        self,
        name: str,
        *,
        by: Literal["source", "key"] = "source",
        expiry_ms: int = 2 * DAY_MS,
        compat: Literal["sqe", "kuka"] | None = None,
        store: str | None = None,
    ) -> Filtered:
        """Drop what a producer or a service on the way has said before, at other offsets.

        Args:
            name: stage name; permanent, states are stored under it.
            by: "source": records carry SQE's record key, and what is not beyond the highest offset of its
                producer is dropped (`sqe_chain.stages.replays`). "key": of each key, what is not beyond the
                last root position is dropped, whatever path it took (`sqe_chain.stages.root_replays`); right
                only where each key's events keep their root's order.
            expiry_ms: of a producer that is not heard of any more; for "source" only.
            compat: exactly what SQE ("source") or KUKA ("key") did.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: name clash, an unknown choice, or a stage behind `changes()`.
        """
        where = place()
        check_choice("by", by, ("source", "key"), where)
        check_duration("expiry_ms", expiry_ms, where)
        kind = (
            kind_named("roots")(compat=compat)
            if by == "key"
            else kind_named("replays")(expiry_ms=expiry_ms, compat=compat)
        )
        return self._filtered(name, kind, store, where)

    def drop_stale(
        self,
        name: str,
        *,
        sequence: NumberOf[Value],
        scope: Literal["partition", "lane", "key"] = "partition",
        epoch: NumberOf[Value] | None = None,
        malformed: Literal["stop", "drop", "pass", "dead_letter"] = "stop",
        window: int = 0,
        compat: Literal["juplo"] | None = None,
        store: str | None = None,
    ) -> Filtered:
        """Drop what is not beyond the highest sequence number of its scope; see `sqe_chain.stages.sequences`.

        Args:
            name: stage name; permanent.
            sequence: ``value -> int``, or with the context as second argument, for numbers in keys and headers.
            scope: within what numbers rise: the input partition, the lane, or the key.
            epoch: the same for the producer's epoch: a greater one begins anew.
            malformed: what becomes of a record without a number.
            window: so many numbers below the highest are still accepted, once each, when they come late.
            compat: exactly what juplo's deduplicator did.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: name clash, an unknown choice, or a stage behind `changes()`.
        """
        where = place()
        kind = kind_named("sequences")(
            sequence=declared("sequence", sequence, 1, where),
            scope=scope,
            epoch=None if epoch is None else declared("epoch", epoch, 1, where),
            malformed=malformed,
            window=window,
            compat=compat,
        )
        return self._filtered(name, kind, store, where)

    def deduplicate_by_key(
        self,
        name: str,
        interval_ms: int,
        *,
        late: Literal["forward", "drop"] = "forward",
        guard: object = STANDARD,
        compat: Literal["kip655"] | None = None,
        store: str | None = None,
    ) -> Filtered:
        """Of records with the same key within an interval of event time, the first goes on (KIP-655).

        Args:
            name: stage name; permanent.
            interval_ms: milliseconds before and after the first; both ends belong to it.
            late: what becomes of records older than stream time less the interval.
            guard: how far ahead of the others one record's event time may be, and what becomes of one that is
                farther: a `JumpGuard` of `sqe_chain.stages`. "standard": a day, and `hold`. None: every time is
                believed.
            compat: exactly what the KIP says.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: name clash, an interval below 0, or a stage behind `changes()`.
        """
        where = place()
        settings = {"interval_ms": interval_ms, "late": late, "guard": guard, "compat": compat}
        kind = kind_named("deduplicate")(by_id=False, id=None, **settings)
        return self._filtered(name, kind, store, where)

    def deduplicate_by_key_value(
        self,
        name: str,
        id: IdOf[Value],  # noqa: A002 - the KIP's word
        interval_ms: int,
        *,
        late: Literal["forward", "drop"] = "forward",
        guard: object = STANDARD,
        compat: Literal["kip655"] | None = None,
        store: str | None = None,
    ) -> Filtered:
        """The same for records with the same key and the same id.

        Args:
            name: stage name; permanent.
            id: ``value -> bytes | str | None``, or with the context as second argument; None: no duplicate.
            interval_ms: see `deduplicate_by_key`, like the rest.
            late: see there.
            guard: see there.
            compat: see there.
            store: see there.

        Raises:
            FlowError: see there.
        """
        where = place()
        settings = {"interval_ms": interval_ms, "late": late, "guard": guard, "compat": compat}
        kind = kind_named("deduplicate")(by_id=False, id=declared("id", id, 1, where), **settings)
        return self._filtered(name, kind, store, where)

    def deduplicate(
        self,
        name: str,
        id: IdOf[Value],  # noqa: A002 - the KIP's word
        interval_ms: int,
        *,
        late: Literal["forward", "drop"] = "forward",
        guard: object = STANDARD,
        compat: Literal["kip655"] | None = None,
        store: str | None = None,
    ) -> Filtered:
        """The same for records with the same id, whatever their keys.

        Args:
            name: stage name; permanent.
            id: ``value -> bytes | str | None``, or with the context as second argument; None: no duplicate.
            interval_ms: see `deduplicate_by_key`, like the rest.
            late: see there.
            guard: see there.
            compat: see there.
            store: see there.

        Raises:
            FlowError: see there.
        """
        where = place()
        settings = {"interval_ms": interval_ms, "late": late, "guard": guard, "compat": compat}
        kind = kind_named("deduplicate")(by_id=True, id=declared("id", id, 1, where), **settings)
        return self._filtered(name, kind, store, where)

    def distinct(
        self,
        name: str,
        windows: object,
        *,
        grace_ms: int = 0,
        late: Literal["drop", "forward"] = "drop",
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Filtered:
        """The first record of each key in each window goes on (the alternative that KIP-655 rejected).

        Args:
            name: stage name; permanent.
            windows: `Tumbling` or `Sessions` of `sqe_chain.stages.windowing`.
            grace_ms: how long after its end a window still knows what it had.
            late: what becomes of records behind that.
            guard: as for `deduplicate_by_key`, but it can only drop or stop. "standard": 31 days, and `drop`.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: name clash, or a stage behind `changes()`.
        """
        where = place()
        kind = kind_named("distinct")(windows=windows, grace_ms=grace_ms, late=late, guard=guard)
        return self._filtered(name, kind, store, where)


def guard_setting(guard: object, where: str, *, windows: bool) -> dict[str, Any]:
    """The setting of a stage for its guard; nothing for the standard one.

    Raises:
        FlowError: it is no guard.
    """
    if guard == STANDARD:
        return {}
    check_guard(guard, where, windows=windows)
    return {"guard": guard}
