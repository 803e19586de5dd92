"""A command shows how far it has read on a terminal, and nowhere else. Method: a console on a text in memory that is a terminal, or none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sqe_chain.errors import ServiceStopped
from sqe_chain.ext.explain.progress import ReadingBar, Slowed
from sqe_chain.ext.explain.reading import Pass

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""What hides a terminal's cursor, and shows it."""


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_what_was_read_and_what_is_left_and_then_nothing_of_it() -> None:
    terminal = console(terminal=True)
    with ReadingBar(terminal) as bar:
        reading = Pass(lambda: True, bar.show)
        reading.begin(4)
        with pytest.raises(ServiceStopped, match="asked to stop"):
            list(reading.follow(iter([["first", "second"]])))  # type: ignore[list-item]
    text = written(terminal)
    assert "2/4" in text
    assert "left" in text
    assert text.count(HIDDEN) == text.count(SHOWN) == 1
    assert text.endswith("\x1b[2K"), "the line of the bar is erased"


def test_without_a_terminal_nothing_is_written() -> None:
    pipe = console(terminal=False)
    with ReadingBar(pipe) as bar:
        for read in range(5):
            bar.show(read, 5)
    assert written(pipe) == ""


def test_a_pass_counts_blocks_once_however_often_they_are_read() -> None:
    seen = list[tuple[int, int]]()
    reading = Pass(progressed=lambda read, wanted: seen.append((read, wanted)))
    reading.begin(5)
    for _ in range(2):
        reading.again()
        assert len(list(reading.follow(iter([[1, 2], [3]])))) == 2  # type: ignore[list-item]
    reading.reached(4)  # an offset without a record
    list(reading.follow(iter([[4, 5, 6]])))  # type: ignore[list-item]
    assert seen == [(0, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_a_rate_is_kept_in_each_pass() -> None:
    now_s, waited = 100.0, list[int]()
    slowed = Slowed(10, waited.append, lambda: now_s)
    slowed.keep(0)
    slowed.keep(20)
    now_s = 103.0
    slowed.keep(20)
    slowed.keep(0)
    slowed.keep(5)
    assert waited == [2_000, 500]
