"""The filters of a stream: they drop repeated records. Their kinds, in `sqe_chain.stages`, check the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, Unpack

from sqe_chain.flow.declaration import caller_line, check_choice, check_duration, declared, declared_if
from sqe_chain.flow.fields import declared_key, declared_value
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.kinds import kind_of
from sqe_chain.flow.part import StreamPart
from sqe_chain.flow.signatures import IdOf, NumberOf, TimeOf, Value
from sqe_chain.flow.stage_kind import STANDARD

if TYPE_CHECKING:
    from sqe_chain.flow.stream import Filter

DAY_MS = 86_400_000
MAX_WINDOW: Final = 65_536
"""Of sequence numbers remembered one by one: 8 KiB for each scope."""
LateRecords = Literal["forward", "drop", "stop"]
"""What becomes of a record whose time has passed; "stop": it is poison, so that the flow's policy decides."""


class DeduplicateOptions(TypedDict, Generic[Value], total=False):
    """The options of `FilterSteps.deduplicate_by_key`."""

    time: TimeOf[Value] | None
    late: LateRecords
    guard: object
    compat: Literal["kip655"] | None
    store: str | None


class FilterSteps(StreamPart[Value]):
    """The filters of a stream. Each is a stage: it has a name, states in a store, and is exact through crashes.

    Its output are the records that pass, with their keys. `Filter.dropped` has the others.
    """

    __slots__ = ()

    def drop_replays(
        self,
        name: str,
        *,
        by: Literal["source", "key"] = "source",
        expiry_ms: int = 2 * DAY_MS,
        compat: Literal["sqe", "kuka"] | None = None,
        store: str | None = None,
    ) -> Filter[Value]:
        """Drop what a producer, or a service on the way, has published before at other offsets.

        Args:
            name: stage name; permanent, states are stored under it.
            by: what decides. By "source" it is the highest offset of each producer, from SQE's record keys
                (`sqe_chain.stages.SqeReplays`). By "key" it is the last root position of each key, on whatever path a record
                came (`sqe_chain.stages.RootReplays`). The events of each key must be in their root's order.
            expiry_ms: how long a silent producer is remembered; for "source" only.
            compat: behave exactly like SQE ("source") or KUKA ("key").
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: a name exists, a setting is wrong, or the stage would follow `changes()`.
        """
        where = caller_line()
        check_choice("by", by, ("source", "key"), where)
        check_duration("expiry_ms", expiry_ms, where)
        if by == "key":
            return self._filter(name, "roots", where, store=store, compat=compat)
        return self._filter(name, "replays", where, store=store, expiry_ms=expiry_ms, compat=compat)

    def drop_stale(  # noqa: PLR0913 - settings of a filter, by keyword
        self,
        name: str,
        *,
        sequence: NumberOf[Value],
        scope: Literal["partition", "lane", "key"] = "partition",
        epoch: NumberOf[Value] | None = None,
        producer: IdOf[Value] | None = None,
        malformed: Literal["stop", "drop", "pass", "dead_letter"] = "stop",
        window: int = 0,
        compat: Literal["juplo"] | None = None,
        store: str | None = None,
    ) -> Filter[Value]:
        """Drop what is not beyond the highest sequence number of its scope; see `sqe_chain.stages.StaleSequences`.

        Args:
            name: stage name; permanent.
            sequence: ``value -> int``; the context has key and headers.
            scope: what has a sequence of its own: the input partition, the lane, or the key.
            epoch: the same for the producer's epoch: a greater one resets the highest number.
            producer: ``value -> bytes | str``, or with the context: what distinguishes producers that write into one scope,
                each with a sequence of its own; permanent.
            malformed: what becomes of a record without a number.
            window: how many numbers are remembered one by one, from the highest downwards. A late number is still accepted, once,
                if it is less than this below the highest: after 9, `window=3` accepts 8 and 7. 0 and 1 accept none.
            compat: behave exactly like juplo's deduplicator.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: a name exists, a setting is wrong, or the stage would follow `changes()`.
        """
        where = caller_line()
        return self._filter(
            name,
            "sequences",
            where,
            store=store,
            sequence=declared("sequence", sequence, 1, where),
            epoch=declared_if("epoch", epoch, where),
            producer=declared_if("producer", producer, where),
            scope=scope,
            malformed=malformed,
            window=window,
            compat=compat,
        )

    def deduplicate_by_key(
        self,
        name: str,
        interval_ms: int,
        *,
        time: TimeOf[Value] | None = None,
        late: LateRecords = "forward",
        guard: object = STANDARD,
        compat: Literal["kip655"] | None = None,
        store: str | None = None,
    ) -> Filter[Value]:
        """Forward the first of the records that have the same key within an interval of event time (KIP-655).

        Args:
            name: stage name; permanent.
            interval_ms: milliseconds before and after the first record, both ends included.
            time: as for `windowed`.
            late: what becomes of records older than stream time less the interval; "stop": each is poison, so that the flow's
                policy decides.
            guard: a `JumpGuard` of `sqe_chain.stages`, against event times that are too far ahead of the others. "standard": a
                day, and `hold`. None: every time is believed.
            compat: behave exactly as the KIP specifies.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: a name exists, a setting is wrong, or the stage would follow `changes()`.
        """
        return self._deduplicate(
            name,
            None,
            interval_ms,
            caller_line(),
            time=time,
            late=late,
            guard=guard,
            compat=compat,
            store=store,
        )

    def deduplicate_by_key_value(
        self,
        name: str,
        id: str | IdOf[Value],  # noqa: A002 - the KIP's word
        interval_ms: int,
        **options: Unpack[DeduplicateOptions[Value]],
    ) -> Filter[Value]:
        """Like `deduplicate_by_key`, with its options, for records with the same key and the same id.

        Args:
            name: stage name; permanent.
            id: ``value -> bytes | str | None``, or the name of a field; None: no duplicate.
            interval_ms: as for `deduplicate_by_key`.
            **options: those of `deduplicate_by_key`.
        """
        where = caller_line()
        return self._deduplicate(name, self._id(id, where), interval_ms, where, **options)

    def deduplicate(
        self,
        name: str,
        id: str | IdOf[Value],  # noqa: A002 - the KIP's word
        interval_ms: int,
        **options: Unpack[DeduplicateOptions[Value]],
    ) -> Filter[Value]:
        """Like `deduplicate_by_key`, with its options, for records with the same id, whatever their keys.

        Args:
            name: stage name; permanent.
            id: ``value -> bytes | str | None``, or the name of a field; None: no duplicate.
            interval_ms: as for `deduplicate_by_key`.
            **options: those of `deduplicate_by_key`.
        """
        where = caller_line()
        return self._deduplicate(name, self._id(id, where), interval_ms, where, by_id=True, **options)

    def distinct(
        self,
        name: str,
        windows: object,
        *,
        time: TimeOf[Value] | None = None,
        grace_ms: int = 0,
        late: LateRecords = "drop",
        guard: object = STANDARD,
        store: str | None = None,
    ) -> Filter[Value]:
        """Forward the first record of each key in each window (an alternative that KIP-655 rejected).

        Args:
            name: stage name; permanent.
            windows: `Tumbling`, `Calendar` or `Sessions` of `sqe_chain.stages`.
            time: as for `windowed`.
            grace_ms: how long after its end a window is still remembered.
            late: what becomes of later records; "stop": each is poison, so that the flow's policy decides.
            guard: as for `deduplicate_by_key`, but it can only drop or stop. "standard": 31 days, and `drop`.
            store: name of the store for this stage; by default the service's.

        Raises:
            FlowError: a name exists, a setting is wrong, or the stage would follow `changes()`.
        """
        where = caller_line()
        own = declared_value("time", time, self._value_type(), where)
        settings = {"windows": windows, "time": own, "grace_ms": grace_ms, "late": late, "guard": guard}
        return self._filter(name, "distinct", where, store=store, **settings)

    def _id(self, given: object, where: str) -> DeclaredFunction:
        return declared_key(given, self._value_type(), where, "id") or declared("id", given, 1, where)

    def _deduplicate(
        self,
        name: str,
        id_of: object,
        interval_ms: int,
        where: str,
        *,
        by_id: bool = False,
        **options: Unpack[DeduplicateOptions[Value]],
    ) -> Filter[Value]:
        settings: dict[str, Any] = {"by_id": by_id, "id": id_of, "interval_ms": interval_ms, **options}
        settings["time"] = declared_value("time", options.get("time"), self._value_type(), where)
        return self._filter(name, "deduplicate", where, **settings)

    def _filter(
        self,
        name: str,
        kind: str,
        where: str,
        *,
        store: str | None = None,
        **settings: Any,  # noqa: ANN401 - those of the kind
    ) -> Filter[Value]:
        return self._as_filter(self._stage(name, kind_of(kind, settings, where), where, store=store))
