"""The fold of declared aggregates, as one Python function made for the type of the values: no loop, no lookup, no call.

`inspect.getsource` shows it, and so do tracebacks. Numbers take short paths. Everything else goes to a function of this
module, which takes it or raises the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqe_chain.codecs.aggregates import AggregatePart, Scalar, aggregates_of
from sqe_chain.errors import FlowError, PoisonError, text_of
from sqe_chain.flow.fields import compiled, read_field, step, walk
from sqe_chain.flow.functions import UserFunction

if TYPE_CHECKING:
    from sqe_chain.flow.declared_aggregates import Aggregation

Declared = Mapping[str, "Aggregation"]
"""Name of the field in the state -> its aggregate."""

_SCALARS: Final[Mapping[type | None, Scalar]] = {int: "int", float: "float", str: "str", bool: "bool"}

# Python's default limit (`sys.int_info.default_max_str_digits`): it refuses to write or read longer ones as text.
_DIGITS: Final = 4_300
LIMIT: Final = 10**_DIGITS
"""Sums stay below it, since Python writes no longer int as text. For such a state no single input would be to blame."""


def states_of(aggregations: Declared, python_type: type | None) -> type[Any]:
    """The class of the states of aggregates, for values of a type; None: the type is not known.

    Raises:
        FlowError: the type has no such field, or one that cannot be added up.
    """
    parts = []
    for name, aggregate in aggregations.items():
        of = (
            read_field(python_type, aggregate.field, optional=aggregate.optional).of
            if aggregate.field
            else None
        )
        takes, text = _TAKEN[aggregate.kind]
        if of is not None and takes and of not in takes:
            raise FlowError(f"{name}={aggregate}: the field is of type {of.__qualname__}; {text}")
        parts.append(AggregatePart(name, aggregate.kind, _SCALARS.get(of, "")))
    return aggregates_of(tuple(parts))


def fold_of(stage: str, aggregations: Declared, python_type: type | None) -> UserFunction:
    """The fold, ``(state, value) -> None``, of a stage, for values of a type.

    Where the type of the values is not known, a fold is made for each type that comes.

    Raises:
        FlowError: the type has no such field.
    """
    names = {**_NAMES, "refuse": partial(refuse, aggregations)}
    title = f"fold of stage {stage}"
    if python_type is not None:
        source = _fold_source(aggregations, python_type)
        made: UserFunction = compiled(title, source, "fold", names)
        return made
    names |= {"folds": {}, "fold_of_class": partial(_fold_of_class, stage, aggregations)}
    by_class: UserFunction = compiled(title, _BY_CLASS, "fold", names)
    return by_class


def _fold_source(aggregations: Declared, python_type: type) -> str:
    """The text of the fold of values of one type.

    Raises:
        FlowError: the type has no such field.
    """
    read = dict.fromkeys(
        (aggregate.field, aggregate.optional) for aggregate in aggregations.values() if aggregate.field
    )
    held = {wanted: f"field_{number}" for number, wanted in enumerate(read)}
    body = [
        f"{variable} = {read_field(python_type, field, optional=optional).text}"
        for (field, optional), variable in held.items()
    ]
    for name, aggregate in aggregations.items():
        body += _lines(name, aggregate, held.get((aggregate.field, aggregate.optional), ""))
    lines = "\n".join(f"        {line}" for line in body)
    return f"def fold(state, value):\n    try:\n{lines}\n    except Exception as error:\n        refuse(state, value, error)\n"


def merge_states(parts: Sequence[AggregatePart], state: Any, later: Any) -> None:  # noqa: ANN401 - of a generated class
    """Change the state of an earlier session by that of a later one.

    Raises:
        ValueError: a sum becomes infinite.
    """
    for name, kind, _ in parts:
        ours, theirs = getattr(state, name), getattr(later, name)
        merged: Any
        match kind:
            case "count" | "sum":
                merged = finite(ours + theirs)
            case "min":
                merged = theirs if ours is None or (theirs is not None and theirs < ours) else ours
            case "max":
                merged = theirs if ours is None or (theirs is not None and theirs > ours) else ours
            case "first":
                merged = theirs if ours is None else ours
            case "last":
                merged = ours if theirs is None else theirs
            case _:
                total, count = AggregatePart(name, kind).kept
                for kept in (total, count):
                    setattr(state, kept, finite(getattr(state, kept) + getattr(later, kept)))
                values = getattr(state, count)
                merged = getattr(state, total) / values if values else None
        setattr(state, name, merged)


def finite(number: float) -> float:
    """A number, if JSON can express it; ValueError: it is NaN, infinite, or too long."""
    if not _is_finite(number):
        raise ValueError(_objection(number))
    return number


def _is_finite(number: float) -> bool:
    return -LIMIT < number < LIMIT if number.__class__ is int else math.isfinite(number)


def _objection(number: float) -> str:
    return (
        f"it has more than {_DIGITS} digits"
        if number.__class__ is int
        else f"it is {number}, which cannot be stored"
    )


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    """A value, if JSON reads it back unchanged. Raises TypeError; ValueError for NaN, infinity, and parts of characters."""
    kind = value.__class__
    if kind is int or kind is bool or value is None:
        return value
    if kind is str:
        value.encode()
    elif kind is float:
        finite(value)
    elif kind is list:
        for part in value:
            plain(part)
    elif kind is dict:
        for name, part in value.items():
            if name.__class__ is not str:
                raise TypeError("a dict whose keys are not text is not JSON")
            plain(part)
            plain(name)
    else:
        raise TypeError(f"{_PLAIN}, not {kind.__qualname__}")
    return value


def ordered(value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    """A value that can be stored, and compared with others of its type. Raises as `plain`."""
    if value.__class__ not in (int, float, str, bool):
        raise TypeError(f"{_ORDERED}, not {value.__class__.__qualname__}")
    return plain(value)


def number(value: Any) -> NoReturn:  # noqa: ANN401 - whatever a field holds
    """Refuse what is no number (TypeError), or makes a sum infinite (ValueError)."""
    if value.__class__ is not int and value.__class__ is not float:
        raise TypeError(f"{_NUMBERS}, not {value.__class__.__qualname__}")
    if not _is_finite(value):
        raise ValueError(_objection(value))
    raise ValueError(f"the sum is too large: for a float, or for {_DIGITS} digits")


def refuse(aggregations: Declared, state: object, value: object, error: Exception) -> NoReturn:
    """Raise PoisonError for the aggregate that could not take a value, with the reason; `error`: what was raised."""
    for name, aggregate in aggregations.items():
        for objection in _objections(name, aggregate, state, value):
            raise PoisonError(f"{name}={aggregate}: {text_of(objection)}") from error
    raise PoisonError(f"{type(error).__name__}: {text_of(error)}") from error


def _objections(name: str, aggregate: Aggregation, state: object, value: object) -> Iterator[Exception]:
    """What is wrong with one aggregate's field."""
    try:
        given = walk(value, aggregate.field, optional=aggregate.optional) if aggregate.field else 0
        if given is None or aggregate.kind == "count":
            return
        if aggregate.kind in ("first", "last"):
            plain(given)
        elif aggregate.kind in ("min", "max"):
            kept = getattr(state, name)
            if kept is not None and (ordered(given).__class__ is str) != (kept.__class__ is str):
                raise TypeError(  # noqa: TRY301 - one way for all of them
                    f"a {type(given).__qualname__} cannot be compared with the {type(kept).__qualname__} that it has"
                )
            ordered(given)
        elif given.__class__ not in (int, float) or not _is_finite(given):
            number(given)
        else:
            total = (
                getattr(state, name if aggregate.kind == "sum" else AggregatePart(name, "mean").kept[0])
                + given
            )
            if not _is_finite(total):
                number(given)
    except Exception as error:  # noqa: BLE001 - also what a property of the value raises
        yield error


