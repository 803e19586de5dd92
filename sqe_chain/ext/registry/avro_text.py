"""Readers of flat Avro records, as generated text: of scalars, and of scalars or null. Everything else goes through fastavro.

fastavro asks a stream for each byte. Here the bytes are at hand, and the object is made at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Final

from msgspec import inspect

from sqe_chain.codecs.type_walk import runs_code

Read = Callable[[bytes, int], Any]

_LAST: Final = 0x80
"""A byte below it is the last one of a number."""
_MOST_BITS: Final = 70
_TAKES: Final[dict[str, tuple[type, ...]]] = {
    "long": (inspect.IntType,),
    "int": (inspect.IntType,),
    "string": (inspect.StrType,),
    "boolean": (inspect.BoolType,),
    "double": (inspect.FloatType,),
    "float": (inspect.FloatType,),
    "bytes": (inspect.BytesType,),
}
"""Type of a writer -> those of a field that take its values as they are."""
_LINES: Final[dict[str, Sequence[str]]] = {
    "long": (
        "b = data[at]; at += 1",
        "if b < 128: {v} = b >> 1 ^ -(b & 1)",
        "else: {v}, at = number_at(data, at - 1)",
    ),
    "string": (
        "n = data[at]; at += 1",
        "if n < 128 and not n & 1: n >>= 1",
        "else: n, at = length_at(data, at - 1)",
        "{v} = data[at:at + n].decode(); at += n",
    ),
    "bytes": (
        "n = data[at]; at += 1",
        "if n < 128 and not n & 1: n >>= 1",
        "else: n, at = length_at(data, at - 1)",
        "{v} = data[at:at + n]; at += n",
    ),
    "boolean": ("{v} = truths[data[at]]; at += 1",),
    "double": ("{v} = double(data, at)[0]; at += 8",),
    "float": ("{v} = single(data, at)[0]; at += 4",),
}


def flat_reader(schema: Mapping[str, Any], python_type: type) -> Read | None:
    """A reader of records of a writer's schema that makes objects of a class; None: they are not flat, or would have to be converted.

    Args:
        schema: as JSON, with all its names in it.
        python_type: a struct or dataclass.
    """
    info = inspect.type_info(python_type)
    if not isinstance(info, inspect.StructType | inspect.DataclassType) or runs_code(python_type):
        return None
    wanted = {field.encode_name: field for field in info.fields}
    lines, given = list[str](), dict[str, str]()
    for number, written in enumerate(schema["fields"]):
        field, name = wanted.get(written["name"]), f"v{number}"
        own = _lines(written["type"], None if field is None else field.type, name)
        if own is None:
            return None
        lines += own
        if field is not None:
            given[field.name] = name
    if any(field.required and field.name not in given for field in info.fields):
        return None
    arguments = ", ".join(f"{name}={value}" for name, value in given.items())
    body = "\n    ".join(
        [*lines, "if at != len(data): raise EOFError(f'{len(data) - at} bytes after an Avro record')"]
    )
    text = f"def read(data, at):\n    {body}\n    return make({arguments})\n"
    names: dict[str, Any] = {
        "make": python_type,
        "number_at": _number_at,
        "length_at": _length_at,
        "truths": {0: False, 1: True},
        "double": Struct("<d").unpack_from,
        "single": Struct("<f").unpack_from,
    }
    exec(compile(text, f"<reader of {schema['name']}>", "exec"), names)  # noqa: S102 - of names of fields, which Avro checks
    read: Read = names["read"]
    return read


def is_plain(python_type: type) -> bool:
    """Whether all fields are whole numbers of 64 bits, texts, truths or null: then each codec of the type reads the same of a value."""
    info = inspect.type_info(python_type)
    if not isinstance(info, inspect.StructType | inspect.DataclassType) or runs_code(python_type):
        return False
    plain = (inspect.IntType, inspect.StrType, inspect.BoolType)
    return all(isinstance(_without_null(field.type), plain) for field in info.fields)


def _lines(written: Any, field: inspect.Type | None, name: str) -> list[str] | None:  # noqa: ANN401 - JSON
    """The text that reads a field; None: it cannot. Without a field of the class the value is passed over."""
    if isinstance(written, list):
        others = [branch for branch in written if branch != "null"]
        if len(written) != 2 or len(others) != 1:  # noqa: PLR2004 - null and another
            return None
        own = _lines(others[0], _without_null(field), name)
        if own is None or (field is not None and not isinstance(field, inspect.UnionType)):
            return None
        null = written.index("null") * 2
        inner = [f"    {line}" for line in own]
        return [
            "b = data[at]; at += 1",
            f"if b == {null}: {name} = None",
            f"elif b == {2 - null}:",
            *inner,
            "else: raise ValueError('a union of two has no such branch')",
        ]
    if not isinstance(written, str) or written not in _TAKES:
        return None
    field = _without_null(field)
    if field is not None and (type(field) not in _TAKES[written] or field != type(field)()):
        return None  # another type, or one with bounds
    return [line.format(v=name) for line in _LINES["long" if written == "int" else written]]


def _without_null(field: inspect.Type | None) -> inspect.Type | None:
    if not isinstance(field, inspect.UnionType):
        return field
    others = [branch for branch in field.types if not isinstance(branch, inspect.NoneType)]
    return others[0] if len(others) == 1 and len(field.types) == 2 else field  # noqa: PLR2004 - null and another


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _MOST_BITS:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < _LAST:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a number in an Avro record is longer than 64 bits")


def _length_at(data: bytes, at: int) -> tuple[int, int]:
    length, at = _number_at(data, at)
    if length < 0:
        raise ValueError("a text in an Avro record has a negative length")
    return length, at
