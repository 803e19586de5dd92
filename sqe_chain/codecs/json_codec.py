"""JSON, by way of msgspec: structs, dataclasses, and plain values (dict, list, text, numbers)."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from sqe_chain.codecs.aggregates import is_aggregates
from sqe_chain.codecs.codec import Codec, Field, FieldKind, Shape, codec_name
from sqe_chain.codecs.exact_json import (
    SHALLOW,
    check_depth,
    check_zones,
    has_offset,
    has_times,
    make_reader,
    may_be_time,
)
from sqe_chain.codecs.exact_states import (
    explain_difference,
    is_frozen,
    make_check,
    make_flat_check,
    make_settle,
)
from sqe_chain.codecs.json_changes import misread
from sqe_chain.codecs.json_shape import shape_of
from sqe_chain.codecs.type_walk import Info, describe, fields_of, kind_of, kinds_of, nests_freely, runs_code
from sqe_chain.codecs.window import state_type
from sqe_chain.errors import ConfigurationError

Value = TypeVar("Value")

PLAIN: tuple[type, ...] = (dict, list, str, int, float, bool, object)
"""Types whose values are JSON already; `object` is any of them."""
KINDS: dict[str, FieldKind] = {"int": "int64", "float": "float64", "str": "text", "bool": "bool"}
_HOLDERS = frozenset((dict, list, tuple, set, frozenset))
_NO_FLOATS = frozenset((str, int, bool, type(None)))
_may_be_no_number = re.compile(rb'"-?(?:s?NaN|Inf)').search
"""What a decimal that is no number is written as: of a text, too, it is the beginning."""
_encode = msgspec.json.Encoder(order="deterministic").encode


class Json(Codec[Value]):
    """JSON of a `msgspec.Struct`, a dataclass, or plain values; decoding checks the types of fields.

    Equal values give equal bytes: keys of dicts are sorted, sets too. Fields of a message that the type does not have
    are ignored. NaN and infinity are refused, because JSON cannot express them.

    Args:
        python_type: a struct, a dataclass, dict, list, str, int, float, bool, or object for any plain value.
        type_name: the field `type` of envelopes, without the codec; by default the name of the class, and empty for
            plain values. Needed if your class has another name than the writer's.
    """

    name: ClassVar[str] = "json"
    content_type: ClassVar[str] = "application/json"
    self_describing: ClassVar[bool] = True

    def __init__(self, python_type: type[Value], *, type_name: str | None = None) -> None:
        super().__init__(python_type)
        reason = _why_unfit(python_type)
        if reason:
            raise ConfigurationError(f"codec 'json' cannot take {python_type!r}: {reason}")
        self._name = _name_of(python_type) if type_name is None else type_name
        self._nests = nests_freely(python_type)
        # Called for every message.
        vars(self).update(decode=make_reader(python_type), decode_own=make_reader(python_type, deep=True))
        self._times = has_times(python_type)
        self._floats = bool({"float", "any"} & kinds_of(python_type))
        self._decimals = "decimal" in kinds_of(python_type)
        self.reads_back = not runs_code(python_type)
        self.is_exact = make_flat_check(cast("Hashable", python_type))
        self.settle = make_settle(cast("Hashable", python_type))
        if not (self._floats or self._decimals or self._times or self._nests):
            vars(self)["encode"] = _encode

    @classmethod
    def takes(cls, python_type: type) -> bool:
        """Structs, dataclasses, and plain values."""
        return python_type in PLAIN or _is_record(python_type)

    def encode(self, value: Value) -> bytes:
        """The value as JSON.

        Raises:
            TypeError: it holds something that JSON cannot express, such as a dict with keys that are not text.
            ValueError: a number is NaN or infinite, a time has an offset of seconds, or it is nested too deep.
        """
        data = _encode(value)
        if self._times or (self._floats and may_be_time(data) and has_offset(data)):
            check_zones(value)
        # msgspec writes null for NaN and infinity, which a field of numbers could not read back.
        if self._floats and data.find(b"null") >= 0 and not _is_finite(msgspec.to_builtins(value)):
            raise ValueError("JSON cannot express NaN and infinity")
        if self._decimals and _may_be_no_number(data):
            try:  # texts of other fields may hold these words
                self.decode(data)
            except msgspec.DecodeError as error:
                raise ValueError(f"JSON cannot express NaN and infinity: {error}") from error
        if self._nests and len(data) > SHALLOW:
            check_depth(data)
        return data

    def decode(self, data: bytes) -> Value:
        """The value, checked against the types of its fields.

        Raises:
            msgspec.DecodeError: it is not JSON, lacks a field, or a field has another type, or could not hold what is written.
        """
        return cast("Value", make_reader(self.python_type)(data))  # each object has its own reader

    def decode_all(self, payloads: Sequence[bytes]) -> list[Value]:
        shallow = not self._nests or max(map(len, payloads), default=0) <= SHALLOW
        values = list(map(self.decode_own if shallow else self.decode, payloads))
        if len(values) < len(payloads):
            raise RuntimeError("decoding raised StopIteration, at which map() ends")
        return values

    def new(self) -> Value:
        """The initial state of a key."""
        state = super().new()
        if self.settle is not None:
            self.settle(state)
        return state

    def encode_state(self, state: Value, seen: set[int] | None = None) -> bytes:
        """The bytes of a state whose types are exactly those that are read back. Each object in it is in one place.

        Raises:
            TypeError: see `encode`.
            ValueError: it is not such a state, or see `encode`.
        """
        data = self.encode(state)
        if not make_check(cast("Hashable", self.python_type))(state, set() if seen is None else seen):
            raise ValueError(explain_difference(state, self.decode(data)))
        return data

    @property
    def type_name(self) -> str:
        """``json:`` and the name of the class; ``json:`` alone for plain values."""
        return f"{self.name}:{self._name}"

    def reads(self, type_name: str) -> bool:
        """Whether the names are equal; if either has no name, any JSON is read."""
        other = type_name.removeprefix(f"{self.name}:")
        return codec_name(type_name) == self.name and (not other or not self._name or other == self._name)

    def check_state(self) -> str:
        """A state must be mutable, and be read back unchanged."""
        if self.python_type in PLAIN and self.python_type not in (dict, list):
            return "a fold changes its state in place: take a struct, a dataclass, dict or list"
        if is_frozen(self.python_type):
            return "it is frozen, and a fold changes its state in place"
        if issubclass(self.python_type, msgspec.Struct) and not self.python_type.__struct_config__.eq:
            return "its values do not compare (eq=False), so it cannot be checked that one is read back unchanged"
        return super().check_state()

    def to_json(self, value: Value) -> Any:  # noqa: ANN401 - see Codec
        """The same JSON as in messages."""
        return msgspec.json.decode(_encode(value))

    def fields(self) -> tuple[Field, ...]:
        """The fields of the class; none for plain values."""
        if self.python_type in PLAIN:
            return ()
        return tuple(_field(field.name, field.type) for field in fields_of(describe(self.python_type)))

    def shape(self, known: Mapping[str, str] | None = None) -> Shape:
        return shape_of(self.python_type, self.type_name, known)

    def misread(self, was: str, shape: Mapping[str, str]) -> str:
        if codec_name(was) != self.name:
            return f"it was {was}, now it is JSON of {self.python_type.__name__}"
        return misread(shape, self.python_type, (was, self.type_name))


def _name_of(python_type: type) -> str:
    """The name of a class; plain values have none, nor have declared aggregates, nor a window of them."""
    held = state_type(python_type) or python_type
    return "" if held in PLAIN or is_aggregates(held) else python_type.__name__


def _is_record(python_type: type) -> bool:
    return issubclass(python_type, msgspec.Struct) or is_dataclass(python_type)


def _why_unfit(python_type: type) -> str:
    """Why a type cannot be written as JSON and read back; empty when it can."""
    if python_type not in PLAIN and not _is_record(python_type):
        return "it takes structs of msgspec, dataclasses, dict, list, str, int, float, bool, and object"
    try:
        kinds = kinds_of(python_type)
    except (TypeError, NameError) as error:
        return f"{error}"
    for kind in sorted(kinds):
        if kind.startswith("custom."):
            return f"msgspec cannot encode {kind.removeprefix('custom.')}; give the field another type"
        if kind == "key":
            return "keys of dicts must be str: JSON has no other keys"
        if kind == "raw":
            return "msgspec.Raw is text that nobody has checked; give the field the type `object`"
    return ""


def _is_finite(plain: Any) -> bool:  # noqa: ANN401 - any plain value
    """Whether all floats in it are numbers: NaN and infinity less themselves are NaN."""
    kind = plain.__class__
    if kind is float:
        return bool(plain - plain == 0.0)
    if kind not in _HOLDERS:
        return True
    for part in plain.values() if kind is dict else plain:
        if part.__class__ not in _NO_FLOATS and not _is_finite(part):
            return False
    return True


def _field(name: str, info: Info) -> Field:
    """Numbers and text as they are, everything else as JSON; an optional field like its type without None."""
    kinds = [name for name in map(kind_of, getattr(info, "types", (info,))) if name != "none"]
    kind = KINDS.get(kinds[0]) if len(kinds) == 1 else None
    if kind is not None:
        return Field(name, kind, lambda value: getattr(value, name))
    return Field(
        name, "other", lambda value: json.dumps(msgspec.to_builtins(getattr(value, name)), ensure_ascii=False)
    )
