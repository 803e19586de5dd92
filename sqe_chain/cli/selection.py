"""Which states are wanted: by a pattern for the key, and by conditions on the fields of the state."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sqe_chain.cli.console import as_json, readable
from sqe_chain.errors import ConfigurationError
from sqe_chain.runtime.states import StoredState
from sqe_chain.segment.views import as_plain

_CONDITION = re.compile(r"(\w+)\s*(!=|<=|>=|=|<|>)\s*(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBERS = {FieldDescriptor.CPPTYPE_FLOAT: float, FieldDescriptor.CPPTYPE_DOUBLE: float} | dict.fromkeys(
    (
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    ),
    int,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One field of the state compared with one value."""

    field: str
    holds: Callable[[Any, Any], bool]
    value: object

    def fits(self, state: Message) -> bool:
        """Whether a state fulfils it."""
        return self.holds(getattr(state, self.field), self.value)


def line_of(found: StoredState) -> dict[str, Any]:
    """A state as a line of JSON."""
    window: dict[str, object] = {}
    if found.span is not None:
        window = {"start_ms": found.span.start_ms, "end_ms": found.span.end_ms, "final": found.final}
    state = None if found.state is None else as_plain(found.state)
    return {"key": as_json(found.key), **window, "state": state}


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted; with nothing said, everything.

    Attributes:
        pattern: of the key as it is shown, with ``*``, ``?`` and ``[...]``; "": any.
        conditions: all of them must hold.
        begin_ms: of windows: those that begin then or later; None: any.
        end_ms: of windows: those that begin before; None: any.
    """

    pattern: str = ""
    conditions: tuple[Condition, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None

    def takes(self, found: StoredState) -> bool:
        """Whether this state is wanted; that there is none is told only if any would do."""
        state = found.state
        if state is None:
            return self == Selection()
        if found.span is not None and not self._in_time(found.span.start_ms):
            return False
        if self.pattern and not fnmatchcase(readable(found.key), self.pattern):
            return False
        return all(condition.fits(state) for condition in self.conditions)

    def _in_time(self, start_ms: int) -> bool:
        after = self.begin_ms is None or start_ms >= self.begin_ms
        return after and (self.end_ms is None or start_ms < self.end_ms)


def selection(
    pattern: str | None,
    conditions: Sequence[str],
    state: type[Message],
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> Selection:
    """What was asked for on the command line.

    Args:
        pattern: for keys.
        conditions: such as ``events>100`` or ``line=L1``; fields hold numbers, text, bool or enum names.
        state: type of the states.
        begin_ms: of windows, see `Selection`.
        end_ms: see there.

    Raises:
        ConfigurationError: no such field, or a value that it cannot have.
    """
    found = tuple(_condition(text, state) for text in conditions)
    return Selection(pattern or "", found, begin_ms, end_ms)


def _condition(text: str, state: type[Message]) -> Condition:
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"--where {text!r}: FIELD=VALUE, or with != < <= > >= between them")
    name, sign, value = found.groups()
    known: Iterable[FieldDescriptor] = state.DESCRIPTOR.fields  # type: ignore[assignment]  # the stubs know two
    fields = {field.name: field for field in known if _is_single(field)}
    if name not in fields:
        names = ", ".join(fields) or "none that can be compared"
        raise ConfigurationError(f"--where {text!r}: {state.DESCRIPTOR.full_name} has the fields: {names}")
    return Condition(name, _OPERATORS[sign], _parsed(fields[name], value, text))


def _is_single(field: FieldDescriptor) -> bool:
    return not field.is_repeated and field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE


def _parsed(field: FieldDescriptor, value: str, text: str) -> object:
    try:
        if field.enum_type is not None:
            return field.enum_type.values_by_name[value].number
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return {"true": True, "false": False}[value]
        if field.type == FieldDescriptor.TYPE_BYTES:
            return value.encode()
        return _NUMBERS.get(field.cpp_type, str)(value)
    except (KeyError, ValueError):
        raise ConfigurationError(f"--where {text!r}: {value!r} is no value of field {field.name!r}") from None
