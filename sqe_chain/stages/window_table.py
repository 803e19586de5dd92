"""How a table of SQL shows windows: a row for each, with its beginning, its end and its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqe_chain._proto.windows_pb2 import WindowsRow
from sqe_chain.codecs import Codec
from sqe_chain.codecs.sql_columns import FORMS, SqlColumn, columns_of, row_json
from sqe_chain.flow.state_table import StateTable
from sqe_chain.stages.window_rows import RETAINED, SHOWN, key_of_shown, shown_content, shown_row, spans_in

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Window(NamedTuple):
    """What the columns take."""

    start_ms: int
    end_ms: int
    final: bool
    state: Any


def _moment_json(moment_ms: int) -> str:
    return _TIME[1](_EPOCH + timedelta(milliseconds=moment_ms))


_TIME: Final = FORMS["datetime"]
_OWN: Final = (
    SqlColumn("window_start", _TIME[0], attrgetter("start_ms"), _moment_json),
    SqlColumn("window_end", _TIME[0], attrgetter("end_ms"), _moment_json),
    SqlColumn("window_final", FORMS["bool"][0], attrgetter("final"), FORMS["bool"][1]),
)


@lru_cache(maxsize=256)
def window_columns(codec: Codec[Any]) -> tuple[SqlColumn, ...]:
    """The columns of windows with such states. Raises ValueError: as `columns_of`, or a field has the name of a window's own column."""
    fields, own = columns_of(codec), {column.name for column in _OWN}
    for field in fields:
        if field.name in own:
            raise ValueError(
                f"field {field.name!r} cannot be a column of a window. Expected none of {', '.join(sorted(own))}. Give it another name"
            )
    return (*_OWN, *(replace(field, of=_of_state(field)) for field in fields))


def _of_state(field: SqlColumn) -> Any:  # noqa: ANN401 - as the field's
    return lambda window: field.of(window.state)


class WindowTable(StateTable):
    """A row for each window, open or retained. Its states have rows of their own (`SHOWN`), which are as the windows are."""

    def row(self, name: bytes, content: bytes) -> str | None:
        if not name.startswith(SHOWN):
            return None
        (window,) = WindowsRow.FromString(content).windows
        end_ms, state = window.start_ms + window.length_ms, self.states.decode(window.state)
        return row_json(
            self.columns, key_of_shown(name), _Window(window.start_ms, end_ms, window.final, state)
        )

    def error_row(self, name: bytes, reason: str) -> str:
        return super().error_row(key_of_shown(name), reason)

    def rows_to_fill(self, stored: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes | None]]:
        # Code without the view keeps no rows that show windows, so those that are there may be of windows that are gone.
        shown, left = set[bytes](), set[bytes]()
        for name, content in stored:
            if name.startswith(SHOWN):
                left.add(name)
            for key, span, state in spans_in(name, content):
                row = shown_row(key, span.start_ms)
                shown.add(row)
                yield row, shown_content(span, state, final=name.startswith(RETAINED))
        for name in sorted(left - shown):
            yield name, None
