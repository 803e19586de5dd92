"""Values as Arrow columns, and columns as values: one class for each form that a column may have.

What a column takes does not depend on the values beside it: its Arrow type is fixed, and nothing is rounded or cut off. So a
batch can be divided anywhere, and each row stays what it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, datetime, time, timedelta
from decimal import Decimal
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from sqe_chain.codecs.arrow_values import Array, DataType, array_of, cast, map_of, values_of
from sqe_chain.errors import PoisonError

_FORMS: Final[tuple[tuple[Callable[[DataType], bool], type], ...]] = (
    (types.is_boolean, bool),
    (types.is_integer, int),
    (types.is_floating, float),
    (types.is_decimal, Decimal),
    (types.is_timestamp, datetime),
    (types.is_date, date),
    (types.is_time, time),
    (types.is_duration, timedelta),
)
# Only within a day of the ends of Python's range can a zone move a time out of it.
_EDGES: Final = (MINYEAR, MAXYEAR)
_FINER: Final = ("nanosecond", "nanoseconds")
_LOOK_ALIKE: Final[Mapping[type, type]] = {int: bool, date: datetime}
"""Subclasses that are not meant: True is an int, and a datetime is a date."""


def form_of(arrow: DataType) -> tuple[object, ...]:
    """What an Arrow type is about: of types with the same form, each can become another one if no value is lost."""
    if types.is_dictionary(arrow):
        return form_of(arrow.value_type)
    if types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow):
        return (str,)
    if types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_binary_view(arrow):
        return (bytes,)
    for is_of, python_type in _FORMS:
        if is_of(arrow):
            number = python_type in (int, float)
            return (float,) if number else (python_type, bool(getattr(arrow, "tz", None)))
    return (str(arrow),)


def python_type_of(arrow: DataType) -> type | None:
    """The Python type of the values in a column of this type; None: another form of column is needed."""
    if types.is_integer(arrow):
        return int
    python_type = form_of(arrow)[0]
    return python_type if isinstance(python_type, type) and not types.is_dictionary(arrow) else None


class ArrowColumn(ABC):
    """A column.

    Attributes:
        arrow: its type.
    """

    arrow: DataType

    @abstractmethod
    def array(self, values: Sequence[Any]) -> Array:
        """The column of some values.

        Raises:
            TypeError, ValueError, OverflowError, pyarrow.ArrowException: it cannot hold one of them.
        """

    def values(self, array: Array) -> list[Any]:
        """The values of a column that has this type, or another one of the same form.

        Raises:
            PoisonError: it has another form.
            pyarrow.ArrowException: one of its values would be lost.
        """
        if types.is_null(array.type):
            return [None] * len(array)
        if not self._has_form(array.type):
            raise PoisonError(f"it is of type {array.type}, not {self.arrow}")
        return self._values(array)

    @abstractmethod
    def _has_form(self, arrow: DataType) -> bool: ...

    @abstractmethod
    def _values(self, array: Array) -> list[Any]: ...


@dataclass(frozen=True)
class ScalarColumn(ArrowColumn):
    """Numbers, text, bytes, times.

    Attributes:
        arrow: its type.
        takes: the Python type of its values.
        into: makes such a value of another one; None: it is one.
        out_of: the way back.
    """

    arrow: DataType
    takes: type
    into: Callable[[Any], Any] | None = None
    out_of: Callable[[Any], Any] | None = None

    def array(self, values: Sequence[Any]) -> Array:
        if self.into is not None:
            values = [None if value is None else self.into(value) for value in values]
        for kind in set(map(type, values)) - {self.takes}:
            if not self._fits(kind):
                raise TypeError(
                    f"a column of type {self.arrow} takes {self.takes.__name__}, not {kind.__qualname__}"
                )
            # Times of pandas are subclasses of Python's, with nanoseconds beside them.
            if any(getattr(value, name, 0) for name in _FINER for value in values):
                raise TypeError(f"a column of type {self.arrow} takes times in whole microseconds")
        # Arrow takes a time without zone for UTC, and drops the zone of a time of day.
        if self.takes in (datetime, time):
            zoned = self.takes is datetime and self.arrow.tz is not None
            if any(value is not None and (value.tzinfo is not None) != zoned for value in values):
                raise TypeError(
                    f"a column of type {self.arrow} takes times {'with' if zoned else 'without'} a zone"
                )
        array = array_of(values, self.arrow)
        if self.takes is datetime and any(value is not None and value.year in _EDGES for value in values):
            values_of(array)  # raises where Python has no such time in the zone of the column
        return array

    def _fits(self, kind: type) -> bool:
        if kind is type(None) or (self.takes in (float, Decimal) and kind is int):
            return True
        return issubclass(kind, self.takes) and not issubclass(kind, _LOOK_ALIKE.get(self.takes, ()))

    def _has_form(self, arrow: DataType) -> bool:
        return arrow == self.arrow or form_of(arrow) == form_of(self.arrow)

    def _values(self, array: Array) -> list[Any]:
        values = values_of(cast(array, self.arrow))
        if self.out_of is not None:
            return [None if value is None else self.out_of(value) for value in values]
        return values


@dataclass(frozen=True)
class ListColumn(ArrowColumn):
    """Lists.

    Attributes:
        item: the column of their items.
        make: makes a value of a list.
        name: of the items, in Arrow.
    """

    item: ArrowColumn
    make: Callable[[list[Any]], Any] = list
    name: str = "item"

    @property
    def arrow(self) -> DataType:
        """Its type."""
        return pa.list_(pa.field(self.name, self.item.arrow))

    def array(self, values: Sequence[Any]) -> Array:
        # Not sets: their order is another one in each process.
        if not all(value is None or _is_list(value) for value in values):
            raise TypeError(f"a column of type {self.arrow} takes lists")
        return pa.ListArray.from_arrays(_offsets(values), self.item.array(_flat(values)), type=self.arrow)

    def _has_form(self, arrow: DataType) -> bool:
        return any(is_of(arrow) for is_of in (types.is_list, types.is_large_list, types.is_fixed_size_list))

    def _values(self, array: Array) -> list[Any]:
        items = self.item.values(array.flatten())
        if types.is_fixed_size_list(array.type):
            size = array.type.list_size
            lengths = [size if present else None for present in array.is_valid().to_pylist()]
        else:
            lengths = array.value_lengths().to_pylist()
        ends = accumulate((length or 0 for length in lengths), initial=0)
        return [
            None if length is None else self.make(items[begin:end])
            for length, (begin, end) in zip(lengths, pairwise(ends), strict=True)
        ]


@dataclass(frozen=True)
class MapColumn(ArrowColumn):
    """Maps, in a column of their keys and one of their values."""

    key: ArrowColumn
    item: ArrowColumn

    @property
    def arrow(self) -> DataType:
        """Its type."""
        return pa.map_(self.key.arrow, self.item.arrow)

    def array(self, values: Sequence[Any]) -> Array:
        if not all(value is None or isinstance(value, Mapping) for value in values):
            raise TypeError(f"a column of type {self.arrow} takes dicts")
        keys = self.key.array(_flat(values))
        items = self.item.array(_flat([None if value is None else value.values() for value in values]))
        return pa.MapArray.from_arrays(_offsets(values), keys, items)

    def _has_form(self, arrow: DataType) -> bool:
        return bool(types.is_map(arrow))

    def _values(self, array: Array) -> list[Any]:
        keys, items = self.key.values(array.keys), self.item.values(array.items)
        spans = zip(pairwise(array.offsets.to_pylist()), array.is_valid().to_pylist(), strict=True)
        return [
            map_of(keys[begin:end], items[begin:end]) if present else None for (begin, end), present in spans
        ]


@dataclass(frozen=True)
class RowField:
    """A field of a row.

    Attributes:
        name: its name.
        column: its column.
        of: takes an object, gives its content of this field.
        nullable: whether that may be None.
        optional: whether a row can be made without it.
    """

    name: str
    column: ArrowColumn
    of: Callable[[Any], Any]
    nullable: bool = True
    optional: bool = False


Make = Callable[[Sequence[str], Sequence[list[Any]]], list[Any]]
"""Takes names of fields, and a list with the contents of each: at least one; gives objects."""


@dataclass(frozen=True)
class RowColumns(ArrowColumn):
    """Rows of fields: batches, and columns of structs.

    Attributes:
        title: what a row is, for error texts.
        parts: its fields.
        make: makes objects of columns.
    """

    title: str
    parts: tuple[RowField, ...]
    make: Make

    @property
    def arrow(self) -> DataType:
        """Its type."""
        return pa.struct(self.fields)

    @property
    def fields(self) -> list[Any]:
        """Their fields, as Arrow declares them."""
        return [pa.field(part.name, part.column.arrow, part.nullable) for part in self.parts]

    def batch(self, values: Sequence[Any]) -> Any:  # noqa: ANN401 - a record batch
        """The record batch of some objects. Raises PoisonError: a field cannot be in its column."""
        arrays = [self._array_of(part, values, 0) for part in self.parts]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.fields))

    def array(self, values: Sequence[Any]) -> Array:
        absent = [value is None for value in values]
        arrays = [self._array_of(part, values, sum(absent)) for part in self.parts]
        return pa.StructArray.from_arrays(
            arrays, fields=self.fields, mask=pa.array(absent) if any(absent) else None
        )

    def _array_of(self, part: RowField, values: Sequence[Any], absent: int) -> Array:
        """A field of objects; `absent` is the number of those that are None."""
        of = part.of
        try:
            if absent:
                array = part.column.array([None if value is None else of(value) for value in values])
            else:
                array = part.column.array([of(value) for value in values])
        except PoisonError as error:
            raise PoisonError(f"{part.name}.{error}") from error
        except Exception as error:
            raise PoisonError(f"{part.name} of {self.title}: {error}") from error
        if not part.nullable and array.null_count > absent:
            raise PoisonError(f"{part.name} of {self.title}: it is null, or missing")
        return array

    def rows(self, names: Sequence[str], arrays: Sequence[Array], count: int) -> list[Any]:
        """The objects that some columns of these names make.

        Raises:
            PoisonError: there is a column too many, or too few, or one is of another type, or null where that cannot be.
        """
        known = {part.name: part for part in self.parts}
        if len(set(names)) < len(names) or not known.keys() >= set(names):
            wrong = [name for name in names if name not in known or names.count(name) > 1]
            raise PoisonError(
                f"{self.title} has {', '.join(known)}, and no {', '.join(dict.fromkeys(wrong))}"
            )
        if missing := [part.name for part in self.parts if not part.optional and part.name not in names]:
            raise PoisonError(f"there is no column {', '.join(missing)}, which {self.title} needs")
        if not names:
            raise PoisonError(f"there is no column; {self.title} has {', '.join(known)}")
        given = dict(zip(names, arrays, strict=True))
        present = [name for name in known if name in given]
        columns = [self._contents(known[name], given[name], count) for name in present]
        return self.make(present, columns)

    def _contents(self, part: RowField, array: Array, count: int) -> list[Any]:
        try:
            contents = part.column.values(array)
        except (PoisonError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise PoisonError(f"column {part.name!r} of {self.title}: {error}") from error
        if not part.nullable and array.null_count:
            raise PoisonError(f"column {part.name!r} of {self.title} is null, which it cannot be")
        if len(contents) != count:
            raise AssertionError("columns of a batch are of one length")
        return contents

    def _has_form(self, arrow: DataType) -> bool:
        return bool(types.is_struct(arrow))

    def _values(self, array: Array) -> list[Any]:
        present = array.is_valid()
        whole = array.filter(present) if array.null_count else array
        names = [field.name for field in array.type]
        made = iter(self.rows(names, whole.flatten(), len(whole)) if len(whole) else [])
        return [next(made) if is_there else None for is_there in present.to_pylist()]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _flat(values: Sequence[Any]) -> list[Any]:
    return list(chain.from_iterable(value for value in values if value is not None))


def _offsets(values: Sequence[Any]) -> Array:
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    starts = [None if value is None else end for value, end in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())
