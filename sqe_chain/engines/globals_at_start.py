"""Whether globals that the functions of a flow name are, in a process that runs tasks, what they are in the service.

Functions of importable modules are sent by name. What a program sets in such a module after its import, as in
`rates.FACTOR = 5`, stays in the program's own process. Other processes import the module, and have what its text gives. So the
service notes the values when it packs the flow, and each process compares its own with them once, before its first task.

Compared are values that change by assignment only: numbers, texts, bytes, times, None, enums, decimal contexts, and tuples,
frozensets and frozen dataclasses of them. They are globals, attributes of modules, classes and objects, and what a dict has
under a constant key. What the flow's own functions assign is a cache or a counter, and is not compared.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqe_chain.engines.module_sources import is_installed
from sqe_chain.engines.named_globals import Use, members_assigned, uses_of
from sqe_chain.errors import ConfigurationError

_SHOWN: Final = 60
"""Characters of a value in an error."""
_NAMED: Final = 3
"""Globals that an error names at most."""
_MISSING: Final = "nothing"
_HERE: Final = "<where modules are>"
"""In place of the directory of a module: it may be another one on each machine."""
_PLAIN: Final = (
    int,
    float,
    complex,
    str,
    bytes,
    Decimal,
    Fraction,
    date,
    time,
    timedelta,
    tzinfo,
    UUID,
    PurePath,
    range,
)
_MAKES: Final = frozenset({"__init__", "__post_init__", "__new__", "__setstate__"})
_SECRET: Final = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE)
_DEEPEST: Final = 20
"""Functions that name each other, as far as they are followed."""


class _GlobalPlace(NamedTuple):
    """Where a value is: a global of a module, or what a global has.

    Attributes:
        module: name of the module.
        name: of the global; of a class its qualified name.
        member: name of an attribute, or a key; empty: the global itself.
        by_key: whether `member` is the key of a dict.
    """

    module: str
    name: str
    member: str = ""
    by_key: bool = False

    def __str__(self) -> str:
        """As code of the module names it."""
        return (
            f"{self.name}[{self.member!r}]"
            if self.by_key
            else f"{self.name}{self.member and '.' + self.member}"
        )


Noted = Mapping[_GlobalPlace, tuple[str, str]]
"""Where a value is -> the value in the service as a text, and the function that names it."""


class Different(NamedTuple):
    """A global that is something else here than in the service; both values are shortened texts."""

    place: _GlobalPlace
    function: str
    service: str
    here: str


def globals_of(functions: Iterable[object]) -> Noted:
    """The values of globals that functions, the methods of classes, and what they name could see in their modules."""
    walk = _Walk()
    for function in functions:
        walk.follow(function)
    return walk.noted()


def differing_globals(noted: Noted) -> list[Different]:
    """Those that are something else in this process. A module that is not imported yet is imported."""
    different = []
    for place, (text, function) in noted.items():
        here = _text_here(place)
        if here is not None and here != text:
            different.append(Different(place, function, _shown(place, text), _shown(place, here)))
    return different


def check_globals(noted: Noted) -> None:
    """Check that globals are here what they are in the service.

    Raises:
        ConfigurationError: some are not, so functions would give something else here.
    """
    different = differing_globals(noted)
    if not different:
        return
    texts = [
        f"{place} of module {place.module!r}, which {function}() names, is {service} in the service, and {here} in a process that "
        "only imports the module"
        for place, function, service, here in different[:_NAMED]
    ]
    raise ConfigurationError(
        f"a global is not the same in all processes of the service: {'; '.join(texts)}. Expected one value. Set it where the module is "
        "imported, for example from an environment variable. Or give it to the function where the flow is declared: "
        "functools.partial(function, value)"
    )


class _Walk:
    """Follows functions to what they name; see `_is_followed` how far."""

    def __init__(self) -> None:
        self._noted: dict[_GlobalPlace, tuple[str, str]] = {}
        self._done: set[int] = set()
        self._assigned: set[_GlobalPlace] = set()
        self._members: set[str] = set()

    def noted(self) -> Noted:
        """What was found, without what the functions themselves change."""
        return {
            place: noted
            for place, noted in sorted(self._noted.items())
            if not {place, place._replace(member="", by_key=False)} & self._assigned
            and (place.by_key or place.member not in self._members)
        }

    def follow(self, function: Any, depth: int = 0) -> None:  # noqa: ANN401 - whatever a function names
        """Note what a function names, or what the methods of a class do."""
        if id(function) in self._done or depth > _DEEPEST:
            return
        self._done.add(id(function))
        if not isinstance(function, type) and is_wrapper(function):
            self.follow(function.__wrapped__, depth + 1)
        if isinstance(function, type):
            for method in vars(function).values():
                own = getattr(method, "__func__", None) or getattr(method, "fget", None) or method
                if isinstance(own, FunctionType) and own.__name__ not in _MAKES:
                    self._members |= members_assigned(own.__code__)
                    self.follow(own, depth + 1)
        elif isinstance(function, FunctionType) and _is_of_user(function.__module__ or ""):
            for cell in _closure(function):
                if isinstance(cell, FunctionType):
                    self.follow(cell, depth + 1)
            for use in uses_of(function.__code__, function.__globals__):
                self._hold(use, function, depth)

    def _hold(self, use: Use, function: FunctionType, depth: int) -> None:
        """Note a use, or follow what is used."""
        value, members, place, sent = _resolved(use, function)
        if not _is_followed(place.module, function.__module__) or place.name.startswith("__"):
            return
        if use.assigns:
            self._assigned.add(place._replace(member=".".join(members)))
        elif isinstance(value, dict):
            if not (members or sent):
                self._hold_item(use, value, place, function)
        elif isinstance(value, FunctionType) or is_wrapper(value):
            self.follow(value, depth + 1)
        elif not members or _text_of(value, place.module) is not None:
            if not sent:
                self._note(place, value, function)
        elif not isinstance(value, ModuleType):
            own = {} if sent else getattr(value, "__dict__", {})
            if members[0] in own:
                self._note(place._replace(member=members[0]), own[members[0]], function)
            self.follow(value if isinstance(value, type) else type(value), depth + 1)

    def _hold_item(
        self, use: Use, value: dict[Any, Any], place: _GlobalPlace, function: FunctionType
    ) -> None:
        """Note what a dict has under a constant key. Who does anything else with it may change it."""
        if use.key is not None:
            self._note(place._replace(member=use.key, by_key=True), value.get(use.key, _MISSING), function)
        elif not use.looks:
            self._assigned.add(place)

    def _note(self, place: _GlobalPlace, value: object, function: FunctionType) -> None:
        text = _MISSING if value is _MISSING else _text_of(value, place.module)
        if text is not None:
            self._noted.setdefault(place, (text, function.__qualname__))


def _resolved(use: Use, function: FunctionType) -> tuple[Any, tuple[str, ...], _GlobalPlace, bool]:
    """What is used: the value that modules have, what is left of the members, where it is, and whether it is sent with the function."""
    value, members = use.value, use.members
    module, name = function.__globals__.get("__name__", ""), use.name
    sent = not _is_importable(function)
    while isinstance(value, ModuleType) and members:
        module, name, value = value.__name__, members[0], vars(value).get(members[0])
        members, sent = members[1:], False
    if isinstance(value, type) and _is_importable(value):
        module, name, sent = value.__module__, value.__qualname__, False
    return value, members, _GlobalPlace(module, name), sent


def _is_importable(held: FunctionType | type) -> bool:
    """Whether a function or class is found by its name in its module, so that it is sent by name."""
    module = sys.modules.get(held.__module__ or "")
    if module is None or held.__module__ in {"__main__", "__mp_main__"}:
        return False
    named = _member_of(module, held.__qualname__)
    while named is not held and is_wrapper(named):
        named = named.__wrapped__
    return named is held


def is_wrapper(held: object) -> bool:
    """Whether something wraps a function, as `functools.cache` and `functools.wraps` note it."""
    return "__wrapped__" in getattr(held, "__dict__", ())


def _member_of(module: ModuleType, name: str) -> Any:  # noqa: ANN401 - whatever a module holds
    """What a module holds under a qualified name; `_MISSING`: nothing."""
    held: Any = module
    for part in name.split("."):
        held = getattr(held, part, _MISSING)
    return held


def _closure(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _is_of_user(module: str) -> bool:
    top = module.partition(".")[0]
    return bool(top) and top != "sqe_chain" and top not in sys.stdlib_module_names


def _is_followed(module: str, by: str) -> bool:
    """Whether to look into a module: an installed one only if the function that names it belongs to the same package."""
    if not _is_of_user(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.partition(".")[0] == by.partition(".")[0] or not (file and is_installed(Path(file)))


def _text_here(place: _GlobalPlace) -> str | None:
    """A value in this process as a text; None: its module cannot be imported here."""
    try:
        module = importlib.import_module(place.module)
    except ImportError:
        return None
    value = _member_of(module, place.name)
    if place.by_key:
        value = value.get(place.member, _MISSING) if isinstance(value, dict) else _MISSING
    elif place.member:
        value = getattr(value, place.member, _MISSING)
    if value is _MISSING:
        return _MISSING
    return _text_of(value, place.module) or f"a {type(value).__qualname__}"


def _text_of(value: object, module: str) -> str | None:
    """A value that changes by assignment only, as a text that is equal for equal values; None: it is of another kind."""
    if value is None:
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    parts = _parts_of(value)
    if parts is not None:
        texts = [_text_of(part, module) for part in parts]
        known = [text for text in texts if text is not None]
        ordered = sorted(known) if isinstance(value, frozenset) else known
        return f"{type(value).__name__}({', '.join(ordered)})" if len(known) == len(texts) else None
    if isinstance(value, Context):
        value = value.copy()
        value.clear_flags()
    elif not isinstance(value, _PLAIN):
        return None
    try:
        return repr(value).replace(_directory(module), _HERE)
    except ValueError:  # more digits than Python writes
        return None


def _parts_of(value: object) -> Iterable[object] | None:
    """What a value consists of; None: it has no parts, or they can be changed."""
    if isinstance(value, frozenset | tuple):
        return value
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    if frozen and is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name, None) for each in fields(value)]
    return None


def _directory(module: str) -> str:
    """Where the top package of a module is imported from."""
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    return str(Path(file).parent) if file else _HERE


def _shown(place: _GlobalPlace, text: str) -> str:
    if _SECRET.search(f"{place.name}.{place.member}") and text not in {_MISSING, "None"}:
        return f"a value with the digest {blake2b(text.encode(), digest_size=4).hexdigest()}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
