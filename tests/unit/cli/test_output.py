"""What a command prints can be copied, and piped into another. Method: tables as a terminal and a pipe get them; a pipe that ends."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from sqe_chain.cli import console
from sqe_chain.cli.console import print_table

PLACE = "plant-one.fastenings[3]@123456789"
ERROR = "ZeroDivisionErrorOfTheFold"
TEXT = "a long text of several words that no terminal of forty columns shows on one line"


class Terminal(io.StringIO):
    """A file that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def printed(output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {"COLUMNS": "40", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", output)
    print_table(("read at", "error", "time (UTC)", "text"), [(PLACE, ERROR, "2026-11-20T10:00:00.000", TEXT)])
    return output.getvalue()


def test_a_narrow_terminal_cuts_no_place_no_name_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = printed(Terminal(), monkeypatch)
    assert all(word in shown for word in (PLACE, ERROR, "2026-11-20T10:00:00.000", *TEXT.split()))
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert TEXT not in shown, "a terminal gets long texts wrapped"


def test_without_a_terminal_each_row_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = (line for line in printed(io.StringIO(), monkeypatch).splitlines() if PLACE in line)
    assert ERROR in line
    assert TEXT in line


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_table_of_many_rows_looks_as_rich_draws_it(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (
            f"t[{number}]@{number * 7_919}",
            "\N{CJK UNIFIED IDEOGRAPH-65E5}x" * (number % 3),
            "a\x1b b " * (number % 4),
        )
        for number in range(30)
    ]

    def drawn() -> str:
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, "backslashreplace"))
        assert print_table(("place", "name", "a long head"), rows) == len(rows)
        sys.stdout.flush()
        return written.getvalue().decode(encoding)

    by_rich = drawn()
    monkeypatch.setattr(console, "_MANY", 29)
    assert drawn() == by_rich
    assert len(by_rich.splitlines()) == len(rows) + 4


@pytest.mark.parametrize("statement", ["OUT.print('x' * 2_000)", "print_json('x' * 2_000)"])
def test_a_reader_that_has_seen_enough_ends_the_command_silently(statement: str) -> None:
    """More than a pipe holds, and a reader that closes it, like `head`."""
    program = f"""
import typer
from sqe_chain.cli.console import OUT, print_json, report_errors
try:
    with report_errors():
        for line in range(500):
            {statement}
except typer.Exit as done:
    raise SystemExit(done.exit_code)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        running.stdout.read(1)
        running.stdout.close()
        assert running.stderr is not None
        assert (running.stderr.read(), running.wait(60)) == (b"", 0)
