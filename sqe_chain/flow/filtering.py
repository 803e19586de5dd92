"""How a stream declares stages that drop what was said before. Data only; the stages are in `sqe_chain.stages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import (
    check_callable,
    check_choice,
    check_duration,
    check_guard,
    check_int,
    check_windows,
    place,
    wants_context,
)
from sqe_chain.flow.functions import IdOf, NumberOf, UserFunction, Value

FilterKind = Literal["replays", "roots", "sequences", "deduplicate", "distinct", "windows"]
Spread = Literal["key", "partition", "lane", "id"]
Filtered = TypeVar("Filtered")
"""What a declared filter is: a stream of the same values."""

DAY_MS = 86_400_000
MAX_WINDOW: Final = 65_536
"""Of sequence numbers known one by one: 8 KiB for each scope."""
_METHODS: Final[Mapping[FilterKind, str]] = {
    "replays": "drop_replays",
    "roots": "drop_replays",
    "sequences": "drop_stale",
    "deduplicate": "deduplicate",
    "distinct": "distinct",
    "windows": "windowed",
}

STANDARD: Final = "standard"
"""The guard that a stage has by itself."""


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """One declared filter.

    Attributes:
        kind: which stage does it.
        spread: what decides the state partition of a record: its key, the input partition or lane that it came
            from, or its id.
        settings: arguments of the stage.
        function: the user's function for the id or the sequence number, or the fold of windows; None: there is
            none.
        takes_context: whether it wants the context as second argument.
        epoch: the user's function for the producer's epoch.
        epoch_takes_context: whether that wants the context.
        heartbeat: of windows: the user's function that says of a value whether it only moves stream time.
        heartbeat_takes_context: whether that wants the context.
    """

    kind: FilterKind
    spread: Spread
    settings: Mapping[str, object] = field(default_factory=dict)
    function: UserFunction | None = None
    takes_context: bool = False
    epoch: UserFunction | None = None
    epoch_takes_context: bool = False
    heartbeat: UserFunction | None = None
    heartbeat_takes_context: bool = False

    @property
    def method(self) -> str:
        """Name of the method that declares it, as users know it."""
        if self.kind == "deduplicate" and self.spread == "key":
            return "deduplicate_by_key_value" if self.function else "deduplicate_by_key"
        return _METHODS[self.kind]


class FilterSteps(Generic[Value, Filtered]):
    """The filters of a stream. Each is a stage: it has a name, states in a store, and is exact through crashes.

    What it gives are the records that go on, under the keys that they had. `Filter.dropped` gives the others.
    """

    __slots__ = ()

    def _filtered(
        self, name: str, spec: FilterSpec, store: str | None, where: str, key: UserFunction | None = None
    ) -> Filtered:
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
        check_choice("compat", compat, ("kuka" if by == "key" else "sqe", None), where)
        check_duration("expiry_ms", expiry_ms, where)
        if by == "key":
            return self._filtered(name, FilterSpec("roots", "key", {"compat": compat}), store, where)
        settings = {"expiry_ms": expiry_ms, "compat": compat}
        return self._filtered(name, FilterSpec("replays", "partition", settings), store, where)

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
        check_callable("sequence", sequence, where)
        check_choice("scope", scope, ("partition", "lane", "key"), where)
        check_choice("malformed", malformed, ("stop", "drop", "pass", "dead_letter"), where)
        check_int("window", window, 0, MAX_WINDOW, where)
        check_choice("compat", compat, ("juplo", None), where)
        if compat and (scope != "partition" or epoch is not None or malformed != "stop" or window > 1):
            raise FlowError(
                f"{where}: compat='juplo' knows neither other scopes, epochs, windows nor other policies; leave them out"
            )
        if epoch is not None:
            check_callable("epoch", epoch, where)
        settings = {"scope": scope, "malformed": malformed, "window": window, "compat": compat}
        spec = FilterSpec(
            "sequences",
            scope,
            settings,
            sequence,
            wants_context(sequence, 1, where),
            epoch,
            wants_context(epoch, 1, where),
        )
        return self._filtered(name, spec, store, where)

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
        spec = _deduplicate("key", None, interval_ms, late, guard, compat, where := place())
        return self._filtered(name, spec, store, where)

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
        spec = _deduplicate("key", id, interval_ms, late, guard, compat, where := place())
        return self._filtered(name, spec, store, where)

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
        spec = _deduplicate("id", id, interval_ms, late, guard, compat, where := place())
        return self._filtered(name, spec, store, where)

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
        check_windows(windows, where, overlap=False)
        check_duration("grace_ms", grace_ms, where)
        check_choice("late", late, ("drop", "forward"), where)
        checked = guarded(guard, where, windows=True)
        settings = {"windows": windows, "grace_ms": grace_ms, "late": late} | checked
        return self._filtered(name, FilterSpec("distinct", "key", settings), store, where)


def _deduplicate(
    spread: Spread,
    identity: UserFunction | None,
    interval_ms: int,
    late: str,
    guard: object,
    compat: str | None,
    where: str,
) -> FilterSpec:
    check_duration("interval_ms", interval_ms, where)
    check_choice("late", late, ("forward", "drop"), where)
    check_choice("compat", compat, ("kip655", None), where)
    if identity is not None or spread == "id":
        check_callable("id", identity, where)
    checked = guarded(guard, where, windows=False)
    settings = {"interval_ms": interval_ms, "late": late, "compat": compat} | checked
    return FilterSpec("deduplicate", spread, settings, identity, wants_context(identity, 1, where))


def guarded(guard: object, where: str, *, windows: bool) -> dict[str, object]:
    """The setting for a guard; nothing for the standard one.

    Raises:
        FlowError: it is no guard.
    """
    if guard == STANDARD:
        return {}
    check_guard(guard, where, windows=windows)
    return {"guard": guard}
