"""How requests are read and answered: names in paths, numbers, JSON, events, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.errors.safe_text import shown
from sqe_chain.ext.explain.recording import Place


class Asked(Exception):
    """A request that cannot be answered: the status of HTTP, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Name(Convertor[str]):
    """A name of a flow, stage or topic in a path; others have no route."""

    regex = "[A-Za-z0-9._-]{1,249}"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _Whole(Convertor[int]):
    """A partition or an offset in a path."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("name", _Name())
register_url_convertor("whole", _Whole())


def json_answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    content = json.dumps(value, ensure_ascii=True, default=str).encode()
    return Response(content, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def event_text(name: str, value: object) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=True, default=str)}\n\n"


def place_in(request: Request) -> Place:
    """The record that the path names."""
    path = request.path_params
    return path["topic"], path["partition"], path["offset"]


def check_query(request: Request, *names: str) -> None:
    """Refuse a query with other names: who mistypes one would not get what the answer seems to be.

    Raises:
        Asked: it has one.
    """
    for name in request.query_params:
        if name not in names:
            raise Asked(400, f"unknown parameter {name!r}. Expected one of {', '.join(names) or 'none'}")


def number_in(request: Request, name: str, default: int, most: int, *, least: int = 0) -> int:
    """A whole number of the query.

    Raises:
        Asked: it is none, or out of bounds.
    """
    text = request.query_params.get(name, str(default))
    if not (re.fullmatch("[0-9]{1,12}", text) and least <= int(text) <= most):
        raise Asked(400, f"{name}={text!r}. Expected a whole number, {least} to {most}")
    return int(text)


def answer_no_route(request: Request, error: Exception) -> Response:
    """There is no such page, or it takes no such method."""
    status, allowed = getattr(error, "status_code", 404), getattr(error, "headers", None)
    text = f"{request.method} is not possible here" if allowed else "there is no such page"
    return json_answer({"error": "not found", "text": text}, status=status, headers=allowed)


def answer_not_found(request: Request, error: Exception) -> Response:
    """There is no such flow, stage, key or record."""
    del request
    return json_answer({"error": "not found", "text": shown(str(error))}, status=404)


def answer_refused(request: Request, error: Exception) -> Response:
    """The request cannot be answered."""
    del request
    return json_answer({"error": "refused", "text": shown(str(error))}, status=getattr(error, "status", 400))


def answer_failed(request: Request, error: Exception) -> Response:
    """An error of the tree, by its kind."""
    del request
    status = 503 if isinstance(error, Unavailable) else 422 if isinstance(error, ConfigurationError) else 500
    return json_answer({"error": type(error).__name__, "text": shown(str(error))}, status=status)
