"""The `sqe-chain` command. Its packages (typer, rich, ...) come with the extra `cli`."""

from __future__ import annotations

import codecs
import io
import json
import os
import signal
import sys
from datetime import UTC, datetime

from sqe_chain.errors import ConfigurationError
from sqe_chain.wings import needing

__all__ = ["main"]


def main() -> None:
    """Run the command; ends the process with its exit status.

    Exit statuses: 0 success. 1 the flow failed. 2 wrong settings, and nothing was started. 3 continuing would not be exact.
    4 a newer run owns the flow. 5 a broker, store or Spark was not available.
    """
    if sys.argv[1:2] == ["run"]:  # a service that is asked to stop before it has begun has ended well
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        _report_starting(sys.argv[2:])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)
    try:
        with needing("the command", "cli"):
            from sqe_chain.cli.commands import application  # noqa: PLC0415 - without the extra, a clear error instead of a traceback

            app = application(sys.argv[1] if len(sys.argv) > 1 else None)
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_status)
    app()


def _report_starting(arguments: list[str]) -> None:
    """The first line of a service's log, before anything is imported that takes time: Spark takes seconds.

    It is written as `sqe_chain.runtime.lines` writes the others, which are not loaded yet.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        return
    as_json = "--log-json" in arguments or os.environ.get("SQE_CHAIN_LOG_JSON", "").lower() in _TRUE
    now = datetime.now(UTC)
    if as_json:
        moment = now.isoformat().replace("+00:00", "Z")
        text = json.dumps({"timestamp": moment, "event": "starting", "severity": "info", "pid": os.getpid()})
    else:
        text = f"{now.astimezone():%Y-%m-%d %H:%M:%S}  starting   pid={os.getpid()}"
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


_TRUE = ("1", "true", "t", "yes", "y", "on")
"""What variables of options may hold, as click reads them."""
_ESCAPED = "sqe-chain.escaped"


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """What a terminal cannot show, as JSON escapes it: so lines of JSON stay JSON in any encoding."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


codecs.register_error(_ESCAPED, _escaped)
