"""The interface for programs, as OpenAPI describes it."""

from __future__ import annotations

from typing import Any, Final

from sqe_chain.ext.web.site import CURSOR, PAGE


def _parameter(name: str, where: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "description": text, "schema": schema}


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^({pattern})$"}


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _object(**members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(members), "properties": members}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _get(summary: str, parameters: list[dict[str, Any]], answers: dict[str, Any]) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": parameters, "responses": answers}}


_STRING, _NUMBER = {"type": "string"}, {"type": "integer"}
_REFUSAL = _object(error=_STRING, text=_STRING)
_KEY = {"oneOf": [_STRING, _object(hex=_STRING)]}
_NAME = _text("[A-Za-z0-9._-]{1,249}")
_TEXT_OR_HEX = _text("(?!0x)[\\s\\S]*|0x([0-9a-fA-F]{2})*")
_OFFSETS = _list(_text("[a-zA-Z0-9._-]{1,249}:[0-9]{1,9}:[0-9]{1,18}"))
_FLOW = _parameter("flow", "path", "Name of the flow.", _NAME)
_STAGE = _parameter("stage", "path", "Name of the stage.", _NAME)
_PREFIX = _parameter("prefix", "query", "Only keys that begin so; 0x... for bytes.", _TEXT_OR_HEX)
_AFTER = _parameter("after", "query", "`next` of the page before.", _text(CURSOR))
_LIMIT = _parameter("limit", "query", "Most keys.", _whole(1, PAGE))
_WANTED = _parameter("key", "path", "The key; 0x... for bytes.", _TEXT_OR_HEX)
_AT_LEAST = _parameter(
    "at_least", "query", "TOPIC:PARTITION:OFFSET that must be counted. Repeatable.", _OFFSETS
)
_TIMEOUT = _parameter("timeout", "query", "Seconds to wait for that.", _whole(0, 60))
_ERRORS = {
    "400": _answer("A parameter has no such value, or there is no such parameter.", _REFUSAL),
    "404": _answer("There is no such flow, stage or key.", _REFUSAL),
    "422": _answer("The flow has not run, or at_least cannot be told for this stage.", _REFUSAL),
    "500": _answer("The store has lost states, or one cannot be read.", _REFUSAL),
    "503": _answer("The store or a broker is away.", _REFUSAL),
}
_FLOWS = _object(flows=_list(_object(name=_STRING, stages=_list(_STRING))))
_PAGE_OF_KEYS = _object(keys=_list(_KEY), next={"type": ["string", "null"]}, longer=_NUMBER)
_STATE = _object(
    flow=_STRING,
    stage=_STRING,
    key=_KEY,
    plan=_NUMBER,
    offsets={"type": "object", "additionalProperties": _NUMBER},
    states=_list({"type": "object"}),
)

OPENAPI: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {
        "title": "sqe-chain: states over HTTP",
        "version": "1",
        "description": "States of flows as of one plan, with the offsets that they have reached.",
    },
    "paths": {
        "/api/flows": _get(
            "All flows.",
            [],
            {"200": _answer("The flows.", _FLOWS), "400": _ERRORS["400"], "503": _ERRORS["503"]},
        ),
        "/flows/{flow}/stages/{stage}/keys": _get(
            "A page of keys.",
            [_FLOW, _STAGE, _PREFIX, _AFTER, _LIMIT],
            {"200": _answer("Keys, those of a state partition in their order.", _PAGE_OF_KEYS), **_ERRORS},
        ),
        "/flows/{flow}/stages/{stage}/keys/{key}": _get(
            "The state of a key, as of one plan.",
            [_FLOW, _STAGE, _WANTED, _AT_LEAST, _TIMEOUT],
            {
                "200": _answer("The state.", _STATE),
                "304": {"description": "It is still of the plan that If-None-Match names."},
                "504": _answer(
                    "The offset was not counted in time: it is not read, waits, or is parked.", _REFUSAL
                ),
                **_ERRORS,
            },
        ),
    },
}
