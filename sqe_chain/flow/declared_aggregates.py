"""Declared aggregates: what a state is made of, named instead of programmed.

    >>> from sqe_chain import Flow
    >>> from sqe_chain.testing import Rehearsal
    >>> flow = Flow("totals", state_partitions=1)
    >>> totals = flow.source("robots", dict, raw=True).aggregate(
    ...     "per-robot", key="robot", events=count(), screws=sum_("screws"), latest=last("at.second")
    ... )
    >>> totals.changes().to("totals", partitions=1)
    >>> rehearsal = Rehearsal(flow)
    >>> for second, screws in enumerate((3, None, 4)):
    ...     _ = rehearsal.feed("robots", {"robot": "R7", "screws": screws, "at": {"second": second}})
    >>> rehearsal.run_until_caught_up()
    >>> rehearsal.states("per-robot")
    {b'R7': Aggregates(events=3, screws=7, latest=2)}

Nulls are skipped, as in SQL. A field is null if it is None, or an unset field of protobuf that has presence. One that is missing,
or is of a type that the aggregate does not take, is poison.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass

from sqe_chain.codecs.aggregates import AggregatePart, PartKind
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import caller_line, check_bool


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregate of a state, as `count`, `sum_`, `min_`, `max_`, `mean`, `first` and `last` make it.

    Attributes:
        kind: what it does.
        field: what it is of: a name, or a path with dots; empty: of the values themselves, which only `count` takes.
        optional: whether a field that is missing is null.
    """

    kind: PartKind
    field: str = ""
    optional: bool = False

    def __str__(self) -> str:
        name = f"{self.kind}_" if self.kind in ("sum", "min", "max") else self.kind
        settings = [repr(self.field)] if self.field else []
        return f"{name}({', '.join([*settings, *(['optional=True'] if self.optional else [])])})"


def count(field: str | None = None, *, optional: bool = False) -> Aggregation:
    """The number of values; of a field: of those that are not null.

    Args:
        field: name, or path such as ``"meta.ts"``; None: count values. Only `count` may go without.
        optional: a field that is missing is null, instead of poison.

    Raises:
        FlowError: it is not such a name.
    """
    return Aggregation("count") if field is None else _of_field("count", field, optional)


def sum_(field: str, *, optional: bool = False) -> Aggregation:
    """The sum of a field, given as for `count`; 0 if there is none that is not null.

    The sum of ints is an int, of 4,300 digits at most. With floats among them it is a float, added up in the order of the records. Anything
    else is poison, also True and False, NaN, infinity, and a sum that becomes infinite.
    """
    return _of_field("sum", field, optional)


def min_(field: str, *, optional: bool = False) -> Aggregation:
    """The least value of a field, numbers or text, given as for `count`; None if there is none. Of equal ones the first is kept."""
    return _of_field("min", field, optional)


def max_(field: str, *, optional: bool = False) -> Aggregation:
    """The greatest value of a field, numbers or text, given as for `count`; None if there is none. Of equal ones the first is kept."""
    return _of_field("max", field, optional)


def mean(field: str, *, optional: bool = False) -> Aggregation:
    """The mean of a field, taken as by `sum_`; None if there is none.

    The state also has the sum and the count: ``speed_sum`` and ``speed_count`` for a mean that is called ``speed``.
    """
    return _of_field("mean", field, optional)


def first(field: str, *, optional: bool = False) -> Aggregation:
    """The first value of a field that is not null, in the order of the fold, given as for `count`: whatever JSON can express."""
    return _of_field("first", field, optional)


def last(field: str, *, optional: bool = False) -> Aggregation:
    """The last value of a field that is not null, in the order of the fold, given as for `count`: whatever JSON can express."""
    return _of_field("last", field, optional)


def _of_field(kind: PartKind, field: object, optional: object) -> Aggregation:
    where = caller_line()
    if not isinstance(field, str) or not all(field.split(".")):
        raise FlowError(f"{where}: {kind} of {field!r}; the name of a field, or a path such as 'meta.ts'")
    check_bool("optional", optional, where)
    return Aggregation(kind, field, bool(optional))


def check_aggregations(aggregations: Mapping[str, object], method: str, where: str) -> dict[str, Aggregation]:
    """The aggregates of a stage, name -> aggregate, of what a method was given.

    Raises:
        FlowError: there is none, something else was given, or a name cannot be that of a field.
    """
    checked: dict[str, Aggregation] = {}
    for name, aggregate in aggregations.items():
        if not isinstance(aggregate, Aggregation):
            raise FlowError(
                f"{where}: {name}={aggregate!r} is no argument of {method}(), nor an aggregate such as count() or sum_('field')"
            )
        if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name) or name.startswith("_"):
            raise FlowError(f"{where}: an aggregate cannot be called {name!r}: it is the name of a field")
        checked[name] = aggregate
    if not checked:
        raise FlowError(
            f"{where}: {method}() needs state= and fold=, or declared aggregates such as events=count()"
        )
    fields = [
        (field, name)
        for name, aggregate in checked.items()
        for field in AggregatePart(name, aggregate.kind).fields
    ]
    for field, name in fields:
        for other in [other for same, other in fields if same == field and other != name]:
            raise FlowError(
                f"{where}: {name}={checked[name]} and {other}={checked[other]} both need field {field!r}"
            )
    return checked


def check_plain(others: Mapping[str, object], method: str, where: str) -> None:
    """Refuse further arguments of a stage with a fold of its own. Raises FlowError."""
    for name, given in others.items():
        reason = (
            "goes without state= and fold=, or into a stage of its own"
            if isinstance(given, Aggregation)
            else f"is no argument of {method}()"
        )
        raise FlowError(f"{where}: {name}={given!s} {reason}")
