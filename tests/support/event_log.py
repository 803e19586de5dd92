"""The events that a command writes as lines of JSON while it runs, looked at again and again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class EventLog:
    """The log of one process.

    Args:
        file: where it writes; anything there that is no JSON object is passed over.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._read, self._lines = file, 0, list[Line]()

    @property
    def text(self) -> str:
        return self._file.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[Line]:
        """All lines up to now; a look reads only what is new, because waits look often."""
        with self._file.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        self._lines += [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return list(self._lines)

    def names(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def all(self, event: str, after: int = 0, /, **fields: object) -> list[Line]:
        """The lines of an event with these fields, after the first `after` lines."""
        return [line for line in self.lines()[after:] if {**line, "event": event, **fields} == line]
