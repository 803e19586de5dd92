"""How states of declared aggregates are stored: as JSON, with the kind of each aggregate in the plan."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar, Final, TypeVar

from sqe_chain.codecs.aggregates import AggregatePart, Aggregates
from sqe_chain.codecs.codec import Field, FieldKind, Shape
from sqe_chain.codecs.json_codec import KINDS, Json

State = TypeVar("State", bound=Aggregates)

AGGREGATES: Final = "aggregates"
"""The entry of a shape that has the kind of each aggregate."""


class AggregateStates(Json[State]):
    """JSON of declared aggregates.

    Only generated folds change these states, and they refuse what JSON cannot express. So a state need not be read back to
    be checked, unlike others in JSON.
    """

    self_checking: ClassVar[bool] = True

    def copy(self, value: State) -> State:
        # No fold changes what a field holds, it only puts something else there
        return copy.copy(value)

    def encode_state(self, state: State, seen: set[int] | None = None) -> bytes:
        """Its bytes, unchecked."""
        del seen
        return self.encode(state)

    def fields(self) -> tuple[Field, ...]:
        """A column for each aggregate: a number where it is one, JSON where its type is not known."""
        return tuple(
            self._field(part, name, own) for part in self.python_type.parts for name, own in _columns(part)
        )

    def _field(self, part: AggregatePart, name: str, kind: FieldKind | None) -> Field:
        if kind is not None:
            return Field(name, kind, lambda state: getattr(state, name))
        if part.kind in ("sum", "mean"):  # of int or float
            return Field(name, "float64", lambda state: float(getattr(state, name)))
        return next(field for field in super().fields() if field.name == name)

    def shape(self, known: Mapping[str, str] | None = None) -> Shape:
        """As for other JSON, and the kind of each aggregate."""
        kinds = " ".join(f"{part.name}:{part.kind}" for part in self.python_type.parts)
        return {**super().shape(known), AGGREGATES: kinds}

    def misread(self, was: str, shape: Mapping[str, str]) -> str:
        """An aggregate may be added, and begins with the next record; none may be removed, or become one of another kind."""
        if AGGREGATES not in shape:
            return f"it was {was}, folded by another function, now it is declared aggregates"
        now = {part.name: part.kind for part in self.python_type.parts}
        for text in shape[AGGREGATES].split():
            name, _, kind = text.partition(":")
            if name not in now:
                return f"aggregate {name!r} is gone ({kind})"
            if now[name] != kind:
                return f"aggregate {name!r} was {kind}, now it is {now[name]}"
        return super().misread(was, shape)


def _columns(part: AggregatePart) -> list[tuple[str, FieldKind | None]]:
    """The fields of an aggregate, each with its kind in tables; None: it depends on the values."""
    known = KINDS.get(part.of)
    match part.kind:
        case "count":
            return [(part.name, "int64")]
        case "mean":
            total, count = part.kept
            return [(part.name, "float64"), (total, known), (count, "int64")]
        case _:
            return [(part.name, known)]