def _lines(name: str, aggregate: Aggregation, field: str) -> list[str]:
    """The text of one aggregate, for a field that is held in a variable."""
    total, values = (f"state.{kept}" for kept in AggregatePart(name, "mean").kept)
    text = _TEXTS[aggregate.kind if field else "count all"]
    return text.format(kept=f"state.{name}", field=field, total=total, values=values).splitlines()


def _fold_of_class(stage: str, aggregations: Declared, python_type: type) -> UserFunction:
    try:
        return fold_of(f"{stage} of {python_type.__qualname__}", aggregations, python_type)
    except FlowError as error:  # found when the first value of this type comes
        raise PoisonError(text_of(error)) from error


# Each text computes first and assigns last. A value that is refused leaves its aggregate as it was.
_TEXTS: Final[Mapping[str, str]] = {
    "count all": """\
{kept} += 1
""",
    "count": """\
if {field} is not None:
    {kept} += 1
""",
    "sum": """\
if {field}.__class__ is int:
    total = {kept} + {field}
    if not -limit < total < limit:
        number({field})
    {kept} = total
elif {field}.__class__ is float and (total := {kept} + {field}) - total == 0:
    {kept} = total
elif {field} is not None:
    number({field})
""",
    "mean": """\
if ({field}.__class__ is float or {field}.__class__ is int) and (total := {total} + {field}) - total == 0:
    values = {values} + 1
    {kept} = total / values
    {total}, {values} = total, values
elif {field} is not None:
    number({field})
""",
    "first": """\
if {kept} is None and {field} is not None:
    {kept} = {field} if {field}.__class__ is int else plain({field})
""",
    "last": """\
if {field} is not None:
    {kept} = {field} if {field}.__class__ is int else plain({field})
""",
    **{
        kind: f"""\
if {{field}} is not None:
    if {{field}}.__class__ is not int and ({{field}}.__class__ is not float or {{field}} - {{field}} != 0):
        ordered({{field}})
    if (kept := {{kept}}) is None or {{field}} {sign} kept:
        {{kept}} = {{field}}
"""
        for kind, sign in (("min", "<"), ("max", ">"))
    },
}
"""Kind of an aggregate -> its text. NaN and infinity are what gives no 0 if it is subtracted from itself."""
_BY_CLASS: Final = """\
def fold(state, value):
    found = folds.get(value.__class__)
    if found is None:
        found = folds[value.__class__] = fold_of_class(value.__class__)
    found(state, value)
"""
_NUMBERS: Final = "sum and mean take int and float"
_ORDERED: Final = "min and max compare int, float, str and bool"
_PLAIN: Final = "first and last keep int, float, str, bool, and lists and dicts of them"
_TAKEN: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "count": ((), ""),
    "sum": ((int, float), _NUMBERS),
    "mean": ((int, float), _NUMBERS),
    "min": ((int, float, str, bool), _ORDERED),
    "max": ((int, float, str, bool), _ORDERED),
    "first": ((int, float, str, bool, list, dict), _PLAIN),
    "last": ((int, float, str, bool, list, dict), _PLAIN),
}
"""Types that an aggregate takes, if the type of its field is declared, and the text for others."""
_NAMES: Final[Mapping[str, Any]] = {
    "step": step,
    "number": number,
    "ordered": ordered,
    "plain": plain,
    "limit": LIMIT,
}
