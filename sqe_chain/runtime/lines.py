"""Writes events of a service as lines of text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog

from sqe_chain.errors.safe_text import json_line, shown, without_secrets
from sqe_chain.plans.events import Event, Observer, Waiting


class Lines(Observer):
    """One line for each event, written at once to a stream or to standard error.

    Args:
        flow: name of the flow; part of every JSON line.
        as_json: JSON objects instead of text.
        stream: None: standard error.
        fields_of: further fields of the JSON line of an event, such as the ids of its span; None: there are none.
    """

    def __init__(
        self,
        flow: str,
        *,
        as_json: bool,
        stream: TextIO | None = None,
        fields_of: Callable[[Event], Mapping[str, object]] | None = None,
    ) -> None:
        stamp = structlog.processors.TimeStamper(fmt="iso" if as_json else "%Y-%m-%d %H:%M:%S", utc=as_json)
        self._log = structlog.wrap_logger(
            structlog.PrintLogger(stream or sys.stderr),  # flushes after every line
            processors=[stamp, _as_json if as_json else _as_text],
            wrapper_class=structlog.BoundLogger,
        )
        self._flow = flow
        self._as_json = as_json
        self._fields_of = fields_of
        self._reason = ""

    def event(self, event: Event) -> None:
        if event.hidden:
            return
        fields = event.fields()
        if self._as_json:
            severity = "warning" if event.warns else "info"
            further = self._fields_of(event) if self._fields_of is not None else {}
            self._log.msg(event.name, **{"flow": self._flow, "severity": severity, **further, **fields})
            return
        if isinstance(event, Waiting):  # a line for each attempt, but not the whole reason each time
            if event.reason == self._reason:
                fields["reason"] = "the same"
            self._reason = event.reason
        self._log.msg(
            event.name, **{name: value for name, value in fields.items() if name not in event.for_programs}
        )


def _as_json(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> str:
    """One object; time and event first, for people who read it."""
    first = {name: fields.pop(name) for name in ("timestamp", "event")}
    safe = {
        name: without_secrets(value) if isinstance(value, str) else value for name, value in fields.items()
    }
    return json_line({**first, **safe})


def _as_text(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> str:
    """One line. Not structlog's own renderer: that treats names like `level` in its own way."""
    moment, event = fields.pop("timestamp"), fields.pop("event")
    text = "  ".join(f"{name}={_plain(value)}" for name, value in fields.items())
    return f"{moment}  {event:<10} {text}".rstrip()


def _plain(value: object) -> object:
    """Collections as JSON; text on one line; everything else as it is."""
    if isinstance(value, dict | list | tuple):
        return without_secrets(json_line(value))
    return shown(value) if isinstance(value, str) else value
