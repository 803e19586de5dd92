"""Goal: a generated reader gives what fastavro and msgspec give of the same bytes, also of older and newer writers, and refuses what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Annotated, Any

import fastavro
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.ext.registry.avro_text import flat_reader


class Fact(msgspec.Struct):
    a: int
    b: str = "none"
    c: float | None = None
    d: bool = True
    e: bytes | None = b"x"


@dataclass
class Plain:
    a: int
    b: str = "none"
    c: float | None = None


TYPES = {
    "a": st.sampled_from(["long", "int"]),
    "b": st.just("string"),
    "c": st.sampled_from([["null", "double"], ["double", "null"], ["null", "float"]]),
    "d": st.just("boolean"),
    "e": st.sampled_from([["null", "bytes"], ["bytes", "null"]]),
    "other": st.sampled_from(["long", "string", "bytes", "double", "boolean", ["null", "string"]]),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "string": st.text(),
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "boolean": st.booleans(),
    "bytes": st.binary(),
    "null": st.none(),
}


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """A writer's schema, and a record by it."""
    names = ["a", *draw(st.lists(st.sampled_from(sorted(TYPES.keys() - {"a"})), unique=True))]
    fields = [{"name": name, "type": draw(TYPES[name])} for name in draw(st.permutations(names))]
    schema = {"type": "record", "name": "Fact", "fields": fields}
    record = dict[str, Any]()
    for field in fields:
        kind: Any = field["type"]
        branch = str(draw(st.sampled_from(kind)) if isinstance(kind, list) else kind)
        record[str(field["name"])] = draw(VALUES[branch])
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return schema, stream.getvalue()


def naive(schema: dict[str, Any], data: bytes, kind: type) -> Any:
    stream = BytesIO(data)
    record = fastavro.schemaless_reader(stream, schema, None)
    if stream.tell() != len(data):
        raise ValueError("bytes are left")
    return msgspec.convert(record, kind, builtin_types=(bytes,))


@settings(max_examples=100, deadline=None)
@given(records(), st.sampled_from([Fact, Plain]), st.binary(max_size=5))
def test_a_generated_reader_gives_what_fastavro_gives(
    drawn: tuple[dict[str, Any], bytes], kind: type, begin: bytes
) -> None:
    schema, data = drawn
    read = flat_reader(schema, kind)
    assert read is not None
    assert read(begin + data, len(begin)) == naive(schema, data, kind)


@settings(max_examples=100, deadline=None)
@given(records(), st.data())
def test_bytes_that_were_changed_are_refused_as_fastavro_does_or_give_the_same(
    drawn: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    schema, written = drawn
    at = data.draw(st.integers(0, max(len(written) - 1, 0)))
    changed = data.draw(
        st.sampled_from([written[:at], written + b"\0", written[:at] + b"\x81" + written[at + 1 :]])
    )
    read = flat_reader(schema, Fact)
    assert read is not None
    try:
        expected = naive(schema, changed, Fact)
    except Exception:  # noqa: BLE001 - whatever it raises
        with pytest.raises(Exception):  # noqa: B017, PT011 - any is poison
            read(changed, 0)
    else:
        try:
            value = read(changed, 0)
        except (ValueError, LookupError):  # fastavro takes 129 for True
            return
        assert value == expected


class Bounded(msgspec.Struct):
    a: Annotated[int, msgspec.Meta(ge=0)]


class Lists(msgspec.Struct):
    a: list[int]


class Checked(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("below 0")


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (Bounded, "long"),
        (Lists, {"type": "array", "items": "long"}),
        (Checked, "long"),
        (Fact, "string"),
        (Fact, {"type": "long", "logicalType": "timestamp-millis"}),
        (Fact, ["null", "long"]),
        (Fact, ["long", "string"]),
    ],
)
def test_what_must_be_converted_or_checked_is_not_generated(kind: type, written: Any) -> None:
    assert (
        flat_reader({"type": "record", "name": "F", "fields": [{"name": "a", "type": written}]}, kind) is None
    )


def test_a_field_that_is_missing_and_has_no_default_is_not_generated() -> None:
    assert flat_reader({"type": "record", "name": "F", "fields": []}, Fact) is None
