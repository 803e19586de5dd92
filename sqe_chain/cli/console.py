"""Where the command writes: results to standard output, everything else to standard error."""

from __future__ import annotations

import os
import sys
import traceback as tracebacks
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from textwrap import indent
from typing import Final, NoReturn

import typer
from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sqe_chain.errors import ChainError, ConfigurationError
from sqe_chain.errors.safe_text import json_line, one_line, shown
from sqe_chain.flow.stored import printable_text


class SafeConsole(Console):
    """A console that shows text and obeys none of it: no markup in strings, no control characters but the ends of lines."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(one_line, text.split("\n"))), style)

    def on_broken_pipe(self) -> None:
        """Raise the error again, for `report_errors`: of itself rich would end the process with status 1."""
        raise  # noqa: PLE0704 - rich calls this while it handles the error


OUT = SafeConsole()
ERR = SafeConsole(stderr=True)


@contextmanager
def report_errors(*, traceback: bool = False, as_json: bool = False) -> Iterator[None]:
    """Turn errors into one clear line and an exit status.

    Args:
        traceback: also show where an error came from.
        as_json: write the line as JSON: the event `stopped`, with the error's name and text.

    Raises:
        typer.Exit: with the error's exit status; 1 for an error that has none.
    """
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:  # the reader has closed the pipe, as in `sqe-chain peek ... | head`: no error
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # Python flushes it when the process ends
        raise typer.Exit(0) from None
    except FileNotFoundError as error:
        if _NO_TEMPORARY not in str(error):
            _unexpected(error, traceback=traceback, as_json=as_json)
        known = ConfigurationError(
            "temporary files: no directory for them that this user may write. Expected one. Mount a writable directory at /tmp, or "
            "name one in TMPDIR"
        )
        _print_error(known, str(known), known.exit_status, traceback=traceback, as_json=as_json)
        raise typer.Exit(known.exit_status) from None
    except ChainError as error:
        _print_error(error, str(error), error.exit_status, traceback=traceback, as_json=as_json)
        raise typer.Exit(error.exit_status) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the user gets one line; sys.exit() in their code, too
        _unexpected(error, traceback=traceback, as_json=as_json)


def _unexpected(error: BaseException, *, traceback: bool, as_json: bool) -> NoReturn:
    hint = "" if traceback else "; --traceback shows where"
    _print_error(error, f"unexpected: {error}{hint}", 1, traceback=traceback, as_json=as_json)
    raise typer.Exit(1) from None


_NO_TEMPORARY: Final = "No usable temporary directory found"
"""How Python's module `tempfile` begins the text of this error, which has no class of its own."""


def _print_error(
    error: BaseException, text: str, exit_status: int, *, traceback: bool, as_json: bool
) -> None:
    """Print one line: the text (what is wrong, what to do), and the error's name, as the docs list it."""
    name = type(error).__name__
    trace = "\n".join(map(shown, tracebacks.format_exc().rstrip().split("\n"))) if traceback else ""
    if not traceback:
        # A failed task sends its traceback inside the error text.
        text = text.partition("\nTraceback (most recent call last)")[0]
    text = shown(text)
    if as_json:
        line = {
            "event": "stopped",
            "severity": "error",
            "error": name,
            "text": text,
            "exit_status": exit_status,
        }
        ERR.file.write(json_line({**line, "traceback": trace} if trace else line) + "\n")
        ERR.file.flush()
        return
    if trace:
        ERR.print(Text(indent(trace, "| ")))  # no line of it looks like one of ours
    ERR.print(Text.assemble(("error: ", "bold red"), text, (f" ({name})", "dim")))


def print_json(value: object) -> None:
    """Print one JSON object on a line, and flush."""
    OUT.file.write(json_line(value) + "\n")
    OUT.file.flush()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Print rows as a table, if there are any; returns their number.

    No word is cut or broken, so that places and names can be copied: a line may be longer than the terminal. Long texts are
    wrapped between words on a terminal, and never elsewhere or in a table of more than 1,000 rows.

    Args:
        headers: names of the columns.
        rows: their cells; those that are not `Text` are shown as their text, on one line.
    """
    cells = [[cell if isinstance(cell, Text) else Text(one_line(str(cell))) for cell in row] for row in rows]
    if len(cells) > _MANY:
        _write_table(headers, [[one_line(cell.plain) for cell in row] for row in cells])
        return len(cells)
    table = Table()
    for number, header in enumerate(headers):
        texts = [header, *(row[number].plain for row in cells)]
        whole = [word for text in texts for word in text.split()] if OUT.is_terminal else texts
        table.add_column(header, min_width=max(map(cell_len, whole)))
    for row in cells:
        table.add_row(*row)
    if cells:
        OUT.print(table)
    return len(cells)


_MANY: Final = 1_000
"""Rows from which on a table is written without rich, which takes 0.2 ms for each row: 40 s for 200,000."""


def _write_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table as rich draws it where nothing is wrapped, in a hundredth of the time."""
    box = HEAVY_HEAD.substitute(OUT.options)
    columns = zip(headers, *rows, strict=True)
    widths = [max(map(_width, column)) for column in columns]
    padded = [width + 2 for width in widths]
    head, *lines = [
        [f" {text}{' ' * (width - _width(text))} " for text, width in zip(row, widths, strict=True)]
        for row in (headers, *rows)
    ]
    OUT.file.write(f"{box.get_top(padded)}\n")
    OUT.file.write(
        f"{box.head_left}{box.head_vertical.join(head)}{box.head_right}\n{box.get_row(padded, 'head')}\n"
    )
    OUT.file.writelines(f"{box.mid_left}{box.mid_vertical.join(line)}{box.mid_right}\n" for line in lines)
    OUT.file.write(f"{box.get_bottom(padded)}\n")
    OUT.file.flush()


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def as_json(data: bytes | None) -> object:
    """Bytes for JSON: text if they are printable UTF-8, else ``{"hex": ...}``; None stays None.

    >>> as_json(b"robot-7"), as_json(bytes([0, 255])), as_json(None)
    ('robot-7', {'hex': '00ff'}, None)
    """
    if data is None:
        return None
    text = printable_text(data)
    return {"hex": data.hex()} if text is None else text


def key_as_json(key: bytes | None) -> object:
    """A key for JSON, so that commands and addresses find this one by it. A text that would be read as bytes is given as bytes.

    >>> key_as_json(b"robot-7"), key_as_json(b"0x41"), key_as_json(None)
    ('robot-7', {'hex': '30783431'}, None)
    """
    return {"hex": key.hex()} if key is not None and key.startswith(b"0x") else as_json(key)


def utc(at_ms: int, digits: str = "milliseconds") -> str:
    """A date and time in UTC as ISO 8601 writes it; a time outside Python's calendar as a number of milliseconds.

    >>> utc(0), utc(1_795_168_800_000, "seconds"), utc(10**18)
    ('1970-01-01T00:00:00.000+00:00', '2026-11-20T10:00:00+00:00', '1000000000000000000 ms')
    """
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec=digits)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
