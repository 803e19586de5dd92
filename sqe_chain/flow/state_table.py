"""How a table of SQL shows the states of a kind of stage (`view="NAME"`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqe_chain.codecs import Codec
from sqe_chain.codecs.sql_columns import SqlColumn, error_row_json, row_json


@dataclass(frozen=True)
class StateTable:
    """A row for each state, under its key.

    Attributes:
        states: codec of the states.
        columns: take what a row shows: here the state.
    """

    states: Codec[Any]
    columns: tuple[SqlColumn, ...]

    def row(self, name: bytes, content: bytes) -> str | None:
        """The row of a stored one, as the text of a JSON object; None: it shows nothing.

        Raises:
            Exception: it cannot be shown; see `error_row`.
        """
        return row_json(self.columns, name, self.states.decode(content))

    def error_row(self, name: bytes, reason: str) -> str:
        """The row of a stored one that cannot be shown."""
        return error_row_json(name, reason)

    def rows_to_fill(self, stored: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes | None]]:
        """What is to be written so that a table that nobody has kept shows a whole cell.

        Args:
            stored: names and contents of all rows of the cell.

        Returns:
            Names and contents; None: the row is to be deleted. Of a name that comes twice, the later one counts.
        """
        return stored
