"""Windows in a table of SQL: a row for each, with the columns of its state; and what fills a table that nobody has kept."""

from __future__ import annotations

import json

import msgspec
import pytest

from sqe_chain import Flow
from sqe_chain.codecs import codec_for
from sqe_chain.errors import FlowError
from sqe_chain.flow import count
from sqe_chain.flow.stored import Span
from sqe_chain.stages import Tumbling
from sqe_chain.stages.window_rows import (
    SHOWN,
    OpenWindow,
    retained_row,
    shown_content,
    shown_row,
    windows_row,
)
from sqe_chain.stages.window_table import WindowTable, window_columns


class Total(msgspec.Struct):
    screws: int = 0


CODEC = codec_for(Total)
TABLE = WindowTable(CODEC, window_columns(CODEC))


def content(screws: int, start_ms: int, *, final: bool = False) -> bytes:
    return shown_content(Span(start_ms, start_ms + 1000), CODEC.encode(Total(screws)), final=final)


def window(screws: int, start_ms: int) -> OpenWindow[Total]:
    return OpenWindow(Span(start_ms, start_ms + 1000), Total(screws), None, 0)


def test_a_window_is_a_row_under_its_key() -> None:
    shown = TABLE.row(shown_row(b"a@b", -1000), content(7, -1000, final=True))
    assert shown is not None
    assert json.loads(shown) == {
        "key": "a@b", "window_start": "1969-12-31T23:59:59Z", "window_end": "1970-01-01T00:00:00Z", "window_final": True,
        "screws": 7,
    }  # fmt: skip
    assert TABLE.row(b"wa", windows_row([window(1, 0)], CODEC)) is None


def test_a_window_at_a_time_that_no_column_has_is_named_under_its_key() -> None:
    name = shown_row(b"a", 1 << 60)
    with pytest.raises(ValueError, match="window_start: "):
        TABLE.row(name, content(1, 1 << 60))
    assert json.loads(TABLE.error_row(name, "why")) == {"key": "a", "sqe_error": "why"}


def test_a_table_is_filled_from_the_windows_whatever_rows_were_left() -> None:
    """Code without the view has opened one window, gone on with one, and closed one."""
    stored = {
        b"wa": windows_row([window(2, 1000), window(3, 2000)], CODEC),
        retained_row(b"b", Span(0, 1000)): windows_row([window(4, 0)], CODEC),
        shown_row(b"a", 1000): content(1, 1000),
        shown_row(b"c", 0): content(9, 0),
    }
    assert dict(TABLE.rows_to_fill(sorted(stored.items()))) == {
        shown_row(b"a", 1000): content(2, 1000),
        shown_row(b"a", 2000): content(3, 2000),
        shown_row(b"b", 0): content(4, 0, final=True),
        shown_row(b"c", 0): None,
    }
    assert all(name.startswith(SHOWN) for name, _ in TABLE.rows_to_fill(stored.items()))


def test_a_field_with_the_name_of_a_windows_own_column_is_refused() -> None:
    orders = Flow("shop").source("orders", Total, raw=True)
    with pytest.raises(FlowError, match="'window_end' cannot be a column of a window"):
        orders.windowed("w", Tumbling(1000), window_end=count(), view="totals")
