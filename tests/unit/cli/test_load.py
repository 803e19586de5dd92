"""The progress of a load: what it shows follows from events alone."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sqe_chain.cli import load
from sqe_chain.errors import ConfigurationError
from sqe_chain.features.events import FilesSeen, TableReplaced
from sqe_chain.features.settings import settings_of
from sqe_chain.plans.events import Committed, Notice


def committed(inputs: int, excluded: int = 0) -> Committed:
    return Committed(
        inputs=inputs,
        replays=0,
        excluded=excluded,
        outputs=0,
        lag=0,
        lag_by_partition={},
        event_time_ms=-1,
        batch_ms=1,
    )


def test_a_terminal_shows_rows_files_and_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(load, "ERR", Console(file=screen, force_terminal=True, width=160, color_system=None))
    found = load.Loading()
    with found:
        found.looked(2_500_000)
        found.event(FilesSeen(files=3, files_left=2, rows=100, rows_left=60))
        found.event(committed(25, excluded=2))
        found.event(Notice("a [file] is left out"))
        found.event(committed(5))
    text = screen.getvalue()
    assert "a [file] is left out" in text
    assert "70%" in text
    assert "rows 70/100  files 1/3  2.5 MB" in text
    assert found.result() == {"files": 3, "rows": 100, "read": 30, "left_out": 2, "left": 30}


def test_elsewhere_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(load, "ERR", Console(file=screen, force_terminal=False))
    found = load.Loading()
    with found:
        found.looked(1)
        found.event(Notice("reported by a line of its own"))
    assert screen.getvalue() == ""
    assert found.result() == {"files": 0, "rows": 0, "read": 0, "left_out": 0, "left": 0}


def test_an_overwrite_is_reported_and_two_options_for_one_thing_are_refused() -> None:
    found = load.Loading()
    found.event(TableReplaced(9, "readings", "partitions", 3))
    assert found.overwrites == [
        "table readings: the partition keys of these files replaced by those of 3 files (plan 9)"
    ]
    for wrong in ({"overwrite": "table", "drop_overwrite": True}, {"again": True}, {"overwrite": "all"}):
        with pytest.raises(ConfigurationError, match="overwrite"):
            settings_of(**wrong)
