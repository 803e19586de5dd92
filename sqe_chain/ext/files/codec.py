"""Rows of files as values: JSON of named columns, read as the type that a source declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeVar

import msgspec
import msgspec.inspect as mi

from sqe_chain.codecs.codec import Codec, Field, Shape
from sqe_chain.codecs.exact_json import make_reader
from sqe_chain.codecs.protobuf import Protobuf
from sqe_chain.codecs.raw import Raw
from sqe_chain.codecs.text import check_decimal, check_time, parse_bool, parse_float, parse_int
from sqe_chain.codecs.type_walk import form_of
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.files.protobuf_rows import message_of
from sqe_chain.ports.files import Format

Value = TypeVar("Value")

Read = Callable[[str], Any]
_NO_VALUE: Final = object()
_object: Final = msgspec.json.Decoder(dict[str, Any])
_texts: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, str])


class Rows(Codec[Value]):
    """Reads rows as values of one type; writes values as the type's own codec does.

    A row of CSV is text in all columns, so numbers, booleans and times are read from text there, by `codecs.text`. An empty field
    is an empty text where the type's field takes text. Else it is null where the field takes null, or a missing column.

    Args:
        codec: of the type.
        csv: rows come from CSV.
        typed: rows come from columns with types, as in Parquet: a number in them is not rounded to a narrower one.

    Raises:
        ConfigurationError: values of this type are not made of columns.
    """

    name: ClassVar[str] = "rows"
    self_describing: ClassVar[bool] = True

    def __init__(self, codec: Codec[Value], *, csv: bool = False, typed: bool = False) -> None:
        super().__init__(codec.python_type)
        self._codec, self._csv, self._typed = codec, csv, typed
        self._read = _reader_of(codec, "csv" if csv else "parquet" if typed else "jsonl")

    def encode(self, value: Value) -> bytes:
        return self._codec.encode(value)

    def decode(self, data: bytes) -> Value:
        value: Value = self._read(data)
        return value

    def decode_all(self, payloads: Sequence[bytes]) -> list[Value]:
        read = self._read
        return [read(payload) for payload in payloads]

    @property
    def type_name(self) -> str:
        return self._codec.type_name

    def reads(self, type_name: str) -> bool:
        return self._codec.reads(type_name)

    def fields(self) -> tuple[Field, ...]:
        return self._codec.fields()

    def misread(self, was: str, shape: Shape) -> str:  # type: ignore[override] # a shape is a mapping
        del was, shape  # rows name their columns: one that does not fit the type is found by itself
        return ""


def _reader_of(codec: Codec[Any], form: Format) -> Callable[[bytes], Any]:
    if isinstance(codec, Raw):
        return codec.decode
    if isinstance(codec, Protobuf):
        of = codec.python_type
        return lambda data: message_of(of, _object.decode(_checked(data) if form == "csv" else data), form)
    if codec.name != "json":
        raise ConfigurationError(
            f"codec {codec.name!r} reads bytes of its own, and rows of files are JSON. Take a msgspec.Struct, a dataclass, dict, a "
            "protobuf message, bytes, or a function that takes the row's JSON"
        )
    return (
        _csv_reader(codec.python_type)
        if form == "csv"
        else make_reader(codec.python_type, whole_numbers=True)
    )


def _csv_reader(python_type: type) -> Callable[[bytes], Any]:
    form = form_of(python_type)
    fields = getattr(mi.type_info(form), "fields", ())
    reads = [(field.encode_name, *reading) for field in fields if (reading := _read_of(field)) is not None]

    def read(data: bytes) -> Any:  # noqa: ANN401 - a value of the type
        row = _texts.decode(_checked(data))
        for name, of, empty in reads:
            text = row.get(name)
            if text == "" and empty is not _NO_VALUE:
                row[name] = empty
            elif text is not None:
                try:
                    row[name] = of(text)
                except ValueError as error:
                    raise msgspec.ValidationError(f"column {name!r}: {error}") from error
            if text == "" and empty is msgspec.UNSET:
                del row[name]
        return msgspec.convert(row, form)

    return read


def _read_of(field: Any) -> tuple[Read, object] | None:  # noqa: ANN401 - msgspec's description
    """What reads a field in text, before its type sees it, and what an empty text is; None: it takes text as it is."""
    kinds = getattr(field.type, "types", (field.type,))
    if any(isinstance(kind, mi.StrType | mi.AnyType) for kind in kinds):
        return None
    reads = [read for kind in kinds for read in _reads_of(kind)]
    null = any(isinstance(kind, mi.NoneType) for kind in kinds)
    empty = None if null else _NO_VALUE if field.required else msgspec.UNSET
    others = len(kinds) - null > len(reads)  # kinds that are text in JSON, too
    return (reads[0] if len(reads) == 1 and not others else _first_of(reads, others=others)), empty


def _first_of(reads: Sequence[Read], *, others: bool) -> Read:
    def read(text: str) -> Any:  # noqa: ANN401 - JSON
        failed = None
        for read in reads:
            try:
                return read(text)
            except ValueError as error:
                failed = failed or error
        if failed is not None and not others:
            raise failed
        return text

    return read


def _reads_of(kind: Any) -> tuple[Read, ...]:  # noqa: ANN401 - msgspec's description
    """What reads a kind of value in text; nothing: it is text in JSON, too."""
    values = (
        getattr(kind, "values", None) or [member.value for member in getattr(kind, "cls", None) or ()]
        if (isinstance(kind, mi.LiteralType | mi.EnumType))
        else ()
    )
    if isinstance(kind, mi.IntType) or (values and all(type(value) is int for value in values)):
        return (parse_int,)
    if isinstance(kind, mi.FloatType):
        return (parse_float,)
    if isinstance(kind, mi.BoolType):
        return (parse_bool,)
    if isinstance(kind, mi.DecimalType):
        return (check_decimal,)
    if isinstance(kind, mi.DateTimeType | mi.TimeType | mi.TimeDeltaType):
        return (check_time,)
    return ()


def _checked(data: bytes) -> bytes:
    """A row of CSV, if it has as many fields as there are columns. Raises ValueError: it has not."""
    if data.startswith(b"["):
        count = len(msgspec.json.decode(data))
        raise ValueError(f"the row has {count} fields, and its file has another number of columns")
    return data
