"""Goal: whatever setting a flow can be given, a wrong one is refused at the user's line, before anything runs.

Method: every public method and class by which a flow is declared is listed here with one right value for each of its
parameters. What is wrong for a parameter follows from its right value. A parameter that is not in the list fails, and
so does one that accepts what it should not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.codecs import codec_for
from sqe_chain.errors import FlowError
from sqe_chain.ext import tables
from sqe_chain.flow import Filter, Flow, Stage, Stream
from sqe_chain.flow.filtering import DeduplicateOptions
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.stages import (
    Calendar,
    Deduplicate,
    Distinct,
    Hopping,
    JumpGuard,
    MemoryTable,
    RootReplays,
    Sessions,
    SqeReplays,
    StaleSequences,
    StreamJoin,
    TableJoin,
    TimedAggregate,
    Tumbling,
    WindowedAggregate,
)
from sqe_chain.stages.aggregate import AggregateKind


def one(value: object) -> object:
    return value


def two(state: object, value: object) -> None:
    """A fold."""


def three(state: object, value: object, context: object) -> None:
    """A fold, or a function of a timer."""


class Duration(int):
    """A right number of milliseconds; what is wrong follows from `least`."""

    least = 0


class Positive(Duration):
    least = 1


class Topic(str):
    """A right topic."""

    __slots__ = ()


class Name(str):
    """A right name."""

    __slots__ = ()


class Choice(str):
    """A right word of several."""

    __slots__ = ()


class Listed:
    """Something of a class of its own, that only the right class fits."""

    def __init__(self, value: object) -> None:
        self.value = value


class SomeType(Listed):
    """A class, whichever."""


class WithColumns(Listed):
    """A type whose values have columns."""


class Column(str):
    """A right name of a column: any text."""

    __slots__ = ()


STREAM: dict[str, dict[str, Any]] = {
    "map": {"function": one},
    "filter": {"function": one},
    "flat_map": {"function": one},
    "map_batches": {
        "function": one,
        "schema": WithColumns(Int64Value),
        "columns": WithColumns(["value"]),
        "index": Column("row"),
    },
    "key_by": {"key": one},
    "merge": {"other": Listed(None)},
    "aggregate": {
        "name": Name("stage"),
        "state": Int64Value,
        "fold": two,
        "key": one,
        "codec": Choice("protobuf"),
        "store": Name("fast"),
        "buckets": Positive(1),
        "view": Name("json"),
    },
    "stage": {
        "name": Name("stage"),
        "kind": Listed(AggregateKind(DeclaredFunction(two), codec_for(Int64Value))),
        "key": one,
        "store": Name("fast"),
        "buckets": Positive(1),
        "view": Name("json"),
    },
    "to": {
        "topic": Topic("out"),
        "partitions": Positive(1),
        "key": one,
        "codec": Choice("protobuf"),
        "carrier": Choice("headers"),
        "revision": Positive(1),
        "name": Name("out"),
        "headers": True,
        "separate": True,
    },
    "to_sqe": {
        "topic": Topic("out"),
        "partitions": Positive(1),
        "process_id": 7,
        "name": Name("out"),
        "headers": True,
    },
    "ingest": {
        "table": Name("stage"),
        "partition_key": Column("value"),
        "row_key": Column("size"),
        "columns": Listed(["value", tables.Column("size", "int64", of=lambda word: len(word.value))]),
        "payload": SomeType(StringValue),
        "at": Column("tables"),
        "options": Listed({"key": "value"}),
        "version": Duration(1),
        "replaces": True,
        "max_row_bytes": Positive(5),
        "store": Name("fast"),
    },
    "drop_replays": {
        "name": Name("stage"),
        "by": Choice("source"),
        "expiry_ms": Duration(5),
        "compat": Choice("sqe"),
        "store": Name("fast"),
    },
    "drop_stale": {
        "name": Name("stage"),
        "sequence": one,
        "scope": Choice("partition"),
        "epoch": one,
        "producer": one,
        "malformed": Choice("drop"),
        "window": Duration(3),
        "compat": Choice("juplo"),
        "store": Name("fast"),
    },
    "deduplicate_by_key": {
        "name": Name("stage"),
        "interval_ms": Duration(5),
        "time": one,
        "late": Choice("drop"),
        "guard": Listed(None),
        "compat": Choice("kip655"),
        "store": Name("fast"),
    },
    "deduplicate_by_key_value": {
        "name": Name("stage"),
        "id": one,
        "interval_ms": Duration(5),
        "time": one,
        "late": Choice("drop"),
        "guard": Listed(JumpGuard()),
        "compat": Choice("kip655"),
        "store": Name("fast"),
    },
    "deduplicate": {
        "name": Name("stage"),
        "id": one,
        "interval_ms": Duration(5),
        "time": one,
        "late": Choice("drop"),
        "guard": Listed("standard"),
        "compat": Choice("kip655"),
        "store": Name("fast"),
    },
    "distinct": {
        "name": Name("stage"),
        "windows": Listed(Tumbling(5)),
        "time": one,
        "grace_ms": Duration(5),
        "late": Choice("drop"),
        "guard": Listed(JumpGuard(policy="drop")),
        "store": Name("fast"),
    },
    "windowed": {
        "name": Name("stage"),
        "windows": Listed(Sessions(5)),
        "time": one,
        "state": Int64Value,
        "fold": two,
        "key": one,
        "codec": Choice("protobuf"),
        "merge": two,
        "lateness_ms": Duration(5),
        "late": Choice("drop"),
        "retention_ms": Duration(5),
        "heartbeat": one,
        "guard": Listed(None),
        "store": Name("fast"),
        "view": Name("json"),
    },
    "join_table": {
        "name": Name("stage"),
        "table": None,
        "combine": two,
        "how": Choice("left"),
        "deleted": one,
        "time": None,
        "table_time": one,
        "history_ms": Duration(5),
        "late": Choice("drop"),
        "static": False,
        "guard": Listed(None),
        "store": Name("fast"),
    },
    "join_stream": {
        "name": Name("stage"),
        "other": None,
        "combine": two,
        "before_ms": Duration(5),
        "after_ms": Duration(5),
        "time": one,
        "other_time": one,
        "how": Choice("left"),
        "lateness_ms": Duration(5),
        "late": Choice("drop"),
        "guard": Listed(None),
        "store": Name("fast"),
    },
}
TIMED: dict[str, dict[str, Any]] = {
    "aggregate": {
        "name": Name("stage"),
        "state": Int64Value,
        "fold": three,
        "key": one,
        "codec": Choice("protobuf"),
        "on_timer": three,
        "expire_after_ms": Positive(5),
        "heartbeat": one,
        "guard": Listed(JumpGuard()),
        "store": Name("fast"),
    },
}
"""The same for what makes another kind of stage, and does not go with all settings of the ordinary one."""
ANOTHER_STREAM = {"merge": "other", "join_table": "table", "join_stream": "other"}
"""Method -> its parameter for another stream; the right one is made of the same flow."""
FLOW: dict[str, Any] = {
    "name": Name("flow"),
    "poison": Choice("stop"),
    "dead_letter_topic": Topic("letters"),
    "dead_letter_partitions": Positive(1),
    "state_partitions": Positive(1),
    "max_lanes": Positive(1),
    "recreated": Choice("stop"),
    "allow_compacted": False,
    "traces": False,
    "transactional": False,
}
SOURCE: dict[str, Any] = {
    "topics": Topic("words"),
    "payload": Int64Value,
    "codec": Choice("protobuf"),
    "raw": True,
    "nulls": Choice("skip"),
    "timestamp": one,
    "no_timestamp": Choice("record"),
}
KINDS: dict[type, dict[str, Any]] = {
    Tumbling: {"size_ms": Positive(5), "offset_ms": Duration(4)},
    Calendar: {"unit": Choice("day"), "time_zone": Name("UTC")},
    Hopping: {"size_ms": Positive(5), "advance_ms": Positive(5), "offset_ms": Duration(4)},
    Sessions: {"gap_ms": Duration(5)},
    JumpGuard: {"max_jump_ms": Positive(5), "confirmations": Positive(5), "policy": Choice("hold")},
}
STAGES: dict[type, dict[str, Any]] = {
    Deduplicate: {
        "interval_ms": Duration(5),
        "identity": one,
        "late": Choice("drop"),
        "guard": Listed(None),
        "compat": Choice("kip655"),
    },
    Distinct: {
        "windows": Listed(Tumbling(5)),
        "grace_ms": Duration(5),
        "identity": one,
        "late": Choice("drop"),
        "guard": Listed(None),
    },
    TableJoin: {
        "combine": two,
        "is_second": one,
        "deleted": one,
        "how": Choice("left"),
        "history_ms": Duration(5),
        "static": False,
        "guard": Listed(None),
    },
    StreamJoin: {
        "combine": two,
        "is_second": one,
        "before_ms": Duration(5),
        "after_ms": Duration(5),
        "how": Choice("left"),
        "lateness_ms": Duration(5),
        "guard": Listed(None),
    },
    TimedAggregate: {
        "fold": three,
        "on_timer": three,
        "expire_after_ms": Positive(5),
        "guard": Listed(None),
    },
    WindowedAggregate: {
        "windows": Listed(Sessions(5)),
        "fold": two,
        "merge": two,
        "lateness_ms": Duration(5),
        "shown": True,
        "retention_ms": Duration(5),
        "guard": Listed(None),
    },
    SqeReplays: {
        "expiry_ms": Duration(5),
        "compat": Choice("sqe"),
        "max_marks": Positive(1),
        "max_lanes": Positive(1),
    },
    RootReplays: {"compat": Choice("kuka"), "max_roots": Positive(1)},
    StaleSequences: {
        "sequence": one,
        "scope": Choice("key"),
        "epoch": one,
        "producer": one,
        "malformed": Choice("drop"),
        "window": Duration(3),
        "gaps": True,
        "compat": Choice("juplo"),
    },
}
OPTIONAL = {
    *("deleted", "key", "name", "store", "view", "compat", "epoch", "merge", "heartbeat", "id", "codec"),
    *("on_timer", "expire_after_ms", "index", "producer", "at", "time", "other_time", "table_time"),
}
"""These accept None as "there is none"; the others refuse it."""
CANNOT_GO_TOGETHER = {"compat"}
"""Set only where it is the parameter in question."""


def wrong(parameter: str, right: object, owner: str) -> Iterator[object]:  # noqa: C901, PLR0912 - one for each kind of parameter
    """What a parameter must not accept, by what is right for it."""
    none_fits = parameter in OPTIONAL and (owner, parameter) not in NEEDED
    if isinstance(right, bool):
        yield from ("yes", 1, 0, None)
    elif isinstance(right, int):
        least = right.least if isinstance(right, Duration) else -(1 << 63)
        yield from (least - 1, 1.5, 5.0, "10", True, False, 1 << 64, -(1 << 64), float("nan"), [1])
        if not none_fits:
            yield None
    elif isinstance(right, Topic):
        yield from (".", "..", "a b", "w" * 250, 7, True, ["."], [7])
    elif isinstance(right, Name):
        yield from ("", ".", "..", "a b", "é", "n" * 250, 7, True, b"n", ["n"])
    elif isinstance(right, Choice):
        yield from ("nonsense", "", 7, True, ["json"])
    elif isinstance(right, Column):
        yield from ("", 7, True, b"row", ["row"])
    elif isinstance(right, WithColumns):
        yield from (7, "nonsense", 5.0, object(), dict, ["nonsense"])
    elif isinstance(right, SomeType):
        yield from (7, "nonsense", 5.0, object())
    elif isinstance(right, Listed):
        yield from (7, "nonsense", 5.0, object(), Int64Value)
    elif right is Int64Value:
        yield from (dict, int, 7, "Int64Value", None)
    else:
        yield from (7, "function", b"")
    if not none_fits and not isinstance(right, bool | int | Listed) and right is not Int64Value:
        yield None


NEEDED = {
    ("Flow", "name"),
    ("Flow.dead", "dead_letter_topic"),
    *((method, "name") for method in STREAM if method not in ("to", "to_sqe")),
    ("key_by", "key"),
    ("deduplicate", "id"),
    ("WindowedAggregate", "merge"),
    ("windowed", "merge"),  # it is tried with sessions
}

Case = tuple[str, str, Callable[..., object], dict[str, Any]]


def plain(values: dict[str, Any], parameter: str) -> dict[str, Any]:
    """Right values as a user writes them, without those that cannot go together with others."""
    return {
        name: bare(value)
        for name, value in values.items()
        if name == parameter or name not in CANNOT_GO_TOGETHER
    }


def bare(value: object) -> object:
    if isinstance(value, Listed):
        return value.value
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def on_stream(method: str) -> Callable[..., object]:
    def declare(**settings: Any) -> object:
        flow = Flow("flow")
        stream = flow.source("words", StringValue)
        other = ANOTHER_STREAM.get(method, "")
        if other and settings[other] is None:
            settings[other] = flow.source("more", StringValue)
        return getattr(stream, method)(**settings)

    return declare


def on_flow(**settings: Any) -> object:
    return Flow("flow").source(**settings)


def cases() -> Iterator[tuple[str, str, Callable[..., object], dict[str, Any]]]:
    for method, values in (*STREAM.items(), *TIMED.items()):
        for parameter in values:
            yield method, parameter, on_stream(method), values
    for owner, declare, values in (("Flow", Flow, FLOW), ("source", on_flow, SOURCE)):
        for parameter in values:
            yield owner, parameter, declare, values
    for kind, values in KINDS.items():
        for parameter in values:
            yield kind.__name__, parameter, kind, values


CASES = list(cases())


@pytest.mark.parametrize(
    ("owner", "parameter", "declare", "values"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_a_wrong_setting_is_refused_at_the_users_line(
    owner: str, parameter: str, declare: Callable[..., object], values: dict[str, Any]
) -> None:
    settings = plain(values, parameter)
    if parameter not in CANNOT_GO_TOGETHER:
        declare(**settings)  # what is right is accepted
    for value in wrong(parameter, values[parameter], owner):
        if owner in ANOTHER_STREAM and value is None:
            continue
        with pytest.raises(FlowError) as caught:
            declare(**{**settings, parameter: value})
        assert str(caught.value).startswith(f"{__file__}:"), value


@pytest.mark.parametrize(
    ("kind", "parameter"), [(kind, parameter) for kind, values in STAGES.items() for parameter in values]
)
def test_a_stage_without_a_flow_refuses_the_same(kind: type, parameter: str) -> None:
    values = STAGES[kind]
    settings = plain(values, parameter)
    if kind in (WindowedAggregate, TimedAggregate):
        settings["state"] = Int64Value
    if parameter not in CANNOT_GO_TOGETHER:
        kind(MemoryTable(), **settings)
    for value in wrong(parameter, values[parameter], kind.__name__):
        with pytest.raises(FlowError, match=kind.__name__):
            kind(MemoryTable(), **{**settings, parameter: value})


def test_every_setting_of_every_declaration_is_tried() -> None:
    """A new method or parameter fails here until it is listed with a right value, and then if it has no check."""
    methods = {
        name
        for one_class in (Stream, Stage, Filter)
        for name, _ in inspect.getmembers(one_class, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods - {"changes", "dropped"} == STREAM.keys()
    for method, values in STREAM.items():
        every = inspect.signature(getattr(Stream, method)).parameters.values()
        named = {one.name for one in every if one.kind is not one.VAR_KEYWORD}  # a kind checks its own
        named |= DeduplicateOptions.__annotations__.keys() if method.startswith("deduplicate") else set()
        assert named - {"self"} == values.keys() | TIMED.get(method, {}).keys(), method
    assert set(inspect.signature(Flow).parameters) == FLOW.keys()
    assert set(inspect.signature(Flow.source).parameters) - {"self"} == SOURCE.keys()
    for kind, values in KINDS.items():
        assert set(inspect.signature(kind).parameters) == values.keys(), kind
    for kind, values in STAGES.items():
        parameters = set(inspect.signature(kind).parameters) - {"table", "clock_ms", "state", "stage"}
        assert parameters == values.keys(), kind


def test_numbers_that_would_leave_64_bits_or_never_end_are_refused() -> None:
    most = 10**15
    assert Tumbling(most).size_ms == most
    declarations: list[Callable[[], object]] = [
        lambda: Tumbling(most + 1),
        lambda: Hopping(most, 1),
        lambda: Hopping(5, 6),
        lambda: Sessions(most + 1),
        lambda: JumpGuard(max_jump_ms=most + 1),
        lambda: Flow("flow", state_partitions=65_537),
        lambda: on_stream("to")(topic="out", partitions=100_001),
        lambda: on_stream("deduplicate_by_key")(name="stage", interval_ms=most + 1),
    ]
    for declare in declarations:
        with pytest.raises(FlowError):
            declare()


def test_windows_that_a_stage_cannot_use_are_refused_when_declared() -> None:
    stream = Flow("flow").source("words", StringValue)
    with pytest.raises(FlowError, match=r"Calendar\(\.\.\.\) or Sessions"):
        stream.distinct("stage", Hopping(10, 5))
    with pytest.raises(FlowError, match="sessions need merge="):
        stream.windowed("stage", Sessions(5), state=Int64Value, fold=two)
    with pytest.raises(FlowError, match="juplo"):
        stream.drop_stale("stage", sequence=lambda _: 1, compat="juplo", window=2)


@pytest.mark.parametrize(
    ("declare", "named"),
    [
        (lambda stream: stream.deduplicate_by_key("once", 5), "deduplicate_by_key 'once'"),
        (lambda stream: stream.deduplicate_by_key_value("once", one, 5), "deduplicate_by_key_value 'once'"),
        (lambda stream: stream.deduplicate("once", one, 5), "deduplicate 'once'"),
        (lambda stream: stream.distinct("once", Tumbling(5)), "distinct 'once'"),
        (lambda stream: stream.drop_replays("once"), "drop_replays 'once'"),
        (lambda stream: stream.drop_replays("once", by="key"), "drop_replays 'once'"),
        (lambda stream: stream.drop_stale("once", sequence=one), "drop_stale 'once'"),
        (lambda stream: stream.windowed("sums", Tumbling(5), state=Int64Value, fold=two), "windowed 'sums'"),
        (lambda stream: stream.windowed("sums", Tumbling(5), state=Int64Value, fold=two, retention_ms=5).dropped(), r"dropped\(\) of stage 'sums'"),
        (lambda stream: stream.aggregate("sums", key=one, state=Int64Value, fold=two).changes(), r"changes\(\) of stage 'sums'"),
        (lambda stream: stream.map(one), "this map"),
        (lambda stream: stream.map_batches(one, StringValue), "this map_batches"),
        (lambda stream: stream, "source 'words'"),
    ],
)  # fmt: skip
def test_what_leads_nowhere_is_named_as_it_was_declared(
    declare: Callable[[Stream[StringValue]], object], named: str
) -> None:
    flow = Flow("flow")
    declare(flow.source("words", StringValue))
    with pytest.raises(FlowError, match=f"nothing is done with {named} of flow 'flow'"):
        flow.compile()


def test_settings_of_timers_that_do_not_go_together_are_refused() -> None:
    stream: Any = Flow("flow").source("words", StringValue)
    timed: dict[str, Any] = {"state": Int64Value, "fold": three, "on_timer": three}
    with pytest.raises(FlowError, match="buckets and view are for aggregates without timers"):
        stream.aggregate("stage", **timed, buckets=2)
    with pytest.raises(FlowError, match="buckets and view are for aggregates without timers"):
        stream.aggregate("stage", **timed, view="json")
    with pytest.raises(FlowError, match="on_timer= without a fold that sets a timer"):
        stream.aggregate("stage", **{**timed, "fold": two})
    with pytest.raises(FlowError, match="heartbeat= is for aggregates that go by event time"):
        stream.aggregate("stage", state=Int64Value, fold=two, heartbeat=one)
    with pytest.raises(FlowError, match="guard= is for aggregates that go by event time"):
        stream.aggregate("stage", state=Int64Value, fold=two, guard=None)
    with pytest.raises(FlowError, match="needs on_timer= or expire_after_ms="):
        stream.stage("stage", "timers", fold=DeclaredFunction(three), states=codec_for(Int64Value))
    stream.aggregate("stage", state=Int64Value, fold=two, expire_after_ms=1)
