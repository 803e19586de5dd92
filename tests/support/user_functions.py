"""Every place of a flow that takes a function of the user: a flow with it there, and one that does what it should."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sqe_chain.ext.tables import Column
from sqe_chain.flow import Flow
from sqe_chain.stages import Sessions, Tumbling
from sqe_chain.testing import Rehearsal

Gives = Literal["value", "truth", "values", "nothing"]


def _first(given: Any, *_: Any) -> int:
    return int((json.loads(given) if isinstance(given, bytes) else given)["n"])


def _second(_: Any, given: Any, *__: Any) -> int:
    return int(given["n"])


def _timer(_: Any, fired: Any, *__: Any) -> int:
    return int(fired.at_ms)


def _any(*_: Any) -> int:
    return 3  # two sessions are joined once


@dataclass(frozen=True)
class Place:
    """A place that takes a function of the user.

    Attributes:
        name: of the argument, with the declaration it belongs to.
        declare: makes a flow that reads ``in`` (JSON, with a number ``n``; it is also the record's time) with the function there.
        good: does what it should.
        gives: what it returns.
        blames_input: whether what it raises belongs to one input.
        number: of the record that it is called for, by its arguments.
    """

    name: str
    declare: Callable[[Flow, Any], None]
    good: Callable[..., Any]
    gives: Gives = "value"
    blames_input: bool = True
    number: Callable[..., int] = _first

    def __str__(self) -> str:
        return self.name

    def flow(self, function: Callable[..., Any], poison: Any = "stop") -> Flow:
        """A flow with a function there."""
        flow = Flow("functions", state_partitions=1, poison=poison)
        self.declare(flow, function)
        return flow


def count(state: dict[str, Any], _: Any) -> None:
    """A fold."""
    state["n"] = state.get("n", 0) + 1


def count_and_set(state: dict[str, Any], value: Any, context: Any) -> None:
    """A fold that sets a timer."""
    count(state, value)
    context.set_timer(value["n"])


def _key(_: Any) -> str:
    return "k"


def _n(value: Any) -> int:
    return int(value["n"])


def _id(value: Any) -> str:
    return str(value["n"])


def _yes(_: Any) -> bool:
    return True


def _no(_: Any) -> bool:
    return False


def _same(value: Any) -> Any:
    return value


def _values(value: Any) -> list[Any]:
    return [value]


def _nothing(state: dict[str, Any], later: dict[str, Any]) -> None:
    state["n"] += later["n"]


class Row(msgspec.Struct):
    """A value with known fields."""

    n: int


_TABLES = itertools.count()


def _in_batch(batch: Any) -> int:
    numbers: list[int] = batch["n"].to_pylist()
    return 3 if 3 in numbers else 0


def _table(flow: Flow, column: Column) -> None:
    columns = [Column("n", "int64"), column]
    if column.name != "k":
        columns.append(Column("k", "string", of=_key))
    _source(flow).ingest(
        "t", partition_key="k", row_key="n", columns=columns, at=f"memory://functions/{next(_TABLES)}"
    )


def _source(flow: Flow) -> Any:
    return flow.source("in", dict, raw=True)


def _to(stream: Any) -> None:
    stream.to("out", key=_key, partitions=1)


def _windows(flow: Flow, windows: Any, **given: Any) -> None:
    settings = {"key": _key, "state": dict, "fold": count, **given}
    _to(_source(flow).windowed("w", windows, **settings))


def _timers(flow: Flow, **given: Any) -> None:
    settings = {"key": _key, "state": dict, "fold": count_and_set, "on_timer": count, **given}
    _source(flow).aggregate("a", **settings)


def _two(flow: Flow) -> tuple[Any, Any]:
    both = _source(flow).key_by(_key)
    return both.map(_same), both.map(_same)


def _joined(flow: Flow, how: str, combine: Any, **given: Any) -> None:
    one, other = _two(flow)
    bounds = {"before_ms": 0, "after_ms": 0} if how == "join_stream" else {}
    _to(getattr(one, how)("j", other, combine, **bounds, **given))


def _pair(one: Any, _: Any) -> Any:
    return one


PLACES = (
    Place("decoder of source", lambda flow, f: _to(flow.source("in", f, raw=True)), json.loads),
    Place("timestamp of source", lambda flow, f: _to(flow.source("in", dict, raw=True, timestamp=f)), _n),
    Place("map", lambda flow, f: _to(_source(flow).map(f)), _same),
    Place("map after a stage", lambda flow, f: _to(_source(flow).deduplicate("d", _id, 0).map(f)), _same),
    Place(
        "map after changes",
        lambda flow, f: _to(_source(flow).aggregate("a", key=_key, state=dict, fold=count).changes().map(f)),
        _same,
        blames_input=False,
        number=_any,
    ),
    Place("filter", lambda flow, f: _to(_source(flow).filter(f)), _yes, "truth"),
    Place("flat_map", lambda flow, f: _to(_source(flow).flat_map(f)), _values, "values"),
    Place("key_by", lambda flow, f: _source(flow).key_by(f).to("out", partitions=1), _key),
    Place("key of to", lambda flow, f: _source(flow).to("out", key=f, partitions=1), _key),
    Place(
        "key of aggregate",
        lambda flow, f: _source(flow).aggregate("a", key=f, state=dict, fold=count),
        _key,
    ),
    Place(
        "fold of aggregate",
        lambda flow, f: _to(_source(flow).aggregate("a", key=_key, state=dict, fold=f)),
        count,
        "values",
        number=_second,
    ),
    Place(
        "fold of aggregate, nobody reads",
        lambda flow, f: _source(flow).aggregate("a", key=_key, state=dict, fold=f),
        count,
        "values",
        number=_second,
    ),
    Place(
        "fold of aggregate with expiry",
        lambda flow, f: _to(_source(flow).aggregate("a", key=_key, state=dict, fold=f, expire_after_ms=10)),
        count,
        "values",
        number=_second,
    ),
    Place(
        "fold of aggregate with timers",
        lambda flow, f: _timers(flow, fold=f),
        count_and_set,
        "values",
        number=_second,
    ),
    Place(
        "on_timer",
        lambda flow, f: _timers(flow, on_timer=f),
        count,
        "values",
        blames_input=False,
        number=_timer,
    ),
    Place("heartbeat of aggregate", lambda flow, f: _timers(flow, heartbeat=f), _no, "truth"),
    Place(
        "fold of windowed",
        lambda flow, f: _windows(flow, Tumbling(1), fold=f),
        count,
        "nothing",
        number=_second,
    ),
    Place(
        "fold of sessions",
        lambda flow, f: _windows(flow, Sessions(1), merge=_nothing, fold=f),
        count,
        "nothing",
        number=_second,
    ),
    Place(
        "merge of sessions",
        lambda flow, f: _windows(flow, Sessions(5), merge=f, lateness_ms=100),
        _nothing,
        "nothing",
        number=_any,
    ),
    Place("heartbeat of windowed", lambda flow, f: _windows(flow, Tumbling(1), heartbeat=f), _no, "truth"),
    Place("time of windowed", lambda flow, f: _windows(flow, Tumbling(1), time=f, lateness_ms=100), _n),
    Place(
        "time of sessions",
        lambda flow, f: _windows(flow, Sessions(1), merge=_nothing, time=f, lateness_ms=100),
        _n,
    ),
    Place(
        "time of join_stream",
        lambda flow, f: _joined(flow, "join_stream", _pair, time=f, lateness_ms=100),
        _n,
    ),
    Place(
        "table_time of join_table",
        lambda flow, f: _joined(flow, "join_table", _pair, table_time=f, history_ms=100),
        _n,
    ),
    Place("key of windowed", lambda flow, f: _windows(flow, Tumbling(1), key=f), _key),
    Place("combine of join_table", lambda flow, f: _joined(flow, "join_table", f), _pair),
    Place(
        "deleted of join_table", lambda flow, f: _joined(flow, "join_table", _pair, deleted=f), _no, "truth"
    ),
    Place("key column", lambda flow, f: _table(flow, Column("k", "string", of=f)), _key),
    Place("plain column", lambda flow, f: _table(flow, Column("x", "string", of=f)), _key),
    Place(
        "map_batches",
        lambda flow, f: _to(flow.source("in", Row, raw=True).map_batches(f, Row)),
        _same,
        number=_in_batch,
    ),
    Place("combine of join_stream", lambda flow, f: _joined(flow, "join_stream", f), _pair),
    Place("sequence", lambda flow, f: _to(_source(flow).drop_stale("s", sequence=f)), _n),
    Place("epoch", lambda flow, f: _to(_source(flow).drop_stale("s", sequence=_n, epoch=f)), _n),
    Place("producer", lambda flow, f: _to(_source(flow).drop_stale("s", sequence=_n, producer=f)), _key),
    Place("id of deduplicate", lambda flow, f: _to(_source(flow).deduplicate("d", f, 0)), _id),
    Place(
        "id of deduplicate_by_key_value",
        lambda flow, f: _to(_source(flow).key_by(_key).deduplicate_by_key_value("d", f, 0)),
        _id,
    ),
)


RECORDS = 6
"""What `fed` feeds."""


def like(place: Place, function: Any) -> Any:
    """The function, which seems to take what the place's good one takes."""
    function.__signature__ = inspect.signature(place.good)
    return function


def fed(place: Place, function: Callable[..., Any], poison: str, block: int | None = None) -> Rehearsal:
    """A service with the function there, and records that call it."""
    rehearsal = Rehearsal(place.flow(function, poison), block_records=block)
    for number in [0, 10, 3, 4, 11, 5] if place.name.startswith("merge") else range(RECORDS):
        rehearsal.feed("in", {"n": number}, key="of-record", timestamp_ms=number)
    return rehearsal
