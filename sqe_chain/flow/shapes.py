"""What the user's functions may be, and may return.

What a function shows is refused where it is declared: a coroutine, a generator where one value is expected, a type. So is a fold
that loses what it has made. The rest is refused when it is returned.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, Literal, NewType, get_origin

from sqe_chain.errors import FlowError, PoisonError

Gives = Literal["one", "many", "nothing"]
"""What a function returns: a value; an iterable of values, or None; nothing, for it changes its first argument."""

_A_FOLD: Final = "a fold changes its state in place"
ITERABLES: Final = frozenset({list, tuple, types.GeneratorType})
"""What functions that give many values mostly return: these need no closer look."""
_READ_OUT: Final = frozenset({"setdefault", "get"})
"""Methods that give a part of a state, which a fold may go on with."""


def check_callable(what: str, function: Any, where: str, gives: Gives = "one") -> None:  # noqa: ANN401 - it is checked here
    """Refuse what is no function, or one that cannot give what is expected of it; `what`: its argument's name.

    Raises:
        FlowError: it cannot be called, is a type such as ``list[int]``, is asynchronous, or is a generator where none is run.
    """
    if is_generic(function):
        raise FlowError(f"{where}: {what} needs a function, got the type {function!r}")
    if not callable(function):
        raise FlowError(f"{where}: {what} needs a function, got {function!r}")
    called = _called(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise FlowError(
            f"{where}: {what} {title_of(function)} is asynchronous: nobody awaits it, so it would never run. Make it a plain def"
        )
    if gives != "many" and inspect.isgeneratorfunction(called):
        wanted = (
            "Return the value"
            if gives == "one"
            else f"Change the first argument in place, without yield: {_A_FOLD}"
        )
        raise FlowError(
            f"{where}: {what} {title_of(function)} is a generator, which does not run when it is called. {wanted}"
        )


def check_fold(what: str, function: Any, state: type | None, where: str) -> None:  # noqa: ANN401 - any function
    """Refuse a fold that seems to give back its state, or that binds the state's name to something else, which is then lost.

    Raises:
        FlowError: it does so.
    """
    parameter = _first_parameter(function)
    if parameter is None:
        return
    code, name = parameter
    for line, steps in _statements(code):
        last = steps[-1]
        if last.opname == "RETURN_VALUE" and not inspect.isgeneratorfunction(_called(function)):
            if len(steps) > 1 and steps[-2].opname.startswith("LOAD_FAST") and steps[-2].argval == name:
                raise FlowError(
                    f"{where}: {what} {title_of(function)} returns its state, in line {line}, and what it returns would be "
                    f"published. {_A_FOLD.capitalize()}: remove the return, or return [value] to publish one"
                )
        elif _rebinds(steps, name, state):
            raise FlowError(
                f"{where}: {what} {title_of(function)} binds {name!r} to something else, in line {line}, which is then lost. "
                f"{_A_FOLD.capitalize()}: set its fields, or take another name for a part of it"
            )


def check_values(what: str, function: Any, given: Any, state: object = None) -> None:  # noqa: ANN401 - of the user
    """Refuse what a function has returned, not None, if it is no iterable of values; `state`: what it was to change. Raises PoisonError."""
    if given is state and state is not None:
        kind = "its state"
    elif isinstance(given, str | bytes | bytearray | memoryview | Mapping | AbstractSet) or hasattr(
        given, "_fields"
    ):
        kind = f"a {type(given).__name__}, whose parts would each be a value"
    elif isinstance(given, Iterable):
        return
    else:
        _drop(given)
        kind = "None" if given is None else f"a {type(given).__name__}"
    also = f"None (for {_A_FOLD}) or " if what != "flat_map" else ""
    raise PoisonError(
        f"{what} {title_of(function)} returned {kind}. Expected {also}an iterable of values. Return [value] for one value"
    )


def check_nothing(what: str, function: Any, given: object) -> None:  # noqa: ANN401 - of the user
    """Refuse what a function returned that is to return None. Raises PoisonError."""
    if given is not None:
        _drop(given)
        raise PoisonError(
            f"{what} {title_of(function)} returned a {type(given).__name__}, which would be lost. Expected None: {_A_FOLD}"
        )


def truth(what: str, function: Any, given: Any) -> bool:  # noqa: ANN401 - of the user
    """Whether a condition holds. Raises PoisonError for what is always true: a coroutine, a generator."""
    if inspect.isawaitable(given) or inspect.isgenerator(given) or inspect.isasyncgen(given):
        _drop(given)
        raise PoisonError(
            f"{what} {title_of(function)} returned a {type(given).__name__}, which is always true. Expected True or False"
        )
    return bool(given)


def is_generic(given: object) -> bool:
    """Whether it is a type, but no class: ``list[int]``, ``A | None``, a NewType."""
    return get_origin(given) is not None or isinstance(given, types.UnionType | NewType)


def title_of(function: Any) -> str:  # noqa: ANN401 - any function
    """Name of a function, and file and line of its code."""
    inner = inspect.unwrap(function)
    while isinstance(inner, partial):
        inner = inspect.unwrap(inner.func)
    code = code_of(inner)
    name = getattr(inner, "__name__", type(inner).__name__)
    return f"{name} at {code.co_filename}:{code.co_firstlineno}" if code else str(name)


def code_of(function: Any) -> types.CodeType | None:  # noqa: ANN401 - any function
    """The code that runs when it is called; None: it is not Python's."""
    return getattr(_called(function), "__code__", None)


