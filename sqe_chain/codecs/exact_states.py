"""Whether a state is exactly what its JSON is read back as: a function written for each type checks types and identities.

A state is encoded before, which refuses NaN, parts of characters and keys that are no text. Where the check cannot see the
reason (limits of fields, ``__post_init__``), it makes a round trip of that part.

>>> check = make_check(dict)
>>> check({"n": 1, "tags": ["a"]}, set()), check({"cell": (1, 2)}, set())
(True, False)
>>> tags = [1]
>>> check({"a": tags, "b": tags}, set())  # a store makes two of it
False
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final
from uuid import UUID

import msgspec
import msgspec.inspect as mi

from sqe_chain.codecs.exact_json import make_reader
from sqe_chain.codecs.type_walk import BOUNDS, RECORDS, Info, describe, inside, walk

Check = Callable[[Any, set[int]], bool]
"""Takes a value, and the identities of all lists, dicts and objects met so far, to which it adds: none may be met twice."""

_ALWAYS: Final[dict[type, type]] = {
    mi.IntType: int,
    mi.FloatType: float,
    mi.StrType: str,
    mi.BoolType: bool,
    mi.BytesType: bytes,
    mi.DateType: date,
    mi.UUIDType: UUID,
}
_BY_TEXT: Final[dict[type, type]] = {
    mi.TimeType: time,
    mi.TimeDeltaType: timedelta,
    mi.DecimalType: Decimal,
    mi.DateTimeType: datetime,
}
_LISTS: Final[dict[type, type]] = {
    mi.ListType: list,
    mi.SetType: set,
    mi.FrozenSetType: frozenset,
    mi.VarTupleType: tuple,
    mi.CollectionType: list,
}
_FIXED: Final = (*_ALWAYS, *_BY_TEXT, mi.NoneType, mi.EnumType, mi.LiteralType)
_FIXED_HOLDERS: Final = (mi.UnionType, mi.TupleType, mi.VarTupleType, mi.FrozenSetType)
_VISIBLE: Final = (*_FIXED, *_LISTS, *RECORDS, mi.UnionType, mi.TupleType, mi.DictType, mi.AnyType)
"""Descriptions whose values the check can see, unless they have bounds."""
_FLAT: Final = (*_ALWAYS, mi.NoneType, mi.UnionType)
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_encode = msgspec.json.Encoder(order="deterministic").encode


@cache
def make_check(python_type: Any) -> Check:  # noqa: ANN401 - a struct, a dataclass, or a plain type
    """The check for values of a type that have been encoded."""
    writer = _CheckWriter()
    test = writer.test(describe(python_type), "v", root=True)
    exec(f"def check(v, s):\n return {test}", writer.scope)  # noqa: S102 - our own text
    check: Check = writer.scope["check"]
    return check


@cache
def make_flat_check(python_type: Any) -> Callable[[Any], bool] | None:  # noqa: ANN401 - the same
    """The same check for a struct or dataclass whose fields are text, numbers and the like; None: the type holds more."""
    writer, info = _CheckWriter(), describe(python_type)
    if not isinstance(info, RECORDS) or not _is_visible(info):
        return None
    if not all(isinstance(part, _FLAT) for field in info.fields for part in walk(field.type)):
        return None
    check: Callable[[Any], bool] = writer.scope[writer.record(info)]
    return check


@cache
def make_settle(python_type: Any) -> Callable[[Any], None] | None:  # noqa: ANN401 - the same
    """What makes floats of ints in fields of floats, as decoding does; None: the type has no such field."""
    scope: dict[str, Any] = {}
    lines = _write_settle(describe(python_type), "v", (), scope)
    if not lines:
        return None
    exec("\n".join(["def settle(v):", *lines]), scope)  # noqa: S102 - our own text
    settle: Callable[[Any], None] = scope["settle"]
    return settle


def explain_difference(state: object, read: object) -> str:
    """Why a state is not exact: what differs from what was read back, or which object is met twice."""
    if difference := next(_find_differences(state, read, ""), None):
        return f"{difference}. Expected exactly what is read back. Store that"
    elsewhere = "it holds an object that another state holds, too, read back as two"
    return f"{next(_find_repeated(state, '', {}), elsewhere)}. Expected each in one place. Store a copy, or its index"


def find_changes(value: object, read: object) -> Iterator[str]:
    """What is not as it was once a value was read back; an int that is the same float is."""
    return (
        text
        for text in _find_differences(value, read, "")
        if not text.endswith("is a int, read back a float")
    )


def _write_settle(info: Info, v: str, above: tuple[type, ...], scope: dict[str, Any]) -> list[str]:
    """The lines for the fields of a struct or dataclass, and of those in its fields."""
    # A class within itself ends here: text has no loops. `check` refuses an int that is left there.
    if not isinstance(info, RECORDS) or is_frozen(info.cls) or info.cls in above:
        return []
    lines: list[str] = []
    indent = " " * (len(above) + 1)
    for field in info.fields:
        kinds: tuple[Info, ...] = field.type.types if isinstance(field.type, mi.UnionType) else (field.type,)
        name = f"{v}.{field.name}"
        if mi.FloatType in map(type, kinds) and mi.IntType not in map(type, kinds):
            lines.append(f"{indent}if {name}.__class__ is int: {name} = float({name})")
        for kind in kinds:
            if below := _write_settle(kind, name, (*above, info.cls), scope):
                scope[cls := f"x{len(scope)}"] = kind.cls
                lines += [f"{indent}if {name}.__class__ is {cls}:", *below]
    return lines


class _CheckWriter:
    """Writes the check of a type; `scope` is what its text refers to."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {
            "plain": _is_plain,
            "new": _is_new,
            "reads_back": _reads_back,
            "parts": parts_of,
            "apart": _is_apart,
            "utc": UTC,
        }
        self._known: dict[type, str] = {}

    def _name(self, thing: object) -> str:
        self.scope[name := f"x{len(self.scope)}"] = thing
        return name

    def test(self, info: Info, v: str, *, root: bool = False) -> str:
        """An expression that is true where `v`, a name or a short expression, is as described; see `_is_visible`."""
        kind, is_a = type(info), f"{v}.__class__ is "
        if always := _ALWAYS.get(kind):
            return is_a + self._name(always)
        if by_text := _BY_TEXT.get(kind):
            quick = f"{v}.tzinfo is utc or " if by_text is datetime else ""
            return f"({is_a}{(name := self._name(by_text))} and ({quick}reads_back({name}, {v})))"
        if holder := _LISTS.get(kind):
            once = f" and new({v}, s)" if holder in (list, set) else ""
            return f"({is_a}{holder.__name__}{once} and all([{self.test(info.item_type, 'e')} for e in {v}]))"
        if isinstance(info, RECORDS):
            once = "" if root or _is_fixed(info) else f" and new({v}, s)"
            return f"({self._known.get(info.cls) or self.record(info)}({v}, s){once})"
        return self._other(info, v)

    def _other(self, info: Info, v: str) -> str:
        match info:
            case mi.AnyType():
                text = f"plain({v}, s)"
            case mi.NoneType():
                text = f"{v} is None"
            case mi.EnumType():
                text = f"{v}.__class__ is {self._name(info.cls)}"
            case mi.LiteralType():
                text = (
                    f"(({v}.__class__, {v}) in {self._name([(type(value), value) for value in info.values])})"
                )
            case mi.UnionType():
                text = f"({' or '.join(self.test(kind, v) for kind in info.types)})"
            case mi.TupleType():
                each = [self.test(kind, f"{v}[{i}]") for i, kind in enumerate(info.item_types)]
                text = f"({' and '.join([f'{v}.__class__ is tuple', f'len({v}) == {len(each)}', *each])})"
            case _:  # a dict
                pairs = f"{self.test(info.key_type, 'k')} and {self.test(info.value_type, 'e')}"
                each_pair = f"all([k.__class__ is str and {pairs} for k, e in {v}.items()])"
                text = f"({v}.__class__ is dict and new({v}, s) and {each_pair})"
        return text

    def record(self, info: Info) -> str:
        """A function for a struct or dataclass, so that it may refer to itself."""
        # Its name is known before its text is made: a field may hold the same class again.
        cls, name = info.cls, self._known.setdefault(info.cls, f"check_{len(self._known)}")
        config = getattr(cls, "__struct_config__", None)
        own = "" if config or hasattr(cls, "__slots__") else f" and len(v.__dict__) == {len(info.fields)}"
        tests = [f"v.__class__ is {self._name(cls)}{own}"]
        if _is_visible(info):
            tests += [self.test(field.type, f"v.{field.name}") for field in info.fields]
        else:
            tests.append(
                f"reads_back({self._name(cls)}, v) and all([apart(part, s) for _, part in parts(v)])"
            )
        exec(f"def {name}(v, s=()):\n return {' and '.join(tests)}", self.scope)  # noqa: S102 - our own text
        return name


