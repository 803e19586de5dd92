"""A change of a row in a database: a value with a type of its own for each type of rows.

Changes that wait in a store are found again by the names of this module and its class: they stay as they are.

>>> moved = Change[dict](op="update", before={"city": "Ulm"}, after={"city": "Bonn"}, position=(7, 9), time_ms=0)
>>> moved.row, Change[dict] is Change[dict]
({'city': 'Bonn'}, True)
>>> [(part.sign, part.row) for part in deltas_of(moved)]
[(-1, {'city': 'Ulm'}), (1, {'city': 'Bonn'})]
"""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from sqe_chain.codecs.codec import MadeClass

Row = TypeVar("Row")
Op = Literal["read", "insert", "update", "delete"]
"""What was done to a row; "read": a snapshot of the table has found it."""


@dataclass(frozen=True)
class Change(Generic[Row], metaclass=MadeClass):
    """A change of one row: what `Flow.changes_of` emits.

    ``Change[Order]`` is a class of its own, a dataclass whose rows are an ``Order``, as with `Window`.

    Attributes:
        op: what was done: "insert", "update", "delete"; or "read", by a snapshot.
        before: the row as this flow has seen it last; None: it has not seen it, or it was deleted then. The event's own, which is mostly
            missing, is not used.
        after: the row now; None: deleted.
        position: of the change in the log of the database; comparable for one key, from one snapshot to the next.
            PostgreSQL: LSN of the commit before it, its own LSN. MySQL: number of the file, position, row. Of a "read": where the
            snapshot was taken; of an incremental one, between which changes.
        time_ms: when the database has committed it, or read the row; milliseconds since 1970.
    """

    op: Op
    before: Row | None
    after: Row | None
    position: tuple[int, ...]
    time_ms: int

    @property
    def row(self) -> Row | None:
        """The row now, or as it was when it was deleted; None: deleted, and this flow has never seen it."""
        return self.before if self.after is None else self.after

    @property
    def sign(self) -> Literal[-1, 1]:
        """-1 for a row that is gone, otherwise 1: of use after `Changes.deltas`."""
        return -1 if self.after is None else 1

    if not TYPE_CHECKING:

        @classmethod
        def __class_getitem__(cls, row: object) -> object:
            """The class for a type of rows; for anything else, such as a type variable, what `Generic` gives."""
            if cls is not Change or not isinstance(row, type):
                return super().__class_getitem__(row)
            return change_of(row)


_types: dict[type, type[Change[Any]]] = {}


def change_of(row: type[Row]) -> type[Change[Row]]:
    """The class of changes of such rows: ``Change[row]``, where type checkers do not know the type."""
    if row not in _types:
        rows: list[tuple[str, Any]] = [("before", row | None), ("after", row | None)]
        change: Any = make_dataclass(f"{Change.__name__}[{row.__name__}]", rows, bases=(Change,), frozen=True)
        change.__module__, change.__doc__ = Change.__module__, Change.__doc__
        change.made_by = change_of, (row,)
        _types[row] = change
    return _types[row]


def row_type(python_type: type) -> type | None:
    """The type of the rows in a class of changes; None for `Change` alone, and for any other class."""
    if python_type is Change or not issubclass(python_type, Change):
        return None
    after = next(known.type for known in fields(python_type) if known.name == "after")
    row: type = get_args(after)[0]
    return row


def deltas_of(change: Change[Row]) -> list[Change[Row]]:
    """A change as what it takes away (the row before, as a "delete") and what it adds (the row now, as an "insert")."""
    taken = [] if change.before is None else [replace(change, op="delete", after=None)]
    added = [] if change.after is None else [replace(change, op="insert", before=None)]
    return taken + added
