# ruff: noqa: RUF001 - digits of other scripts are what is asked for

"""Goal: what one form cannot hold of another is refused, on every way: nothing is guessed, and nothing rounded in silence.

Method: each kind of field with odd values, through each way into it (CSV, lines of JSON, Parquet, columns, tables) of each codec. What is taken is
what an oracle of this file reads from the text; what is refused is refused everywhere.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from dataclasses import make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import ParseError

from sqe_chain.codecs import codec_for
from sqe_chain.codecs.arrow_rows import rows_of
from sqe_chain.errors import PoisonError, RowOfAnotherType
from sqe_chain.ext.files import FileRows
from sqe_chain.ext.files.codec import Rows
from sqe_chain.ext.tables import Column, Memtable, TableSchema
from tests.support.dynamic_messages import message_type

Read = Callable[[str], Any]
REFUSED = (ValueError, ParseError)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 20


MESSAGE = message_type(
    {
        "State": (
            "int32 int = 1; int64 long = 2; uint64 much = 3; double float = 4; float narrow = 5; bool bool = 6; bytes raw = 7; "
            "repeated int64 ints = 8; map<int64, int64> of = 9"
        )
    }
)


def of_struct(kind: Any, *, dataclass: bool = False) -> Read:
    """Reads a field of CSV in a struct, or a dataclass."""
    made = make_dataclass("Row", [("x", kind)]) if dataclass else msgspec.defstruct("Row", [("x", kind)])
    read: Callable[[bytes], Any] = Rows(codec_for(made), csv=True).decode
    return lambda text: read(json.dumps({"x": text}).encode()).x


def of_message(field: str, *, csv: bool, wrap: Callable[[Any], Any] = lambda text: text) -> Read:
    """Reads text in a field of a protobuf message."""
    read = Rows(codec_for(MESSAGE), csv=csv).decode

    def found(text: str) -> Any:
        value = getattr(read(json.dumps({field: wrap(text)}).encode()), field)
        return value[0] if field == "ints" else (*value.items(), None)[0] if field == "of" else value

    return found


INTS: dict[str, Read] = {
    "struct": of_struct(int),
    "optional": of_struct(int | None),
    "dataclass": of_struct(int, dataclass=True),
    "enum": of_struct(Level),
    "literal": of_struct(Literal[0, 1, 20]),
    "int32": of_message("int", csv=True),
    "int64": of_message("long", csv=True),
    "uint64": of_message("much", csv=True),
    "JSON": of_message("long", csv=False),
    "repeated": of_message("ints", csv=False, wrap=lambda text: [text]),
    "key": lambda text: of_message("of", csv=False, wrap=lambda one: {one: 5})(text)[0],
    "value": lambda text: of_message("of", csv=False, wrap=lambda one: {"1": one})(text)[1],
}
FLOATS: dict[str, Read] = {
    "struct": of_struct(float),
    "optional": of_struct(float | None),
    "dataclass": of_struct(float, dataclass=True),
    "double": of_message("float", csv=True),
    "float": of_message("narrow", csv=True),
    "JSON": of_message("float", csv=False),
}
BOOLS: dict[str, Read] = {
    "struct": of_struct(bool),
    "dataclass": of_struct(bool, dataclass=True),
    "message": of_message("bool", csv=True),
}
NO_NUMBERS = [
    *(
        "2_0",
        "1_000",
        " 20",
        "20 ",
        "+20",
        "020",
        "0x14",
        "２０",
        "٢٠",
        "1,000",
        "1.",
        ".5",
        "1_0.5",
        "--1",
        "-",
        "1e",
        "1e5_0",
    ),
    *("null", "None", "nan", "inf", "-inf", "true", "yes", "20 000", "20\n", "\x0020", "1e999", "²"),
]


@pytest.mark.parametrize("way", INTS)
def test_text_becomes_an_int_as_it_is_written_or_is_refused(way: str) -> None:
    for text in ("20", "1", "20.0"):
        assert INTS[way](text) == int(Decimal(text))
    for text in [
        *NO_NUMBERS,
        "2e1",
        "20.5",
        "1e3",
        str(2**70) if way not in {"struct", "optional", "dataclass"} else "?",
    ]:
        with pytest.raises(REFUSED):
            INTS[way](text)
    assert of_struct(int)(str(2**70)) == 2**70
    assert of_message("much", csv=True)(str(2**64 - 1)) == 2**64 - 1


@pytest.mark.parametrize("way", FLOATS)
def test_text_becomes_the_nearest_float_or_is_refused(way: str) -> None:
    bits = 32 if way == "float" else 64
    for text in (
        "20",
        "-0.5",
        "1e3",
        "0.1",
        "-0",
        "0e5",
        "16777216",
        "9007199254740992" if bits == 64 else "8589934592",
    ):
        expected = float(text) if bits == 64 else pa.scalar(float(text)).cast(pa.float32()).as_py()
        assert (found := FLOATS[way](text)) == expected
        assert str(found)[0] == ("-" if text[0] == "-" else str(found)[0])
    too_wide = ["1e39", "16777217"] if bits == 32 else ["1e309", "9007199254740993"]
    for text in [*NO_NUMBERS, *too_wide, "1e-999", "-1e-400"]:
        with pytest.raises(REFUSED):
            FLOATS[way](text)


@pytest.mark.parametrize("way", BOOLS)
def test_text_becomes_a_bool_or_is_refused(way: str) -> None:
    assert [BOOLS[way](text) for text in ("true", "TRUE", "1", "false", "0")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    for text in ("-0", "1.0", "yes", "t", "10", " true", "null", "ｔrue"):
        with pytest.raises(REFUSED):
            BOOLS[way](text)


TIMES: dict[Any, dict[str, Any]] = {
    datetime: {
        "2026-11-20T06:00:00Z": datetime(2026, 11, 20, 6, tzinfo=UTC),
        "2026-11-20 06:00:00.500000000": datetime(2026, 11, 20, 6, 0, 0, 500_000),  # noqa: DTZ001 - it says no zone
        "0001-01-01T00:00:00.000001Z": datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        "1850-01-01T00:00:00+00:53": datetime(1850, 1, 1, tzinfo=timezone(timedelta(minutes=53))),
    },
    date: {"2026-11-20": date(2026, 11, 20)},
    time: {"12:30:00.25": time(12, 30, 0, 250_000)},
    timedelta: {"PT1.5S": timedelta(seconds=1.5), "P1D": timedelta(days=1)},
    Decimal: {"1.20": Decimal("1.20"), "-5": Decimal(-5), "1e-3": Decimal("0.001")},
}
NO_TIMES = [
    *(
        "20261120",
        "20261120060000",
        "20261120T060000Z",
        "2026",
        "46346",
        "1763618400",
        "1763618400.5",
        "0",
        "1e3",
        "20/11/2026",
        "12:30",
        "now",
    ),
    *(
        "2026-11-20T06:00:00.0000001Z",
        "1969-12-31T23:59:59.999999999Z",
        "12:30:00.1234567",
        "PT0.0000005S",
        "P0.12345678D",
    ),
    *(
        "1850-01-01T00:00:00+00:53:28",
        "2026-11-20T06:00:60Z",
        "2026-11-20T24:00:00Z",
        "２026-11-20",
        "2026-02-30",
        "-1",
    ),
]
NO_DECIMALS = ["1_0", " 1", "１", "nan", "NaN", "Infinity", "0x1", "+1", "1,5"]


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("way", ["csv", "csv of a dataclass", "lines", "topic", "inside"])
def test_times_and_decimals_in_text_are_whole_or_refused(kind: Any, way: str) -> None:
    if way == "csv":
        read = of_struct(kind)
    elif way == "csv of a dataclass":
        read = of_struct(kind, dataclass=True)
    else:
        inner = list[dict[str, kind | None]] if way == "inside" else kind
        made = msgspec.defstruct("Row", [("x", inner)])
        decode = codec_for(made).decode if way == "topic" else Rows(codec_for(made)).decode

        def read(text: str) -> Any:
            value = [{"a": None, "b": text}] if way == "inside" else text
            found: Any = decode(json.dumps({"x": value}).encode())
            return found.x[0]["b"] if way == "inside" else found.x

    for text, expected in TIMES[kind].items():
        found = read(text)
        assert (found, type(found)) == (expected, kind)
    for text in NO_DECIMALS if kind is Decimal else NO_TIMES:
        with pytest.raises(REFUSED):
            read(text)


def test_text_of_protobuf_s_own_types_is_checked_too() -> None:
    for kind, good, wrong in (
        (
            "Timestamp",
            "1969-12-31T23:59:59.999999999Z",
            ["２026-01-01T00:00:00Z", "2026-01-01T00:00:00.1_0Z", "20260101", "5"],
        ),
        ("Duration", "-1.5s", ["1_0s", "１s", "1.5", "PT1S"]),
        ("Int64Value", "5", ["5_0", "５", "1e999"]),
        ("DoubleValue", "0.5", ["5_0", "５", "1e999", "9007199254740993"]),
        ("FloatValue", "0.5", ["16777217"]),
        ("Struct", {"x": [1]}, [{"x": [9007199254740993]}]),
    ):
        of = codec_for(
            message_type({"State": f"google.protobuf.{kind} x = 1; repeated google.protobuf.{kind} many = 2"})
        )
        for csv in (False, True):
            read = Rows(of, csv=csv).decode
            assert read(json.dumps({"x": good, "many": [good]}).encode()).HasField("x")
            for text in wrong:
                for row in ({"x": text}, {"many": [good, text]}):
                    with pytest.raises(REFUSED):
                        read(json.dumps(row).encode())
    raw = of_message("raw", csv=True)
    assert (raw("AP8="), raw("AP8"), raw("_-8=")) == (b"\x00\xff", b"\x00\xff", b"\xff\xef")
    for text in ("A!P8=", "AP8 =", "A", "Ａ"):
        with pytest.raises(REFUSED):
            raw(text)


def test_whole_numbers_of_json_are_not_rounded_to_floats() -> None:
    class Row(msgspec.Struct):
        x: float
        many: list[float] = []
        note: int | float = 0

    read = Rows(codec_for(Row)).decode
    assert read(b'{"x": 9007199254740992, "note": 9007199254740993}') == Row(2.0**53, note=2**53 + 1)
    for line in (b'{"x": 9007199254740993}', b'{"x": 0, "many": [1, -9007199254740993]}'):
        with pytest.raises(ValueError, match="without being rounded"):
            read(line)
    for field, line in (
        ("float", b'{"float": 9007199254740993}'),
        ("narrow", b'{"narrow": 16777217}'),
        ("long", b'{"long": 9007199254740993.0}'),
        ("ints", b'{"ints": ["2_0"]}'),
    ):
        with pytest.raises(ParseError, match=field):
            Rows(codec_for(MESSAGE)).decode(line)


# --- Parquet --------------------------------------------------------------------------------------------------

BERLIN = "Europe/Berlin"
MOMENTS = [0, -1, -999, -1_000, -1_001, 1, 999, 1_700_000_000_123_456_789, -3_786_825_600_000_000_001, 10**18]


def parquet(tmp_path: Path, array: pa.Array) -> FileRows:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": array, "parts": [[{"x": one}] for one in array]}), path)
    return FileRows(path)


def nanoseconds(text: str) -> int:
    """A time in ISO 8601 as nanoseconds since 1970."""
    seconds, _, rest = text.partition(".")
    digits = re.split("[^0-9]", rest)[0]
    zone = text.rpartition("+")[2] if "+" in text else "00:00"
    moment = datetime.fromisoformat(f"{seconds[:19]}+{zone}")
    whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return whole * 10**9 + int(digits.ljust(9, "0"))


@pytest.mark.parametrize("zone", [None, "UTC", BERLIN, "+05:30"])
@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_times_of_parquet_keep_all_their_digits(tmp_path: Path, unit: str, zone: str | None) -> None:
    step = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    numbers = [moment // step for moment in MOMENTS]
    rows = parquet(tmp_path, pa.array(numbers, pa.timestamp(unit, zone)))

    class Row(msgspec.Struct):
        x: datetime
        parts: list[Any] = []

    typed = Rows(codec_for(Row)).decode
    for number, row in zip(numbers, rows.read(), strict=True):
        cells = row.decode()
        assert nanoseconds(cells["x"]) == number * step
        assert cells["parts"] == [{"x": cells["x"]}]
        if number * step % 1_000:
            with pytest.raises(ValueError, match="whole microseconds"):
                typed(row.value)
        else:
            found = typed(row.value).x.replace(tzinfo=UTC) if zone is None else typed(row.value).x
            assert (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
                microseconds=1
            ) == number * step // 1_000


def test_durations_and_times_of_day_of_parquet_keep_all_their_digits(tmp_path: Path) -> None:
    values = [0, 1_000, 1, -1, -1_500_000_001, 86_399_999_999_999]
    rows = parquet(tmp_path, pa.array(values, pa.duration("ns")))
    assert [one.decode()["x"] for one in rows.read()] == [
        *("P0D", "PT0.000001S", "PT0.000000001S", "-PT0.000000001S", "-PT1.500000001S", "PT86399.999999999S")
    ]
    rows = parquet(tmp_path, pa.array([1_000, 86_399_999_999_999, None], pa.time64("ns")))
    assert [one.decode()["x"] for one in rows.read()] == ["00:00:00.000001", "23:59:59.999999999", None]


def test_far_times_of_old_programs_are_read_unchanged(tmp_path: Path) -> None:
    times = [datetime(9999, 12, 31), datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999)]  # noqa: DTZ001 - no zone
    pq.write_table(
        pa.table({"x": pa.array(times, pa.timestamp("us"))}),
        tmp_path / "a.parquet",
        use_deprecated_int96_timestamps=True,
    )
    assert [one.decode()["x"] for one in FileRows(tmp_path / "a.parquet").read()] == [
        moment.isoformat() for moment in times
    ]


def test_floats_of_columns_are_not_narrowed_and_those_of_lines_are_the_nearest() -> None:
    line = b'{"narrow": 0.1, "float": 0.1}'
    lines: Any = Rows(codec_for(MESSAGE))
    assert lines.decode(line).narrow == pa.scalar(0.1).cast(pa.float32()).as_py()
    typed: Any = Rows(codec_for(MESSAGE), typed=True)
    with pytest.raises(ParseError, match=r"narrow: .* is not a float of 32 bits without being rounded"):
        typed.decode(line)
    assert typed.decode(b'{"narrow": 0.5, "float": 0.1}').narrow == 0.5


# --- columns and tables ---------------------------------------------------------------------------------------

EDGES = [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
BEYOND = [
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),  # as .NET writes "never"
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
]
OLD = datetime(1850, 1, 1, tzinfo=ZoneInfo(BERLIN))
EXACT: list[tuple[Any, list[Any], list[Any]]] = [
    (pa.float16(), [0.5, float("inf")], [0.1, 65_520.0, 1e-9, 2049]),
    (
        pa.float32(),
        [0.5, -0.0, float("nan"), float("inf"), 16_777_216],
        [0.1, 16_777_216.5, 1e300, 1e-300, 16_777_217],
    ),
    (pa.float64(), [0.1, 2**53], [2**53 + 1]),
    (pa.int8(), [-128], [128, 1.0, True]),
    (pa.uint64(), [2**64 - 1], [-1, 2**64]),
    (
        pa.timestamp("s", "UTC"),
        [datetime(2020, 1, 1, tzinfo=UTC), OLD],
        [datetime(1969, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    ),
    (pa.timestamp("ms"), [datetime(1, 1, 1)], [datetime(2020, 1, 1, 0, 0, 0, 999)]),  # noqa: DTZ001 - no zone
    (pa.timestamp("us", BERLIN), [OLD, EDGES[0]], [datetime(2020, 1, 1), EDGES[1], *BEYOND]),  # noqa: DTZ001 - no zone
    (pa.timestamp("us", "UTC"), EDGES, BEYOND),
    (
        pa.timestamp("ns", "UTC"),
        [datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
        [datetime(1600, 1, 1, tzinfo=UTC)],
    ),
    (pa.time32("ms"), [time(1, 2, 3, 999_000)], [time(1, 2, 3, 999), time(1, tzinfo=UTC)]),
    (pa.time64("ns"), [time(1, 2, 3, 999)], [time(1, tzinfo=UTC)]),
    (pa.duration("s"), [timedelta(days=-1)], [timedelta(microseconds=-1), timedelta(milliseconds=1999)]),
    (pa.date64(), [date(1, 1, 1)], [datetime(2020, 1, 1, tzinfo=UTC)]),
    (pa.decimal128(10, 2), [Decimal("1.50"), 7], [Decimal("1.234"), Decimal("NaN"), Decimal(10**9), 1.5]),
    (pa.string(), ["x"], [b"x", "\ud800"]),
]


def same(found: Any, expected: Any) -> bool:
    return bool(found == expected or str(found) == str(expected) == "nan")


@pytest.mark.parametrize("arrow", [one for one, _, _ in EXACT], ids=str)
def test_columns_hold_a_value_unchanged_or_refuse_it(arrow: Any) -> None:
    (exact, others) = next((exact, others) for of, exact, others in EXACT if of == arrow)
    for kind, wrap in ((arrow, lambda one: one), (pa.list_(arrow), lambda one: [one])):
        rows = rows_of(pa.schema([("x", kind)]))
        for value in exact:
            batch = rows.batch([{"x": wrap(value)}])
            assert batch.schema.field("x").type == kind
            (back,) = rows.rows(["x"], batch.columns, 1)
            assert same(back["x"] if kind == arrow else back["x"][0], value)
        for value in others:
            with pytest.raises(PoisonError, match=r"x of the schema"):
                rows.batch([{"x": None}, {"x": wrap(value)}])


@pytest.mark.parametrize(
    ("given", "taken", "good", "wrong"),
    [
        (pa.float64(), pa.float32(), 0.5, 0.1),
        (pa.float64(), pa.float16(), float("nan"), 1e300),
        (pa.float32(), pa.float16(), 0.5, 0.1),
        (pa.float64(), pa.int64(), 2.0, 2.5),
        (pa.int64(), pa.float64(), 2**53, 2**53 + 1),
        (pa.int64(), pa.float32(), 2**24, 2**24 + 1),
        (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC"), -1_000, -1),
        (pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC"), -1_000, -1),
        (pa.timestamp("s"), pa.timestamp("us"), 0, 2**60),
        (pa.timestamp("us"), pa.timestamp("us"), 0, 2**60),
        (pa.time64("ns"), pa.time64("ns"), 1_000, 1),
        (pa.duration("ns"), pa.duration("ns"), -1_000, -1),
        (pa.date64(), pa.date32(), 86_400_000, 1),
        (pa.date64(), pa.date64(), 86_400_000, 1),
        (pa.decimal128(10, 3), pa.decimal128(10, 2), Decimal("1.500"), Decimal("1.501")),
    ],
    ids=str,
)
def test_columns_that_are_returned_become_values_unchanged_or_are_refused(
    given: Any, taken: Any, good: Any, wrong: Any
) -> None:
    rows = rows_of(pa.schema([("x", taken)]))
    rows.rows(["x"], [pa.array([good, None], given)], 2)
    with pytest.raises(PoisonError, match="column 'x' of the schema"):
        rows.rows(["x"], [pa.array([None, wrong], given)], 2)


@pytest.mark.parametrize(
    ("column", "exact", "others"),
    [
        ("float32", [0.5, 2**24, float("nan")], [0.1, 1e300, 2**24 + 1]),
        ("list<float32>", [[0.5], []], [[0.5, 0.1], [1e300]]),
        ("float64", [0.1], [2**53 + 1]),
        ("int32", [-1], [2**31, 1.0, True]),
        ("timestamp", [OLD, *EDGES], [datetime(2020, 1, 1), *BEYOND]),  # noqa: DTZ001 - no zone
        ("list<timestamp>", [EDGES], [[one] for one in BEYOND]),
        ("decimal(10,2)", [Decimal("1.5"), 7], [Decimal("1.234"), Decimal("NaN")]),
        ("date", [date(1, 1, 1)], [datetime(2020, 1, 1, tzinfo=UTC)]),
    ],
)
def test_cells_of_tables_are_stored_unchanged_or_refused(
    column: str, exact: list[Any], others: list[Any]
) -> None:
    schema = TableSchema.of(
        None, partition_key="k", row_key="at", columns={"k": "string", "at": "int64", "x": column}
    )
    memtable = Memtable(schema)
    for at, value in enumerate(exact):
        memtable.ingest({"k": "a", "at": at, "x": value})
    found = memtable.flush().data["x"].to_pylist()
    assert all(same(one, value) for one, value in zip(found, exact, strict=True))
    failed: list[int] = []
    memtable.ingest_all(
        [{"k": "b", "at": 0, "x": value} for value in others], lambda index, _: failed.append(index)
    )
    assert failed == list(range(len(others)))


def test_a_timestamp_with_nanoseconds_is_no_time_of_a_table() -> None:
    made = message_type({"State": "string k = 1; google.protobuf.Timestamp at = 2"})
    schema = TableSchema.of(made, partition_key="k", row_key="at")
    memtable = Memtable(schema)
    memtable.ingest(made(k="a", at={"seconds": -1, "nanos": 999_999_000}))
    assert memtable.flush().data["at"].to_pylist() == [
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    ]
    with pytest.raises(RowOfAnotherType, match="'at': timestamp does not take 1 nanoseconds"):
        memtable.ingest(made(k="a", at={"seconds": -1, "nanos": 1}))
    for seconds in (-(1 << 40), 1 << 40):  # before the year 1, and after 9999
        with pytest.raises(RowOfAnotherType):
            memtable.ingest(made(k="a", at={"seconds": seconds}))


def test_one_moment_is_one_key_in_whatever_zone_it_is_written() -> None:
    schema = TableSchema.of(
        None, partition_key="at", row_key="n", columns=[Column("at", "timestamp"), Column("n", "int64")]
    )
    keys = {schema.partition_key_of({"at": OLD.astimezone(zone), "n": 1}) for zone in (UTC, ZoneInfo(BERLIN))}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (datetime, OLD),
        (time, time(1, tzinfo=timezone(timedelta(seconds=90)))),
        (list[datetime | None], [None, OLD]),
    ],
)
def test_json_refuses_offsets_that_it_cannot_express(kind: Any, value: Any) -> None:
    made = msgspec.defstruct("Row", [("x", kind)])
    with pytest.raises(ValueError, match="its offset has seconds"):
        codec_for(made).encode(made(value))
    if not isinstance(value, list):
        plain = codec_for(dict)
        for holder in ({"a": [{"x": value}], "b": 1}, {"x": value}, {"x": (value,)}, {"x": made(value)}):
            with pytest.raises(ValueError, match="its offset has seconds"):
                plain.encode(holder)
        assert plain.encode({"x": "01:02:03+01:00", "y": time(1, 2, 3, tzinfo=UTC)})
        assert plain.encode({"x": "2026-11-20T06:00:00+01:00", "y": datetime(1850, 1, 1, tzinfo=UTC)})
    assert codec_for(made).encode(made(datetime(1850, 1, 1, tzinfo=UTC)))