def _is_visible(record: Info) -> bool:
    """Whether the check sees all that matters in a record: no limits, TypedDict, skipped field, or code that runs when it is read."""
    if hasattr(record.cls, "__post_init__") or any(field.name.startswith("_") for field in record.fields):
        return False
    return all(
        isinstance(part, _VISIBLE) and all(getattr(part, bound, None) is None for bound in BOUNDS)
        for field in record.fields
        for part in inside(field.type)
    )


def _is_plain(v: Any, seen: set[int]) -> bool:  # noqa: ANN401 - any value
    """The check where no type is declared: dict, list, text, numbers, exactly these; containers at a time."""
    kind = v.__class__
    if kind is not dict and kind is not list:
        return kind in _SCALARS
    if id(v) in seen:
        return False
    seen.add(id(v))
    parts = v if kind is list else v.values()
    if not _SCALARS.issuperset(map(type, parts)):
        below = [_is_plain(part, seen) for part in parts if part.__class__ not in _SCALARS]
        if not all(below):
            return False
    return kind is list or {str}.issuperset(map(type, v))


def _is_new(v: object, seen: set[int]) -> bool:
    if id(v) in seen:
        return False
    seen.add(id(v))
    return True


def _is_apart(v: Any, seen: set[int]) -> bool:  # noqa: ANN401 - any value
    """Whether no object in a value was met before."""
    parts = list(parts_of(v))
    if (parts or isinstance(v, dict | list | set)) and not isinstance(v, tuple) and not _is_new(v, seen):
        return False
    return all(_is_apart(part, seen) for _, part in parts)


