"""Steps over whole batches, for functions that think in columns: `Stream.map_batches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, overload

from sqe_chain.codecs import codec_for
from sqe_chain.errors import FlowError
from sqe_chain.flow.declaration import caller_line, declared_plain, refused_at
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.nodes import Node, name_of
from sqe_chain.flow.part import StreamPart
from sqe_chain.flow.signatures import Made, Value
from sqe_chain.wings import needed

if TYPE_CHECKING:
    from sqe_chain.codecs.arrow_columns import RowColumns
    from sqe_chain.flow.stream import Stream

BatchFunction = Callable[[Any], Any]
"""``pyarrow.RecordBatch -> pyarrow.RecordBatch | pyarrow.Table``; pyarrow is published without types."""


class Schema(Protocol):
    """A `pyarrow.Schema`."""

    @property
    def names(self) -> list[str]:
        """Of its columns."""
        ...


@dataclass(frozen=True, slots=True)
class MapBatchesNode(Node):
    """A function over batches of values.

    Attributes:
        function: ``record batch -> record batch``.
        takes: type of the values that it takes, or a schema of Arrow.
        columns: the fields that become columns; None: all.
        gives: type of the values that it gives, or a schema of Arrow for dicts.
        row_column: the column with the number of the row that an output row comes from; empty: one row each.
    """

    word = "map_batches"

    function: DeclaredFunction
    takes: Any
    columns: tuple[str, ...] | None
    gives: Any
    row_column: str

    @property
    def maker(self) -> UserFunction | None:
        return self.function.function

    @property
    def label(self) -> tuple[str, str]:
        return self.word, self.title

    @property
    def title(self) -> str:
        """The function's name; empty if it has none."""
        return name_of(self.maker)

    @property
    def python_type(self) -> type:
        """The type of the values that it gives."""
        return self.gives if isinstance(self.gives, type) else dict

    def value_type(self, nodes: Sequence[Node]) -> type:
        del nodes
        return self.python_type

    def rows(self) -> tuple[RowColumns, RowColumns]:
        """The columns of the values that it takes, and of those that it gives.

        Raises:
            ConfigurationError: a type has no columns.
        """
        from sqe_chain.codecs.arrow_rows import rows_of  # noqa: PLC0415 - it needs pyarrow

        return rows_of(self.takes, self.columns), rows_of(self.gives)


class BatchSteps(StreamPart[Value]):
    """Steps of a stream that take whole batches."""

    __slots__ = ()

    @overload
    def map_batches(
        self,
        function: BatchFunction,
        schema: type[Made],
        *,
        columns: Sequence[str] | type[Any] | Schema | None = None,
        index: str | None = None,
    ) -> Stream[Made]: ...

    @overload
    def map_batches(
        self,
        function: BatchFunction,
        schema: Schema,
        *,
        columns: Sequence[str] | type[Any] | Schema | None = None,
        index: str | None = None,
    ) -> Stream[dict[str, Any]]: ...

    def map_batches(
        self,
        function: BatchFunction,
        schema: type[Any] | Schema,
        *,
        columns: Sequence[str] | type[Any] | Schema | None = None,
        index: str | None = None,
    ) -> Stream[Any]:
        """As `map`, but for many values at once, as columns of Arrow; with `index`, as `flat_map` and `filter`.

        A repeated batch may group values differently. So **a row of the result may depend on its own row alone**, not on the rows
        beside it, nor on their number. If the function fails, or its result is wrong, the inputs of the rows that cause it are poison.

        Args:
            function: ``pyarrow.RecordBatch -> pyarrow.RecordBatch``, or a `pyarrow.Table`; it must not change anything.
            schema: what its rows become: a struct, a dataclass, a protobuf message, or a scalar type (one column, ``value``). With a
                `pyarrow.Schema` they become dicts. A field with a default may have no column. Other widths of numbers are converted
                if no value is lost.
            columns: names of the fields that it takes, by default all. Where the stream does not know the type of the values, as after
                `map`: that type. For dicts and all else: a `pyarrow.Schema`. What a dict does not have is null.
            index: the column with the number of the row of the batch from which a row of the result comes. Numbers begin at 0 and never
                fall. A row may give none, one or many. Without it each gives one, in their order.

        Raises:
            FlowError: pyarrow is missing, a type has no columns, a value has no codec, or it follows a stage.
        """
        where = caller_line()
        called = declared_plain("map_batches", function, 1, where)
        if index is not None and (not isinstance(index, str) or not index):
            raise FlowError(f"{where}: index={index!r}; the name of a column")
        if self._after_stage():
            raise FlowError(
                f"{where}: map_batches cannot follow a stage, whose results come one by one. Use map or flat_map, or publish "
                "them, and read them in another flow"
            )
        if find_spec("pyarrow") is None:
            raise FlowError(needed(f"{where}: map_batches", "pyarrow", "arrow"))
        if not isinstance(schema, type) and not _is_schema(schema):
            raise FlowError(f"{where}: schema={schema!r}; a type, or a pyarrow.Schema")
        takes, names = _taken(columns, self._value_type(), where)
        trial = MapBatchesNode(0, where, (), called, takes, names, schema, index or "")
        with refused_at(f"{where}: map_batches"):
            codec_for(trial.python_type)
            _, given = trial.rows()
        if index in {part.name for part in given.parts}:
            raise FlowError(
                f"{where}: index={index!r} is a field of {given.title}: give the column another name"
            )
        fields = {"function": called, "takes": takes, "columns": names, "gives": schema}
        node = self.flow.add(MapBatchesNode, where, self.node, **fields, row_column=index or "")
        return self._as_stream(node)


def _taken(columns: object, known: type | None, where: str) -> tuple[Any, tuple[str, ...] | None]:
    """What columns are made of, and which of its fields; None: all.

    Raises:
        FlowError: `columns` is neither names, nor a type, nor a schema; or the types of columns are not known.
    """
    if isinstance(columns, type) or _is_schema(columns):
        return columns, None
    names = None
    if columns is not None:
        names = tuple(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise FlowError(f"{where}: columns={columns!r}; names of fields, a type, or a pyarrow.Schema")
    if known is None:
        raise FlowError(
            f"{where}: the type of the values is not known here: give columns=, a type or a pyarrow.Schema"
        )
    return known, names


def _is_schema(given: object) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - only needed for functions over batches

    return isinstance(given, pa.Schema)
