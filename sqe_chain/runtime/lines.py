"""Writes events of a service as lines of text or JSON."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from sqe_chain.protocol.events import Event, Observer, Waiting
from sqe_chain.safe_text import json_line, shown, without_secrets

WARNINGS = frozenset({"waiting", "standby", "notice", "failed"})
"""Events that need a person's attention."""

DETAILS = frozenset({"shuffled"})
"""Events about the inside of a service, which get no line."""


_FOR_MACHINES = frozenset({"lag_by_partition", "event_time_ms", "offsets"})
"""Fields that lines of text leave out, because they are too long, or not readable for people."""


class Lines(Observer):
    """One line for each event, written at once.

    Args:
        flow: name of the flow; part of every JSON line.
        as_json: JSON objects instead of text.
        stream: None: standard error.
    """

    def __init__(self, flow: str, *, as_json: bool, stream: TextIO | None = None) -> None:
        stamp = structlog.processors.TimeStamper(fmt="iso" if as_json else "%Y-%m-%d %H:%M:%S", utc=as_json)
        self._log = structlog.wrap_logger(
            structlog.PrintLogger(stream or sys.stderr),  # flushes after every line
            processors=[stamp, _as_json if as_json else _as_text],
            wrapper_class=structlog.BoundLogger,
        )
        self._common = {"flow": flow} if as_json else {}
        self._as_json = as_json
        self._reason = ""

    def event(self, event: Event) -> None:
        """Write a line."""
        if event.name in DETAILS:
            return
        severity: dict[str, object] = {}
        if self._as_json:
            severity["severity"] = "warning" if event.name in WARNINGS else "info"
        fields = event.fields()
        if isinstance(event, Waiting):  # a line for each attempt, but not the whole reason each time
            if event.reason == self._reason and not self._as_json:
                fields["reason"] = "the same"
            self._reason = event.reason
        self._log.msg(event.name, **{**self._common, **severity, **fields})


def _as_json(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> str:
    """One object; time and event first, for people who read it."""
    first = {name: fields.pop(name) for name in ("timestamp", "event")}
    return json_line({**first, **{name: _safe(value) for name, value in fields.items()}})


def _as_text(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> str:
    """One line. Not structlog's own renderer: it has a meaning of its own for names like `level`."""
    moment, event = fields.pop("timestamp"), fields.pop("event")
    shown = {name: value for name, value in fields.items() if name not in _FOR_MACHINES}
    text = "  ".join(f"{name}={_plain(value)}" for name, value in shown.items())
    return f"{moment}  {event:<10} {text}".rstrip()


def _plain(value: object) -> object:
    """Collections as JSON; text on one line; everything else as it is."""
    if isinstance(value, dict | list | tuple):
        return without_secrets(json_line(value))
    return shown(value) if isinstance(value, str) else value


def _safe(value: object) -> object:
    return without_secrets(value) if isinstance(value, str) else value
