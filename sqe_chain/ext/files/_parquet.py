"""Rows of Parquet files, from any row on: whole row groups before it are not read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sqe_chain.codecs.arrow_values import map_of
from sqe_chain.errors import ChangedFile, UnreadableFile

if TYPE_CHECKING:
    from sqe_chain.ext.files._content import FixedFile


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _in_microseconds(schema: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The schema with microseconds for nanoseconds."""
    return pa.schema([field.with_type(_without_ns(field.type, numbers=False)) for field in schema])


def _in_numbers(schema: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The schema with plain integers for times of nanoseconds; `_spelled` takes them."""
    return pa.schema([field.with_type(_without_ns(field.type, numbers=True)) for field in schema])


def _is_unsayable(kind: Any) -> bool:  # noqa: ANN401 - pyarrow has no types
    """Whether there are times of a zone with a name, whose offset may have had seconds once; or floats as keys, so NaN twice."""
    if pa.types.is_timestamp(kind):
        return kind.tz not in (None, "UTC") and kind.tz[0] not in "+-"
    if pa.types.is_map(kind) and pa.types.is_floating(kind.key_type):
        return True
    return any(map(_is_unsayable, _within(kind)))


def _within(kind: Any) -> list[Any]:  # noqa: ANN401 - pyarrow has no types
    """The types of what values of a type hold."""
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(number).type for number in range(kind.num_fields)]


def _sayable(value: Any) -> Any:  # noqa: ANN401 - any value of Python
    """A value in which times whose offset has seconds, for which ISO 8601 has no form, are in UTC.

    Raises:
        ValueError: a map has a key twice.
    """
    if isinstance(value, datetime):
        offset = value.utcoffset()
        return value.astimezone(UTC) if offset is not None and offset.seconds % 60 else value
    if isinstance(value, dict):
        return map_of([_sayable(name) for name in value], [_sayable(item) for item in value.values()])
    return [_sayable(item) for item in value] if isinstance(value, list) else value


def _spelled(kind: Any, value: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """A value of a type of Arrow whose nanoseconds are plain integers: text for those that are no whole microseconds."""
    if value is None:
        return None
    if getattr(kind, "unit", "") == "ns":
        return _time(kind, value)
    if pa.types.is_map(kind):
        key, item = _within(kind)
        return map_of(
            [_spelled(key, name) for name in value], [_spelled(item, content) for content in value.values()]
        )
    if isinstance(value, Mapping):
        return {field.name: _spelled(field.type, value[field.name]) for field in kind}
    if isinstance(value, list):
        return [_spelled(kind.value_type, item) for item in value]
    return value


def _time(kind: Any, value: int) -> Any:  # noqa: ANN401 - pyarrow has no types
    micros, rest = divmod(value, 1_000)
    if pa.types.is_duration(kind):
        if not rest:
            return timedelta(microseconds=micros)
        seconds, nanos = divmod(abs(value), 1_000_000_000)
        return f"{'-' if value < 0 else ''}PT{seconds}.{nanos:09}S"
    moment = _EPOCH + timedelta(microseconds=micros)
    if pa.types.is_time(kind):
        of_day = moment.time()
        return f"{of_day.isoformat('microseconds')}{rest:03}" if rest else of_day
    if kind.tz is None:
        moment = moment.replace(tzinfo=None)
    else:
        moment = _sayable(moment.astimezone(pa.scalar(0, kind).as_py().tzinfo))
    if not rest:
        return moment
    text = moment.isoformat(timespec="microseconds")
    return f"{text[:26]}{rest:03}{text[26:].replace('+00:00', 'Z')}"


def _micros(kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


def _without_ns(kind: Any, *, numbers: bool) -> Any:  # noqa: ANN401 - pyarrow has no types
    if getattr(kind, "unit", "") == "ns":
        return pa.int64() if numbers else _micros(kind)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_ns(field.type, numbers=numbers)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(*(_without_ns(of, numbers=numbers) for of in _within(kind)))
    made = next((make for is_one, make in _LISTS if is_one(kind)), None)
    if made is None:
        return kind
    item = kind.value_field.with_type(_without_ns(kind.value_type, numbers=numbers))
    return kind if item == kind.value_field else made(item)


_LISTS: Final = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_fixed_size_list, pa.list_),
)
"""Kinds of lists -> the list that replaces one whose items change."""


_ROWS: Final = 1_000
_ERRORS: Final = (pa.ArrowException, OSError, ValueError)
"""What pyarrow raises for bytes that are no Parquet."""
_NOT_PYTHON: Final = (ValueError, OverflowError, KeyError, TypeError)
"""Times beyond the year 9999, text that is no UTF-8, maps with a key twice or with keys that are structs."""
_encode: Final = msgspec.json.Encoder().encode


class ParquetRows:
    """The rows of a Parquet file, as JSON objects.

    Values without a form in JSON become text, as msgspec writes it: bytes in base64, decimals as digits, times in ISO 8601. Times
    have nine digits where there are nanoseconds. NaN and infinity become null.

    Args:
        path: of the file, for errors.
        file: its bytes.

    Attributes:
        count: how many rows it has.

    Raises:
        UnreadableFile: it is no Parquet, or cut off.
    """

    def __init__(self, path: str, file: FixedFile) -> None:
        self._path, self._file = path, file
        try:
            # Of INT96, as old programs write it, nanoseconds would overflow in silence: the year 9999 would be 1816.
            self._parquet = pq.ParquetFile(
                file,
                pre_buffer=False,
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            )
            schema = self._parquet.schema_arrow
            self._schema, self._numbers = _in_microseconds(schema), _in_numbers(schema)
            self._kind = pa.struct(list(schema))
        except _ERRORS as error:
            raise self._unreadable("no Parquet, or cut off", error) from error
        twice = sorted(_names_twice(self._kind))
        if twice:
            raise UnreadableFile(
                f"{path}: it has several columns named {', '.join(map(repr, twice))}, and a row can keep one. Write it with another name "
                "for each"
            )
        self._unsayable = _is_unsayable(self._kind)
        groups = [
            self._parquet.metadata.row_group(number).num_rows
            for number in range(self._parquet.num_row_groups)
        ]
        self._begins = [0, *accumulate(groups)]
        self.count: int = self._begins[-1]
        if self.count != self._parquet.metadata.num_rows:
            raise self._unreadable(
                "no Parquet, or damaged",
                ValueError(f"it has {self._parquet.metadata.num_rows:,} rows, and its groups {self.count:,}"),
            )

    def rows_from(self, start: int) -> Iterator[bytes]:
        """The rows from this one on.

        Raises:
            UnreadableFile: a part of it is damaged.
            ChangedFile: it was changed since it was looked at.
        """
        group = bisect_right(self._begins, start) - 1
        skip = start - self._begins[group]
        row = self._begins[group]
        try:
            groups = range(group, self._parquet.num_row_groups)
            for batch in self._parquet.iter_batches(_ROWS, row_groups=list(groups), use_threads=False):
                row += batch.num_rows
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                yield from self._rows_in(batch.slice(skip))
                skip = 0
            if row != self.count:
                raise ValueError(f"it has {self.count:,} rows, and {row:,} were read")
        except _ERRORS as error:
            raise self._unreadable(f"damaged, at row {row:,} or after it", error) from error

    def _rows_in(self, part: Any) -> Iterator[bytes]:  # noqa: ANN401 - an Arrow record batch
        """The rows of a batch. One that Python cannot hold becomes an error text for the poison policy, and harms no other."""
        try:
            rows = self._values(part)
        except _NOT_PYTHON as error:
            if part.num_rows == 1:
                return iter(
                    [f"no value of Python: {type(error).__name__}".encode()]
                )  # the same with each version
            half = part.num_rows // 2
            return chain.from_iterable(
                self._rows_in(rows) for rows in (part.slice(0, half), part.slice(half))
            )
        return map(_as_json, rows)

    def _values(self, part: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - an Arrow record batch
        try:
            if part.schema != self._schema:
                part = part.cast(self._schema)
        except pa.ArrowInvalid:  # there are nanoseconds
            numbers = part.cast(self._numbers).to_pylist(maps_as_pydicts="strict")
            return [_spelled(self._kind, row) for row in numbers]
        rows: list[dict[str, Any]] = part.to_pylist(maps_as_pydicts="strict")
        return [_sayable(row) for row in rows] if self._unsayable else rows

    def _unreadable(self, what: str, error: BaseException) -> UnreadableFile | ChangedFile:
        if self._file.failure is not None:
            return self._file.failure
        return UnreadableFile(
            f"{self._path}: {what}: {str(error).rstrip('.')}. Write it again, under another name, and rename"
        )


def _as_json(row: dict[str, Any]) -> bytes:
    try:
        return _encode(row)
    except (TypeError, ValueError):  # the poison policy gets to see what it is
        return repr(row).encode(errors="backslashreplace")


def _names_twice(kind: Any) -> set[str]:  # noqa: ANN401 - pyarrow has no types
    """Names that several fields of a struct have, also within others."""
    names = [field.name for field in kind] if pa.types.is_struct(kind) else []
    return {name for name in names if names.count(name) > 1}.union(*map(_names_twice, _within(kind)))
