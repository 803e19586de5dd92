"""Where the command writes: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import traceback as tracebacks
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from sqe_chain.errors import ChainError
from sqe_chain.flow.stored import printable_text

OUT = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def reported(*, traceback: bool = False, as_json: bool = False) -> Iterator[None]:
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
        raise typer.Exit(0) from None
    except ChainError as error:
        _print_error(error, str(error), error.exit_status, traceback=traceback, as_json=as_json)
        raise typer.Exit(error.exit_status) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the user gets one line; sys.exit() in their code, too
        hint = "" if traceback else "; --traceback shows where"
        _print_error(error, f"unexpected: {error}{hint}", 1, traceback=traceback, as_json=as_json)
        raise typer.Exit(1) from None


def _print_error(
    error: BaseException, text: str, exit_status: int, *, traceback: bool, as_json: bool
) -> None:
    """Print one line: the text (what is wrong, what to do), and the error's name, as the docs list it."""
    name = type(error).__name__
    trace = tracebacks.format_exc() if traceback else ""
    if not traceback:
        # A failed task sends its traceback inside the error text.
        text = text.partition("\nTraceback (most recent call last)")[0]
    if as_json:
        line = {
            "event": "stopped",
            "severity": "error",
            "error": name,
            "text": text,
            "exit_status": exit_status,
        }
        ERR.file.write(json.dumps({**line, "traceback": trace} if trace else line, ensure_ascii=False) + "\n")
        ERR.file.flush()
        return
    if trace:
        ERR.print(Text(trace.rstrip()))
    ERR.print(Text.assemble(("error: ", "bold red"), text, (f" ({name})", "dim")))


def print_json(value: object) -> None:
    """Print one JSON object on a line, and flush."""
    OUT.file.write(json.dumps(value, ensure_ascii=False) + "\n")
    OUT.file.flush()


def readable(data: bytes) -> str:
    """Bytes as text for people: UTF-8 if it is printable, else hexadecimal.

    >>> readable("Schraube №7".encode()), readable(bytes([0, 255]))
    ('Schraube №7', '0x00ff')
    """
    text = printable_text(data)
    return f"0x{data.hex()}" if text is None else text


def as_json(data: bytes | None) -> object:
    """Bytes for JSON: text if they are printable UTF-8, else ``{"hex": ...}``; None stays None.

    >>> as_json(b"robot-7"), as_json(bytes([0, 255])), as_json(None)
    ('robot-7', {'hex': '00ff'}, None)
    """
    if data is None:
        return None
    text = printable_text(data)
    return {"hex": data.hex()} if text is None else text
