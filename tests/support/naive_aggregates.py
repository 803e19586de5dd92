"""What declared aggregates must give, computed another way: from the list of all values of a field, at once, with no state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqe_chain.flow import Aggregation


def expected(aggregates: Mapping[str, Aggregation], values: Sequence[Any]) -> dict[str, Any]:
    """The fields of a state after these values, in this order.

    Args:
        aggregates: name -> aggregate, with `optional` fields.
        values: dicts.
    """
    found: dict[str, Any] = {}
    for name, one in aggregates.items():
        held = [field for value in values if (field := at(value, one.field)) is not None]
        match one.kind:
            case "count":
                found[name] = len(held) if one.field else len(values)
            case "sum":
                found[name] = added(held)
            case "mean":
                found[name] = added(held) / len(held) if held else None
                found |= {f"{name}_sum": added(held), f"{name}_count": len(held)}
            case "min":
                found[name] = min(held, default=None)
            case "max":
                found[name] = max(held, default=None)
            case "first":
                found[name] = held[0] if held else None
            case "last":
                found[name] = held[-1] if held else None
    return found


def at(value: Any, path: str) -> Any:
    """A field of nested dicts; None if a part of it is missing or null."""
    for name in path.split("."):
        value = value.get(name) if value is not None and path else None
    return value


def added(numbers: Iterable[float]) -> float:
    """Their sum, one after the other: `sum` rounds differently from Python 3.12 on."""
    total: float = 0
    for number in numbers:
        total += number
    return total
