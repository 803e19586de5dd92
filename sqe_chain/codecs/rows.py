"""Rows of files as values: JSON of named columns, read as the type that a source declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar, cast

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from sqe_chain.codecs.codec import Codec, Field, Shape
from sqe_chain.codecs.json_shape import form_of
from sqe_chain.codecs.protobuf import Protobuf
from sqe_chain.codecs.raw import Raw
from sqe_chain.errors import ConfigurationError

Value = TypeVar("Value")

_KEPT, _NULL, _LEFT_OUT = range(3)
"""What becomes of an empty field of CSV."""
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
_object: Final = msgspec.json.Decoder(dict[str, Any])


class Rows(Codec[Value]):
    """Reads rows as values of one type; writes values as the type's own codec does.

    A row of CSV is text in all columns, so numbers, booleans, times and null are read from text there. An empty field is an empty
    text where the type's field takes text, else null where it takes that, else as if the column were not there.

    Args:
        codec: of the type.
        csv: rows come from CSV.

    Raises:
        ConfigurationError: values of this type are not made of columns.
    """

    name: ClassVar[str] = "rows"
    self_describing: ClassVar[bool] = True

    def __init__(self, codec: Codec[Value], *, csv: bool) -> None:
        super().__init__(codec.python_type)
        self._codec, self._csv = codec, csv
        vars(self)["decode"] = _reader_of(codec, csv=csv)  # called for every row

    def __reduce__(self) -> tuple[Any, ...]:
        """See `Codec`; a decoder cannot be pickled."""
        return _unpickle, (self._codec, self._csv)

    def encode(self, value: Value) -> bytes:
        """As the type's codec does."""
        return self._codec.encode(value)

    def decode(self, data: bytes) -> Value:
        """The value of a row.

        Raises:
            ValueError: the row is damaged, or a column is missing or has another type.
        """
        raise NotImplementedError  # each object has its own

    @property
    def type_name(self) -> str:
        """That of the type's codec."""
        return self._codec.type_name

    def reads(self, type_name: str) -> bool:
        """As the type's codec does."""
        return self._codec.reads(type_name)

    def fields(self) -> tuple[Field, ...]:
        """As the type's codec says."""
        return self._codec.fields()

    def misread(self, was: str, shape: Shape) -> str:  # type: ignore[override] # a shape is a mapping
        """Nothing: rows name their columns, and one that does not fit the type is found by itself."""
        del was, shape
        return ""


def _unpickle(codec: Codec[Value], csv: bool) -> Rows[Value]:  # noqa: FBT001 - as pickle calls it
    return Rows(codec, csv=csv)


def _reader_of(codec: Codec[Any], *, csv: bool) -> Callable[[bytes], Any]:
    if isinstance(codec, Raw):
        return codec.decode
    if isinstance(codec, Protobuf):
        return _protobuf_reader(codec.python_type, csv=csv)
    if codec.name != "json":
        raise ConfigurationError(
            f"codec {codec.name!r} reads bytes of its own, and rows of files are JSON: take a msgspec.Struct, a dataclass, dict, a "
            "protobuf message, bytes, or a function that takes the row's JSON"
        )
    return _csv_reader(codec.python_type) if csv else msgspec.json.Decoder(form_of(codec.python_type)).decode


def _csv_reader(python_type: type) -> Callable[[bytes], Any]:
    form = form_of(python_type)
    decode = msgspec.json.Decoder(form, strict=False).decode
    blanks = _blanks_of(form)
    if not blanks:
        return lambda data: decode(_checked(data))

    def read(data: bytes) -> Any:  # noqa: ANN401 - a value of the type
        if b'""' not in _checked(data):
            return decode(data)
        row = _object.decode(data)
        for name, what in blanks.items():
            if row.get(name) != "":
                continue
            if what == _NULL:
                row[name] = None
            else:
                del row[name]
        return msgspec.convert(row, form, strict=False)

    return read


def _blanks_of(form: Any) -> dict[str, int]:  # noqa: ANN401 - a type
    """The fields for which an empty text is not what it looks like."""
    found = {}
    for field in getattr(msgspec.inspect.type_info(form), "fields", ()):
        kinds = getattr(field.type, "types", (field.type,))
        if any(isinstance(kind, msgspec.inspect.StrType | msgspec.inspect.AnyType) for kind in kinds):
            continue
        if any(isinstance(kind, msgspec.inspect.NoneType) for kind in kinds):
            found[field.encode_name] = _NULL
        elif not field.required:
            found[field.encode_name] = _LEFT_OUT
    return found


def _protobuf_reader(python_type: type[Message], *, csv: bool) -> Callable[[bytes], Message]:
    kinds = _kinds_of(cast("Descriptor", python_type.DESCRIPTOR)) if csv else {}

    def read(data: bytes) -> Message:
        row = _object.decode(_checked(data) if csv else data)
        for name, kind in kinds.items():
            text = row.get(name)
            if text == "":
                del row[name]
            elif kind == FieldDescriptor.CPPTYPE_BOOL and isinstance(text, str):
                row[name] = _BOOLS.get(text.lower(), text)
        found: Message = ParseDict(row, python_type(), ignore_unknown_fields=True)
        return found

    return read


def _kinds_of(descriptor: Descriptor) -> dict[str, int]:
    """Name of each field that takes no text -> its kind."""
    texts = (FieldDescriptor.CPPTYPE_STRING,)
    return {
        name: field.cpp_type
        for field in descriptor.fields
        if field.cpp_type not in texts
        for name in (field.name, field.json_name)
    }


def _checked(data: bytes) -> bytes:
    """A row of CSV, if it has as many fields as there are columns.

    Raises:
        ValueError: it has not.
    """
    if data.startswith(b"["):
        found = len(msgspec.json.decode(data))
        raise ValueError(f"the row has {found} fields, and its file has another number of columns")
    return data