def _called(function: Any) -> Any:  # noqa: ANN401 - any function
    """What runs when it is called: of an object, its method."""
    while isinstance(function, partial):
        function = function.func
    plain = inspect.isroutine(function) or isinstance(function, type)
    return function if plain else type(function).__call__


def _drop(given: object) -> None:
    """Close a coroutine that nobody awaits, which would warn of it."""
    if inspect.iscoroutine(given):
        given.close()


def _first_parameter(function: Any) -> tuple[types.CodeType, str] | None:  # noqa: ANN401 - any function
    """The code of a function, and the name of the first argument that it is called with; None: it has no code in Python."""
    given = 0
    while isinstance(function, partial):
        given += len(function.args)
        function = function.func
    called = _called(function)
    code = getattr(called, "__code__", None)
    if code is None:
        return None
    number = given + (inspect.ismethod(called) or called is not function)
    return (code, code.co_varnames[number]) if number < code.co_argcount else None


def _statements(code: types.CodeType) -> Iterator[tuple[int, list[dis.Instruction]]]:
    """Instructions up to each that stores a name or returns, with the line of that."""
    steps: list[dis.Instruction] = []
    for step in dis.get_instructions(code):
        # It only widens the argument of the next instruction, which `dis` has put together already.
        if step.opname == "EXTENDED_ARG":
            continue
        steps.append(step)
        if step.opname.startswith(("STORE_FAST", "STORE_DEREF", "RETURN")):
            yield (step.positions and step.positions.lineno) or code.co_firstlineno, steps
            steps = []


def _rebinds(steps: list[dis.Instruction], name: str, state: type | None) -> bool:
    """Whether a statement binds a name to what is no part of what it was bound to."""
    last = steps[-1]
    stored = last.argval if isinstance(last.argval, tuple) else (last.argval,)
    if last.opname == "STORE_FAST_LOAD_FAST":  # Python 3.13 joins the two
        stored = stored[:1]
    if name not in stored or len(steps) < 2:  # noqa: PLR2004 - what is stored, and the store
        return False
    made = steps[-2]
    if made.opname == "BINARY_OP" and made.argrepr.endswith("="):
        # x += y keeps the object if its type has that method.
        return state is not None and not hasattr(state, _IN_PLACE.get(made.argrepr, ""))
    read = made.opname in ("LOAD_ATTR", "BINARY_SUBSCR") or made.argrepr == "[]"
    return not read and not any(
        step.argval in _READ_OUT for step in steps if step.opname in ("LOAD_METHOD", "LOAD_ATTR")
    )


_IN_PLACE: Final[Mapping[str, str]] = {
    "+=": "__iadd__",
    "-=": "__isub__",
    "*=": "__imul__",
    "|=": "__ior__",
    "&=": "__iand__",
    "^=": "__ixor__",
}
"""Methods by which operators change an object."""
