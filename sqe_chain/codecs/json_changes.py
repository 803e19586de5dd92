"""Whether a type reads in JSON what another type wrote, by their shapes.

The rules (also in docs/payloads.md): a field may be added if it has a default, and removed. Its type may become
wider (int to float, more alternatives, fewer bounds). A field removed *together with* a new one is refused: it looks like a
renamed field, which would start at its default again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

from sqe_chain.codecs.json_shape import FieldShape, fields_in, forbids, whole_shape

_TEXT: Final = ("datetime", "date", "time", "timedelta", "uuid", "decimal")
"""Kinds that are text in JSON, which means the same as it is."""
_LISTS: Final = {"set": ("set", "array")}
"""What reads a list in JSON, beside its own kind. A set would lose what is twice in it."""
_AT_LEAST: Final = frozenset({"ge", "gt", "min_length"})
_AT_MOST: Final = frozenset({"le", "lt", "max_length"})

Names = tuple[str, str]
"""Of a class that wrote, and of the one that reads."""


def misread(was: Mapping[str, str], python_type: type, names: Names) -> str:
    """Whether a type would misread what another one wrote.

    Returns:
        The first difference that matters, in words; empty when there is none.
    """
    return next(_find_differences(was, whole_shape(python_type, names[1]), names, set()), "")


def _find_differences(
    was: Mapping[str, str], now: Mapping[str, str], names: Names, seen: set[Names]
) -> Iterator[str]:
    # Seen: a class within itself is compared once. Not in a shape: it was cut at `LENGTH_LIMIT`, so nothing is known
    # of it.
    if names in seen or names[0] not in was or names[1] not in now:
        return
    seen.add(names)
    known, after = fields_in(was[names[0]]), fields_in(now[names[1]])
    for name, field in after.items():
        pairs: list[Names] = []
        yield from _of_field(known.get(name), field, pairs)
        for pair in pairs:
            yield from _find_differences(was, now, pair, seen)
    added = [name for name in after if name not in known]
    gone = [name for name, field in known.items() if field.mark != "-" and name not in after]
    if added and gone:
        yield (
            f"{_subject(gone)} gone and {_subject(added)} new: if a field was renamed, keep its old name in JSON with "
            f"msgspec.field(name={gone[0]!r}); if not, remove and add in two releases"
        )
    left = [name for name in known if name not in after]
    if left and forbids(now[names[1]]):
        yield f"{_subject(left)} gone, but still in what was written before, and unknown fields are forbidden"


def _of_field(before: FieldShape | None, field: FieldShape, pairs: list[Names]) -> Iterator[str]:
    """The differences of a field; of a class that it holds, the names are added to `pairs`."""
    what = f"field {field.at or field.name!r}"
    if before is None:
        if field.mark == "!":
            yield f"{what} is new and has no default"
    elif before.at != field.at and before.at is not None and field.at is not None:
        yield (
            f"place {field.name} of the array had field {before.at!r}, now it has {field.at!r}: fields of an array may be added at its end, "
            f"and keep their places; keep the name of a renamed one with msgspec.field(name={before.at!r})"
        )
    elif not _reads(before.kind, field.kind, pairs):
        yield f"field {field.name!r} was {unquote(before.kind)}, now it is {unquote(field.kind)}"
    elif before.default is not None and field.mark == "!":
        yield f"{what} may be missing in what was written before, and has no default now"
    elif before.default is not None and field.default is not None and before.default != field.default:
        yield (
            f"{what} may be missing in what was written before, which then meant {unquote(before.default)}; now it would mean "
            f"{unquote(field.default)}: keep the default, or give the field another name in JSON"
        )


def _subject(fields: list[str]) -> str:
    names = ", ".join(map(repr, fields))
    return f"field {names} is" if len(fields) == 1 else f"fields {names} are"


def _reads(was: str, now: str, pairs: list[Names]) -> bool:
    """Whether a field of one kind reads what another kind wrote; pairs of classes to compare are added to `pairs`."""
    if now == "any":
        return True
    before, after = _split(was, "|"), _split(now, "|")
    old, new = ([kind for kind in kinds if kind.startswith(".")] for kinds in (before, after))
    if len(old) == 1 < len(new) and "{tag=" not in old[0]:
        return False  # nothing in a value names its class among several
    return all(_any_reads(kind, after, pairs) for kind in before)


def _any_reads(was: str, alternatives: list[str], pairs: list[Names]) -> bool:
    for now in alternatives:
        classes: list[Names] = []
        if _alternative_reads(was, now, classes):
            pairs += classes
            return True
    return False


def _alternative_reads(was: str, now: str, pairs: list[Names]) -> bool:
    (was, held), (now, wanted) = _limited(was), _limited(now)
    if not _within(held, wanted):
        return False
    if was.startswith(".") and now.startswith("."):
        pairs.append((was[1:], now[1:]))  # their fields are compared on their own
        return True
    if was.startswith("oneof<"):
        return _all_of(_inner(was), now)
    (holder, _, _), (reader, _, _) = was.partition("<"), now.partition("<")
    if was.endswith(">") and now.endswith(">") and reader in _LISTS.get(holder, (holder,)):
        both = _inner(was), _inner(now)
        if reader == "set" and "int" in _split(both[0][0], "|") and "int" not in _split(both[1][0], "|"):
            return False  # two large ints may be one float
        alike = len(both[0]) == len(both[1])
        return alike and all(_reads(old, new, pairs) for old, new in zip(*both, strict=True))
    return was == now or (was, now) == ("int", "float") or (was in _TEXT and now == "str")


def _all_of(values: list[str], now: str) -> bool:
    """Whether each of some values, as escaped JSON, is read: they are among others, or of one type."""
    if now.startswith("oneof<"):
        return set(values) <= set(_inner(now))
    kinds = {_kind_of(unquote(value)) for value in values}
    return kinds <= ({"int", "float"} if now == "float" else {now})


def _kind_of(value: str) -> str:
    named = {"null": "none", "true": "bool", "false": "bool"}.get(value)
    if named is not None or value.startswith('"'):
        return named or "str"
    return "int" if value.lstrip("-").isdigit() else "float"


def _within(held: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all that keeps some bounds keeps others."""
    for name, bound in wanted.items():
        known = held.get(name)
        if name in _AT_LEAST | _AT_MOST and known is not None:
            least, most = (known, bound) if name in _AT_LEAST else (bound, known)
            if float(least) < float(most):
                return False
        elif known != bound:
            return False
    return "tag" in wanted or "tag" not in held


def _limited(kind: str) -> tuple[str, dict[str, str]]:
    """A kind without its bounds, and those."""
    if not kind.endswith("}"):
        return kind, {}
    at = kind.rindex("{")
    pairs = (bound.partition("=") for bound in kind[at + 1 : -1].split(";"))
    return kind[:at], {name: bound for name, _, bound in pairs}


def _inner(kind: str) -> list[str]:
    """What is between the brackets of a kind."""
    return _split(kind[kind.index("<") + 1 : -1], ",")


def _split(kind: str, sign: str) -> list[str]:
    """The parts of a kind between signs that are outside brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(kind):
        depth += (letter == "<") - (letter == ">")
        if letter == sign and not depth:
            parts.append(kind[begin:index])
            begin = index + 1
    return [*parts, kind[begin:]]
