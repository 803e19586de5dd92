"""What a function could see or change beside its arguments, and where its code is."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from sqe_chain.flow.shapes import code_of
from sqe_chain.testing.proving.contents import Content, content_of

_DEEPEST: Final = 3
"""Functions that call each other, as far as they are followed."""


def surroundings(function: Any) -> dict[str, Content]:  # noqa: ANN401 - of the user
    """What a function could change or see beside its arguments: name -> content.

    The context of decimals, globals, what it closes over, its defaults, and the object that it belongs to; the same of functions that it names.
    """
    context = decimal.getcontext()
    contents: dict[str, Content] = {"decimal.getcontext()": (context.prec, context.rounding)}
    for name, value in _seen_by(function, 0):
        contents.setdefault(name, content_of(value))
    return contents


def _seen_by(function: Any, depth: int) -> Iterator[tuple[str, Any]]:  # noqa: ANN401, C901 - one for each kind of callable
    if isinstance(function, partial):
        yield from (
            ("an argument of partial()", argument)
            for argument in (*function.args, *function.keywords.values())
        )
        function = function.func
    if isinstance(function, MethodType):
        yield f"self of {function.__qualname__}", function.__self__
        function = function.__func__
    elif not isinstance(function, FunctionType | BuiltinFunctionType | type):
        yield f"self of {type(function).__qualname__}", function
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its code is wanted
    if not isinstance(function, FunctionType) or depth > _DEEPEST:
        return
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    held: dict[str, Any] = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:
            continue  # not bound yet
    for number, default in enumerate(function.__defaults__ or ()):
        held[f"default {number + 1}"] = default
    for name, value in sorted(held.items()):
        if isinstance(value, FunctionType | MethodType):
            yield from _seen_by(value, depth + 1) if value is not function else ()
        elif isinstance(value, type):
            if value.__module__ == function.__module__:
                own = {k: v for k, v in vars(value).items() if not (k.startswith("__") or callable(v))}
                yield name, {k: v for k, v in own.items() if not hasattr(v, "__get__")}
        elif not isinstance(value, ModuleType | BuiltinFunctionType):
            yield name, value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def place_of(function: Any) -> str:  # noqa: ANN401 - of the user
    """File and line of a function; empty for one without Python code."""
    code = code_of(function)
    return f"{short(code.co_filename)}:{code.co_firstlineno}" if code else ""


def short(file: str) -> str:
    """The path of a file from the working directory on, if it lies there."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file
