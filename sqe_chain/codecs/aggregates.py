"""The states of declared aggregates: a class for each set of them, which any process can make again from its description.

>>> from sqe_chain.codecs.aggregates import AggregatePart, aggregates_of
>>> totals = aggregates_of((AggregatePart("events", "count"), AggregatePart("speed", "mean")))
>>> totals(events=2, speed=1.5, speed_sum=3, speed_count=2)
Aggregates(events=2, speed=1.5, speed_sum=3, speed_count=2)
>>> totals is aggregates_of((AggregatePart("events", "count"), AggregatePart("speed", "mean")))
True

Values that wait in a store are found again by the names of this module and its class: they stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args

from sqe_chain.codecs.codec import MadeClass

PartKind = Literal["count", "sum", "min", "max", "mean", "first", "last"]
"""What an aggregate does."""
Scalar = Literal["int", "float", "str", "bool", ""]
"""Type of the field that an aggregate is of; empty if it is not known."""

KINDS: Final[tuple[str, ...]] = get_args(PartKind)
_MEAN_SUM: Final = "_sum"
_MEAN_COUNT: Final = "_count"
"""What a mean keeps beside itself: its sum and its count, in fields of its name with these endings."""


class AggregatePart(NamedTuple):
    """One aggregate of a state.

    Attributes:
        name: of its field.
        kind: what it does.
        of: type of the field that it is of, for tables.
    """

    name: str
    kind: PartKind
    of: Scalar = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it has in the state."""
        return (self.name, *self.kept)

    @property
    def kept(self) -> tuple[str, ...]:
        """Those beside its result."""
        return (self.name + _MEAN_SUM, self.name + _MEAN_COUNT) if self.kind == "mean" else ()


@dataclass(slots=True)
class Aggregates(metaclass=MadeClass):
    """The state of a stage with declared aggregates: a field for each of them, named as it is.

    Counts and sums begin at 0, everything else at None. A mean `speed` has two more fields, `speed_sum` and `speed_count`.

    Attributes:
        parts: what the fields are.
    """

    parts: ClassVar[tuple[AggregatePart, ...]] = ()


_types: dict[tuple[AggregatePart, ...], type[Aggregates]] = {}


def aggregates_of(parts: tuple[AggregatePart, ...]) -> type[Any]:
    """The class of states with these aggregates; always the same one."""
    states = _types.get(parts)
    if states is None:
        fields = [field for part in parts for field in _fields_of(part)]
        states = make_dataclass(Aggregates.__name__, fields, bases=(Aggregates,), slots=True)
        states.__module__, states.__qualname__ = Aggregates.__module__, Aggregates.__qualname__
        states.__doc__, states.parts = Aggregates.__doc__, parts
        states.made_by = aggregates_in, (description_of(states),)
        _types[parts] = states
    return states


def _fields_of(part: AggregatePart) -> list[tuple[str, Any, Any]]:
    match part.kind:
        case "count":
            return [(part.name, int, field(default=0))]
        case "sum":
            return [(part.name, int | float, field(default=0))]
        case "mean":
            total, count = part.kept
            return [
                (part.name, float | None, field(default=None)),
                (total, int | float, field(default=0)),
                (count, int, field(default=0)),
            ]
        case _:
            return [(part.name, Any, field(default=None))]


def description_of(python_type: type[Aggregates]) -> str:
    """The parts of such a class as text, from which `aggregates_in` makes it again.

    >>> description_of(aggregates_of((AggregatePart("events", "count"), AggregatePart("speed", "mean", "float"))))
    'events=count,speed=mean.float'
    """
    return ",".join(f"{part.name}={part.kind}{'.' if part.of else ''}{part.of}" for part in python_type.parts)


def aggregates_in(description: str) -> type[Any]:
    """The class that was described."""
    parts: list[Any] = []
    for text in description.split(","):
        name, _, what = text.partition("=")
        kind, _, of = what.partition(".")
        parts.append((name, kind, of))
    return aggregates_of(tuple(AggregatePart(*part) for part in parts))


def is_aggregates(python_type: type) -> bool:
    """Whether this is the class of the states of some declared aggregates."""
    return issubclass(python_type, Aggregates) and python_type is not Aggregates
