"""Which globals the code of a function names: what it reads of them, and what it assigns.

It is read from the instructions: `RATE`, `rates.RATE`, `Rates.RATE`, `CONFIG["rate"]`, and the same after an import within the function.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from dis import Instruction
from types import CodeType, ModuleType
from typing import Any, Final

_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_ASSIGNS: Final = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_NONE: Final = object()


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a global.

    Attributes:
        name: of the global; empty: the module that the function itself imports.
        value: the global's.
        members: attributes of attributes, from the global on.
        key: constant key that is read, a text; None: none is.
        assigns: whether the last of these is assigned, not read.
        looks: whether a dict is only looked at.
    """

    name: str
    value: Any
    members: tuple[str, ...] = ()
    key: str | None = None
    assigns: bool = False
    looks: bool = False


def uses_of(code: CodeType, around: dict[str, Any]) -> Iterator[Use]:
    """The uses of globals in code, and in code within it, where the globals exist."""
    steps = list(_single(dis.get_instructions(code)))
    imported: dict[str, ModuleType] = {}
    for at, step in enumerate(steps):
        name = step.argval
        if step.opname == "IMPORT_NAME" and isinstance(sys.modules.get(name), ModuleType):
            yield from _imports(steps, at, imported)
        elif step.opname in {"STORE_GLOBAL", "DELETE_GLOBAL"}:
            yield Use(name, around.get(name), assigns=True)
        elif step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and name in around:
            yield from _use(name, around[name], steps, at + 1)
        elif step.opname.startswith("LOAD_FAST") and isinstance(name, str) and name in imported:
            yield from _use("", imported[name], steps, at + 1)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from uses_of(constant, around)


def _single(steps: Iterable[Instruction]) -> Iterator[Instruction]:
    """Two instructions for each one that Python 3.13 and later combine from two: `LOAD_FAST_LOAD_FAST` has two names."""
    for step in steps:
        parts = re.findall("(?:LOAD|STORE)_FAST", step.opname)
        if isinstance(step.argval, tuple) and len(parts) == len(step.argval):
            for part, name in zip(parts, step.argval, strict=True):
                yield step._replace(opname=part, argval=name)
        else:
            yield step


def members_assigned(code: CodeType) -> set[str]:
    """Attributes that code assigns, of whatever object."""
    if not any(dis.opmap[name] in code.co_code[::2] for name in _ASSIGNS):
        return set()
    return {step.argval for step in dis.get_instructions(code) if step.opname in _ASSIGNS}


def _imports(steps: Sequence[Instruction], at: int, imported: dict[str, ModuleType]) -> Iterator[Use]:
    """What an import within a function takes: names of the module, or the module under a local name."""
    module = sys.modules[steps[at].argval]
    following = steps[at + 1]
    if following.opname == "IMPORT_FROM":
        names = [
            step.argval
            for step in steps[at + 1 :]
            if step.opname == "IMPORT_FROM" and hasattr(module, step.argval)
        ]
        for name in dict.fromkeys(names):
            yield Use("", module, (name,))
    elif following.opname == "STORE_FAST":
        imported[following.argval] = sys.modules[steps[at].argval.partition(".")[0]]


def _use(name: str, value: Any, steps: Sequence[Instruction], at: int) -> Iterator[Use]:  # noqa: ANN401 - of a module
    members: list[str] = []
    if steps[at].opname in {"COPY", "DUP_TOP"}:  # an augmented assignment
        for step in steps[at:]:
            if step.opname in _ASSIGNS:
                yield Use(name, value, (step.argval,), assigns=True)
        return
    while steps[at].opname in _ATTRIBUTE:
        members.append(steps[at].argval)
        at += 1
    step, following = steps[at], steps[min(at + 1, len(steps) - 1)]
    if step.opname in _ASSIGNS:
        yield Use(name, value, (*members, step.argval), assigns=True)
        return
    constant = step.argval if step.opname == "LOAD_CONST" and isinstance(step.argval, str) else None
    if constant is not None and _subscribes(following):
        yield Use(name, value, tuple(members), constant)
    elif constant is not None and members[-1:] == ["get"]:
        yield Use(name, value, tuple(members[:-1]), constant)
    else:
        yield Use(name, value, tuple(members), looks=step.opname == "CONTAINS_OP")


def _subscribes(step: Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")
