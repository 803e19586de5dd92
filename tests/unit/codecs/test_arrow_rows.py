"""Goal: values become columns and columns values, with nothing lost; what a column cannot hold is refused, whatever is beside it.

Method: Hypothesis there and back, for each kind of type, divided anywhere; each error.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from google.protobuf.source_context_pb2 import SourceContext
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.type_pb2 import Field, Syntax, Type
from google.protobuf.wrappers_pb2 import BoolValue, Int32Value, Int64Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain._proto.envelope_pb2 import Link
from sqe_chain.codecs.arrow_columns import RowColumns
from sqe_chain.codecs.arrow_rows import rows_of
from sqe_chain.errors import ConfigurationError, PoisonError
from tests.support.dynamic_messages import message_type


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(msgspec.Struct):
    line: str
    at: tuple[int, ...] = ()


@dataclass
class Reading:
    celsius: float
    day: date | None = None


class Everything(msgspec.Struct):
    robot: str
    screws: int
    torque: float | None
    done: bool
    raw: bytes
    when: datetime
    day: date
    clock: time
    took: timedelta
    serial: UUID
    colour: Colour
    size: Literal["s", "m"] | None
    place: Place | None
    places: list[Place]
    counts: dict[str, int]
    readings: dict[str, list[Reading]] | None
    note: Annotated[str, "whatever"] = ""


INTS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
PLACES = st.builds(Place, TEXT, st.lists(INTS, max_size=2).map(tuple))
READINGS = st.builds(Reading, st.floats(allow_nan=False), st.none() | st.dates())
EVERYTHING = st.builds(
    Everything,
    TEXT,
    INTS,
    st.none() | st.floats(allow_nan=False),
    st.booleans(),
    st.binary(max_size=3),
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.times(),
    st.integers(-(2**53), 2**53).map(lambda number: timedelta(microseconds=number)),
    st.uuids(),
    st.sampled_from(Colour),
    st.sampled_from(["s", "m", None]),
    st.none() | PLACES,
    st.lists(PLACES, max_size=2),
    st.dictionaries(TEXT, INTS, max_size=2),
    st.none() | st.dictionaries(TEXT, st.lists(READINGS, max_size=2), max_size=2),
    TEXT,
)


def there_and_back(rows: RowColumns, values: list[Any]) -> list[Any]:
    batch = rows.batch(values)
    batch.validate(full=True)
    return back(rows, batch)


def back(rows: RowColumns, batch: pa.RecordBatch) -> list[Any]:
    return rows.rows(batch.schema.names, batch.columns, batch.num_rows) if batch.num_rows else []


@given(st.lists(EVERYTHING, max_size=4), st.integers(0, 4))
def test_structs_come_back(values: list[Everything], cut: int) -> None:
    rows = rows_of(Everything)
    assert there_and_back(rows, values) == values
    batch = rows.batch(values)
    assert back(rows, batch.slice(0, cut)) + back(rows, batch.slice(cut)) == values


@given(st.lists(READINGS, max_size=4))
def test_dataclasses_come_back(values: list[Reading]) -> None:
    assert there_and_back(rows_of(Reading), values) == values


@given(st.lists(st.builds(Link, topic=TEXT, offset=st.integers(0, 2**63 - 1)), max_size=4))
def test_messages_come_back(values: list[Link]) -> None:
    assert there_and_back(rows_of(Link), values) == values


def test_messages_in_messages_and_repeated_fields_come_back() -> None:
    values = [
        Type(
            name="a",
            fields=[Field(name="x", number=3), Field()],
            oneofs=["p", "q"],
            syntax=Syntax.SYNTAX_PROTO3,
        ),
        Type(),
        Type(source_context=SourceContext()),
    ]
    only = ["name", "oneofs", "source_context", "syntax", "edition"]
    rows = rows_of(Type, only)
    batch = rows.batch(values)
    assert batch.schema.names == only
    assert batch["source_context"].to_pylist() == [None, None, {"file_name": ""}]
    assert [one.name for one in back(rows, batch)] == ["a", "", ""]
    assert [one.HasField("source_context") for one in back(rows, batch)] == [False, False, True]


def test_maps_of_messages_come_back() -> None:
    kind = message_type({"State": "int32 n = 1; map<string, int64> of = 2; repeated float xs = 3"})
    values = [kind(n=0, of={"a": 1, "b": 2}, xs=[1.5]), kind(), kind(of={"c": 3})]
    rows = rows_of(kind)
    assert rows.batch(values)["n"].to_pylist() == [0, None, None]
    assert there_and_back(rows, values) == values


@pytest.mark.parametrize(
    "values", [["a", ""], [b"\xff"], [1, -2], [1.5], [True, False], [UUID(int=5)], [date(2020, 1, 1)]]
)
def test_values_without_fields_are_one_column(values: list[Any]) -> None:
    rows = rows_of(type(values[0]))
    assert rows.batch(values).schema.names == ["value"]
    assert there_and_back(rows, values) == values


SCHEMA = pa.schema(
    [
        pa.field("a", pa.int32(), nullable=False),
        ("n", pa.list_(pa.list_(pa.int64()))),
        ("m", pa.map_(pa.string(), pa.struct([("q", pa.float64())]))),
        ("d", pa.decimal128(9, 2)),
        ("t", pa.timestamp("ms")),
    ]
)
DICTS = [
    {"a": 1, "n": [[1, None], None, []], "m": {"x": {"q": 1.5}, "y": None}, "d": Decimal("1.50"), "t": None},
    {"a": 2, "n": None, "m": None, "d": None, "t": datetime(2020, 1, 1)},  # noqa: DTZ001 - without a zone
    {"a": 3, "n": [], "m": {}, "d": None, "t": None},
]


def test_dicts_come_back_by_a_schema() -> None:
    assert there_and_back(rows_of(SCHEMA), DICTS) == DICTS
    batch = rows_of(SCHEMA).batch(DICTS)
    assert back(rows_of(SCHEMA), batch.slice(1)) == DICTS[1:]


def test_subclasses_are_taken_for_what_they_are() -> None:
    class Moment(datetime):
        pass

    rows = rows_of(pa.schema([("t", pa.timestamp("us", tz="UTC"))]))
    assert rows.batch([{"t": Moment(2020, 1, 1, tzinfo=UTC)}])["t"].to_pylist() == [
        datetime(2020, 1, 1, tzinfo=UTC)
    ]


def test_what_a_dict_does_not_have_is_null_and_objects_have_attributes() -> None:
    rows = rows_of(pa.schema([("line", pa.string()), ("at", pa.list_(pa.int64()))]))
    assert rows.batch([{}, Place("x", (1,))]).to_pylist() == [
        {"line": None, "at": None},
        {"line": "x", "at": [1]},
    ]


@pytest.mark.parametrize(
    ("of", "value", "text"),
    [
        (pa.schema([("n", pa.int64())]), {"n": 1.5}, "takes int, not float"),
        (pa.schema([("n", pa.int64())]), {"n": 1.0}, "takes int, not float"),
        (pa.schema([("n", pa.int64())]), {"n": True}, "takes int, not bool"),
        (pa.schema([("n", pa.int8())]), {"n": 300}, "n of the schema"),
        (pa.schema([("n", pa.float64())]), {"n": 2**53 + 1}, "n of the schema"),
        (pa.schema([("n", pa.string())]), {"n": b"x"}, "takes str, not bytes"),
        (
            pa.schema([("n", pa.date32())]),
            {"n": datetime(2020, 1, 1, tzinfo=UTC)},
            "takes date, not datetime",
        ),
        (pa.schema([("n", pa.list_(pa.string()))]), {"n": "abc"}, "takes lists"),
        (pa.schema([("n", pa.list_(pa.int64()))]), {"n": bytearray(b"abc")}, "takes lists"),
        (pa.schema([("n", pa.list_(pa.float64()))]), {"n": memoryview(b"abc")}, "takes lists"),
        (pa.schema([("n", pa.list_(pa.int64()))]), {"n": [1.5]}, "takes int, not float"),
        (pa.schema([("n", pa.list_(pa.string()))]), {"n": {"a", "b"}}, "takes lists"),
        (pa.schema([("n", pa.map_(pa.string(), pa.int64()))]), {"n": [1]}, "takes dicts"),
        (pa.schema([pa.field("n", pa.int64(), nullable=False)]), {}, "it is null, or missing"),
        (pa.schema([("n", pa.int64())]), 7, "has no attribute 'n'"),
        (Place, Place(None), "line of Place: it is null"),  # type: ignore[arg-type]
        (int, 2**63, "value of int"),
        (datetime, datetime(2020, 1, 1), "takes times with a zone"),  # noqa: DTZ001 - that is it
    ],
)
def test_what_a_column_cannot_hold_is_refused(of: Any, value: Any, text: str) -> None:
    with pytest.raises(PoisonError, match=text):
        rows_of(of).batch([value])


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_other_widths_and_other_texts_are_taken() -> None:
    class Row(msgspec.Struct):
        n: int
        x: float
        text: str | None
        many: list[int]
        raw: bytes = b"?"

    rows = rows_of(Row)
    batch = batch_of(
        many=pa.array([[1]], pa.large_list(pa.int8())),
        text=pa.array(["a"]).dictionary_encode(),
        x=pa.array([1], pa.int8()),
        n=pa.array([2.0]),
    )
    assert back(rows, batch) == [Row(2, 1.0, "a", [1])]
    batch = batch_of(
        n=pa.array([2], pa.uint64()),
        x=pa.array([1.5], pa.float32()),
        text=pa.nulls(1),
        many=pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        raw=pa.array([b"x"], pa.large_binary()),
    )
    assert back(rows, batch) == [Row(2, 1.5, None, [1, 2], b"x")]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"line": ["a"], "lien": [1]}, "Place has line, at, and no lien"),
        ({"at": [[1]]}, "there is no column line, which Place needs"),
        ({"line": [1]}, "column 'line' of Place: it is of type int64, not string"),
        ({"line": ["a"], "at": [["1"]]}, "column 'at' of Place: it is of type string, not int64"),
        ({"line": ["a"], "at": [1]}, "column 'at' of Place: it is of type int64, not list"),
        ({"line": ["a"], "at": [[1.5]]}, "column 'at' of Place: .*truncated"),
        ({"line": pa.nulls(1, pa.string())}, "column 'line' of Place is null"),
        ({"line": pa.nulls(1)}, "column 'line' of Place is null"),
    ],
)
def test_columns_of_another_form_are_refused(columns: Any, text: str) -> None:
    with pytest.raises(PoisonError, match=text):
        back(rows_of(Place), batch_of(**columns))


def test_a_choice_that_there_is_not_is_refused() -> None:
    made = msgspec.defstruct("Choice", [("size", Literal["s", "m"] | None), ("colour", Colour)])
    good = {"size": pa.array(["s", None]), "colour": ["red", "blue"]}
    assert [one.size for one in back(rows_of(made), batch_of(**good))] == ["s", None]
    for wrong in ({"size": ["xl", "s"]}, {"colour": ["green", "red"]}):
        with pytest.raises(PoisonError, match=r"'xl' is none of 's', 'm'|green"):
            back(rows_of(made), batch_of(**{**good, **wrong}))


def test_two_columns_of_one_name_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["line", "line"])
    with pytest.raises(PoisonError, match="and no line"):
        back(rows_of(Place), batch)


def test_two_fields_of_one_name_within_a_column_are_refused() -> None:
    inner = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["line", "line"])
    for of in (Placed, pa.schema([("p", pa.struct([("line", pa.string())]))])):
        with pytest.raises(PoisonError, match=r"column 'p' of .* no line"):
            back(rows_of(of), batch_of(p=inner))


class Placed(msgspec.Struct):
    p: Place


MAP_KEYS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.sampled_from(["a", "A", "", "é"])),
    "int": (pa.int32(), st.integers(-1, 2)),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan")])),
    "bytes": (pa.binary(), st.sampled_from([b"a", b"b"])),
    "decimal": (pa.decimal128(5, 1), st.sampled_from([Decimal("1.0"), Decimal(1), Decimal("1.5")])),
    "time": (
        pa.timestamp("us", "Europe/Berlin"),
        st.builds(lambda hour: datetime(2025, 10, 26, hour, tzinfo=UTC), st.integers(0, 2)),
    ),
}
PLACES_OF_MAPS: dict[str, tuple[Any, Any]] = {
    "column": (lambda kind: kind, lambda entries: entries),
    "in a list": (pa.list_, lambda entries: [[], entries]),
    "in a struct": (lambda kind: pa.struct([("inner", kind)]), lambda entries: {"inner": entries}),
    "in a map": (lambda kind: pa.map_(pa.string(), kind), lambda entries: [("x", entries)]),
}


def are_distinct(keys: list[Any]) -> bool:
    """Whether a dict in Python, and an object in JSON, would have an entry for each."""
    texts = [str(key) for key in keys]
    equal = [a == b for index, a in enumerate(keys) for b in keys[:index]]
    return len(set(texts)) == len(keys) and not any(equal)


@pytest.mark.parametrize("place", PLACES_OF_MAPS)
@pytest.mark.parametrize("kind", MAP_KEYS)
@given(st.data())
def test_a_map_keeps_each_entry_or_is_refused_with_its_column(
    kind: str, place: str, data: st.DataObject
) -> None:
    key, keys_of = MAP_KEYS[kind]
    keys = data.draw(st.lists(keys_of, max_size=3))
    within, cell_of = PLACES_OF_MAPS[place]
    arrow = within(pa.map_(key, pa.int64()))
    batch = batch_of(v=pa.array([cell_of(list(zip(keys, range(3), strict=False)))], arrow))
    rows = rows_of(pa.schema([("v", arrow)]))
    local = pa.array(keys, key).to_pylist()
    if not are_distinct(local):
        with pytest.raises(PoisonError, match=r"column 'v' of .*: a map has a key twice"):
            back(rows, batch)
        return
    (row,) = back(rows, batch)
    assert str(list(entries_in(row["v"]))) == str(list(zip(local, range(3), strict=False)))


def entries_in(value: Any) -> Any:
    """The entries of the innermost dict with numbers."""
    if isinstance(value, list):
        return entries_in(value[-1])
    if isinstance(value, dict) and value and isinstance(next(iter(value.values())), dict):
        return entries_in(next(iter(value.values())))
    return value.items()


def test_keys_that_become_equal_in_python_are_one_key() -> None:
    texts = ["0A000000-0000-0000-0000-000000000000", "0a000000-0000-0000-0000-000000000000"]
    made = msgspec.defstruct("OfIds", [("v", dict[UUID, int])])
    cells = pa.array([[(texts[0], 1), (texts[1], 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(PoisonError, match="column 'v' of OfIds: a map has a key twice"):
        back(rows_of(made), batch_of(v=cells))


class KeywordsOnly(msgspec.Struct, kw_only=True):
    a: int = 1
    b: str


@dataclass
class Derived:
    a: int
    b: str = field(init=False, default="x")


@pytest.mark.parametrize(
    ("of", "columns", "made"),
    [
        (KeywordsOnly, {"b": ["x"]}, KeywordsOnly(b="x")),
        (Derived, {"a": [1]}, Derived(1)),
        (Int64Value, {"value": [5]}, Int64Value(value=5)),
        (StringValue, {"value": pa.nulls(1)}, StringValue()),
    ],
)
def test_fields_with_defaults_may_be_absent(of: Any, columns: Any, made: Any) -> None:
    assert back(rows_of(of), batch_of(**columns)) == [made]


class Unclear(msgspec.Struct):
    what: Any
    n: int = 5


class Either(msgspec.Struct):
    what: int | str


class Unresolved(msgspec.Struct):
    what: NoSuchType  # type: ignore[name-defined]  # noqa: F821 - that is it


class Nest(msgspec.Struct):
    inner: Nest | None


class Mixed(enum.Enum):
    A = 1
    B = "b"


class OfMixed(msgspec.Struct):
    what: Mixed


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (Unclear, "Unclear.what is .*Any, which gives no type of a column: name its columns"),
        (Either, "Either.what is int | str"),
        (Unresolved, "NoSuchType"),
        (Nest, "Nest is in itself"),
        (OfMixed, "not all text or all int"),
        (Struct, "Struct is in itself"),
        (dict, "the fields of dict are not known"),
        (list, "the fields of list are not known"),
        (object, "the fields of object are not known"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "columns of the same name: a, a"),
        (
            pa.schema([("a", pa.struct([("b", pa.int8()), ("b", pa.int8())]))]),
            "a has columns of the same name: b, b",
        ),
        (pa.schema([("a", pa.null())]), "column 'a' is of type null"),
        (pa.schema([("a", pa.dense_union([pa.field("x", pa.int8())]))]), "column 'a' is of type dense_union"),
    ],
)
def test_types_without_columns_are_refused(of: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        rows_of(of)


def test_only_fields_that_there_are_can_be_chosen() -> None:
    assert rows_of(Place, ["at"]).batch([Place("x", (1,))]).to_pylist() == [{"at": [1]}]
    assert rows_of(Unclear, ["n"]).batch([Unclear(None)]).to_pylist() == [{"n": 5}]
    with pytest.raises(ConfigurationError, match="Place has no field 'atm'; it has line, at"):
        rows_of(Place, ["atm"])


def test_messages_of_well_known_types_have_their_fields() -> None:
    assert rows_of(Timestamp).batch([Timestamp(seconds=5)]).to_pylist() == [{"seconds": 5, "nanos": 0}]
    assert rows_of(Int32Value).arrow == pa.struct([("value", pa.int32())])
    assert rows_of(BoolValue).batch([BoolValue()]).to_pylist() == [{"value": False}]
