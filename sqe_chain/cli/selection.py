"""Selects states by a pattern for the key, and by conditions on the fields of the state."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqe_chain.cli.console import key_as_json
from sqe_chain.codecs import Codec, Field
from sqe_chain.codecs.text import parse_float, parse_int
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow.stored import StoredState
from sqe_chain.operations.patterns import key_matches

_CONDITION = re.compile(r"(\w+)\s*(!=|<=|>=|=|<|>)\s*(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one field of the state with one value."""

    field: Field
    holds: Callable[[Any, Any], bool]
    value: Any

    def fits(self, state: object) -> bool:
        """Whether it holds for a state. A field without a value equals nothing, and is neither less nor greater."""
        field_value: Any = self.field.of(state)
        if field_value is None:
            return self.holds is operator.ne
        if self.field.kind == "enum":  # by their numbers, as the .proto file orders them
            return self.holds(_rank(self.field, field_value), _rank(self.field, self.value))
        return self.holds(field_value, self.value)


def _rank(field: Field, name: str) -> int:
    return field.choices.index(name) if name in field.choices else len(field.choices)


def line_of(stored: StoredState, codec: Codec[Any]) -> dict[str, Any]:
    """A state as a line of JSON."""
    window: dict[str, object] = {}
    if stored.span is not None:
        window = {"start_ms": stored.span.start_ms, "end_ms": stored.span.end_ms, "final": stored.final}
    state = None if stored.state is None else codec.to_json(stored.state)
    return {"key": key_as_json(stored.key), **window, "state": state}


@dataclass(frozen=True, slots=True)
class _StateSelection:
    """Which states to show; by default all.

    Attributes:
        pattern: for the key as it is shown, with ``*`` and ``?``; "": any.
        conditions: all of them must hold.
        begin_ms: only windows that begin then or later; None: any.
        end_ms: only windows that begin before; None: any.
    """

    pattern: str = ""
    conditions: tuple[Condition, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None

    def takes(self, stored: StoredState) -> bool:
        """Whether this state is selected. A key without a state is shown only if nothing was selected."""
        state = stored.state
        if state is None:
            return self == _StateSelection()
        if stored.span is not None and not self._in_time(stored.span.start_ms):
            return False
        if self.pattern and not key_matches(stored.key, self.pattern):
            return False
        return all(condition.fits(state) for condition in self.conditions)

    def _in_time(self, start_ms: int) -> bool:
        after = self.begin_ms is None or start_ms >= self.begin_ms
        return after and (self.end_ms is None or start_ms < self.end_ms)


def selection(
    pattern: str | None,
    conditions: Sequence[str],
    codec: Codec[Any],
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> _StateSelection:
    """The selection from the options of the command line, with conditions such as ``events>100`` or ``line=L1``.

    Raises:
        ConfigurationError: no such field, or a value that the field cannot have.
    """
    parsed = tuple(_condition(text, codec) for text in conditions)
    return _StateSelection(pattern or "", parsed, begin_ms, end_ms)


def _condition(text: str, codec: Codec[Any]) -> Condition:
    matched = _CONDITION.fullmatch(text.strip())
    if matched is None:
        raise ConfigurationError(f"--where {text!r}. Expected FIELD=VALUE, or != < <= > >= instead of =")
    name, sign, value = matched.groups()
    fields = {field.name: field for field in codec.fields() if field.kind != "other"}
    if name not in fields:
        names = ", ".join(fields) or "none that can be compared"
        raise ConfigurationError(
            f"--where {text!r}: {codec.type_name} has no such field. Expected one of: {names}"
        )
    return Condition(fields[name], _OPERATORS[sign], _parsed(fields[name], value, text))


def _parsed(field: Field, value: str, text: str) -> object:
    try:
        if field.kind == "enum":
            return field.choices[field.choices.index(value)]
        if field.kind == "bool":
            return {"true": True, "false": False}[value]
        if field.kind == "bytes":
            return value.encode()
        if field.kind == "text":
            return value
        return parse_float(value) if field.kind.startswith("float") else parse_int(value)
    except (KeyError, ValueError):
        raise ConfigurationError(
            f"--where {text!r}: value {value!r}. Expected one of field {field.name!r}"
        ) from None
