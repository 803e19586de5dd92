"""Functions over whole batches: values in, values out, each of them with the input that it comes from.

Where a batch ends depends on how the log was read, so a row must not depend on the rows beside it. Then a batch that fails can
be halved until the rows are found that fail alone, and a redo gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from sqe_chain.errors import PoisonError, ServiceStopped
from sqe_chain.flow.batches import MapBatchesNode
from sqe_chain.flow.units import number
from sqe_chain.task.collector import RunColumns


class _WrongRows(Exception):
    """A function gave too many rows or too few, or rows of nowhere."""


class BatchStep:
    """One function over batches."""

    def __init__(self, node: MapBatchesNode) -> None:
        self.node = node
        self._function: Callable[[Any], Any] = node.function.function
        self._takes, self._gives = node.rows()

    def apply(self, given: RunColumns, failed: Callable[[int, Exception], bool]) -> RunColumns:
        """What the function gives for some values, in their order.

        Args:
            given: the values, in the order of their inputs.
            failed: takes the number of an input that has failed, and why; if it returns True, none after it is tried.

        Raises:
            ServiceStopped: what the function gives for a value depends on the values beside it.
        """
        return _Application(self, given, failed).made

    def rows(self, values: Sequence[Any]) -> tuple[list[Any], list[int] | None]:
        """What the function gives for some values as one batch, and from which of them each comes; None: one from each.

        Raises:
            PoisonError: a value has no columns, or what is given has other columns than was declared.
            WrongRows: it has other rows.
            Exception: whatever the function raises.
        """
        count, index = len(values), self.node.row_column
        made = self._function(self._takes.batch(values))
        columns: list[Any] | None = getattr(made, "columns", None)
        schema = getattr(made, "schema", None)
        if columns is None or schema is None:
            raise PoisonError(f"{self} returned a {type(made).__qualname__}, not a pyarrow.RecordBatch")
        names = list(schema.names)
        columns = [column.combine_chunks() if hasattr(column, "num_chunks") else column for column in columns]
        length = int(made.num_rows)
        origins = None
        if index:
            if names.count(index) != 1:
                raise PoisonError(f"{self} returned no column {index!r}, but {', '.join(names) or 'none'}")
            at = names.index(index)
            origins = self._origins(columns.pop(at), count)
            del names[at]
        elif length != count:
            raise _WrongRows(
                f"{self} returned {length} rows for {count}: without index=, which names the row that each comes from, it is one for each"
            )
        if not length:
            return [], origins
        try:
            return self._gives.rows(names, columns, length), origins
        except PoisonError as error:
            raise PoisonError(f"{self} returned: {error}") from error

    def _origins(self, column: Any, count: int) -> list[int]:  # noqa: ANN401 - of Arrow
        name = self.node.row_column
        numbers: list[Any] = column.to_pylist()
        if wrong := [number for number in numbers if type(number) is not int]:
            raise PoisonError(f"{self} returned {wrong[0]!r} in column {name!r}, which has numbers of rows")
        if any(number > following for number, following in pairwise(numbers)):
            raise _WrongRows(f"{self} returned rows in another order: column {name!r} must never fall")
        if numbers and not 0 <= numbers[0] <= numbers[-1] < count:
            raise _WrongRows(
                f"{self} returned rows {numbers[0]} to {numbers[-1]} in column {name!r}: the batch has 0 to {count - 1}"
            )
        return numbers

    def __str__(self) -> str:
        return f"map_batches {f'{self.node.title} ' if self.node.title else ''}(declared at {self.node.declared_at})"


class _Application:
    """One application of a step; `made` has what it gave."""

    def __init__(self, step: BatchStep, given: RunColumns, failed: Callable[[int, Exception], bool]) -> None:
        self._step, self._given, self._failed = step, given, failed
        self._stopped = False
        self.made = RunColumns()
        if given.values:
            self._take(0, len(given.values))

    def _take(self, begin: int, end: int) -> bool:
        """Take some of the values. Returns whether none of them has failed."""
        try:
            values, origins = self._step.rows(self._given.values[begin:end])
        except Exception as error:
            if end - begin == 1:
                if isinstance(error, _WrongRows):
                    error = PoisonError(str(error))
                self._stopped = self._failed(self._given.inputs[begin], error)
                return False
            # Halved until a row fails alone. Rows that succeed are kept in their order.
            middle = (begin + end) // 2
            well = self._take(begin, middle)
            well = not self._stopped and self._take(middle, end) and well
            # All parts are right and the whole is not: no row is to blame.
            if well and isinstance(error, _WrongRows):
                raise ServiceStopped(
                    f"{error}. For its parts it returned what it should. So its result for a row depends on the rows beside it, "
                    "and a redo may have others there. Let each row of the result depend on one row alone"
                ) from error
            return well
        self._add(begin, end, values, origins)
        return True

    def _add(self, begin: int, end: int, values: list[Any], origins: list[int] | None) -> None:
        given, made = self._given, self.made
        made.values += values
        if origins is None:
            made.keys += given.keys[begin:end]
            made.paths += given.paths[begin:end]
            made.inputs += given.inputs[begin:end]
            return
        keys, paths, inputs = given.keys[begin:end], given.paths[begin:end], given.inputs[begin:end]
        before = count = -1
        for origin in origins:
            count = count + 1 if origin == before else 0
            before = origin
            made.keys.append(keys[origin])
            made.paths.append(None if paths[origin] is None else paths[origin] + number(count))
            made.inputs.append(inputs[origin])