def _reads_back(kind: Any, v: object) -> bool:  # noqa: ANN401 - a type
    try:
        read = _reader(kind)(_encode(v))
    except (msgspec.MsgspecError, TypeError, ValueError):
        return False
    return next(_find_differences(v, read, ""), None) is None


@cache
def _reader(kind: Any) -> Callable[[bytes], Any]:  # noqa: ANN401 - a type
    return make_reader(kind)


def _find_differences(a: Any, b: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - any value
    """Where two values are not equal, or not of equal types."""
    it = path or "it"
    if a.__class__ is not b.__class__:
        yield f"{it} is a {type(a).__qualname__}, read back a {type(b).__qualname__}"
        return
    parts, read = dict(parts_of(a)), dict(parts_of(b))
    for name in dict.fromkeys((*parts, *read)):
        if name in parts and name in read:
            yield from _find_differences(parts[name], read[name], path + name)
        else:
            yield f"{path}{name} is there before or after only"
    if not parts and not _is_same(a, b):
        yield f"{it} is another {type(a).__qualname__}"


def _is_same(a: Any, b: Any) -> bool:  # noqa: ANN401 - values of one type without parts
    if isinstance(a, set | frozenset):
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, datetime) and a.tzinfo is not None:  # its offset decides which of two equal times it is
        return repr(a.replace(fold=0)) == repr(b)
    return repr(a) == repr(b) if isinstance(a, datetime | time | Decimal) else bool(a == b)


def parts_of(v: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any value
    """The parts of a value, each with how it is reached."""
    if isinstance(v, dict):
        yield from ((f"[{name!r}]", part) for name, part in v.items())
    elif isinstance(v, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(v))
    elif declared := getattr(v, "__struct_fields__", None) or getattr(v, "__dataclass_fields__", None):
        names = dict.fromkeys((*declared, *getattr(v, "__dict__", ())))
        yield from ((f".{name}", getattr(v, name)) for name in names if hasattr(v, name))


def _find_repeated(v: Any, path: str, seen: dict[int, str]) -> Iterator[str]:  # noqa: ANN401 - any value
    """Objects that are met twice."""
    parts = list(parts_of(v))
    if (parts or isinstance(v, dict | list | set)) and not isinstance(v, tuple):
        before = seen.setdefault(id(v), path)
        if before != path:
            yield f"{before} and {path} are one object, read back as two"
            return
    for where, part in parts:
        yield from _find_repeated(part, path + where, seen)


def is_frozen(cls: type) -> bool:
    """Whether nobody can put something else into the fields of a struct or a dataclass."""
    config = getattr(cls, "__struct_config__", None) or getattr(cls, "__dataclass_params__", None)
    return config is not None and bool(config.frozen)


def _is_fixed(info: Info) -> bool:
    """Whether nobody can change a value, nor anything in it."""
    return all(
        is_frozen(part.cls) if isinstance(part, RECORDS) else isinstance(part, (*_FIXED, *_FIXED_HOLDERS))
        for part in walk(info)
    )
