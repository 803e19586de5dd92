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


_REFUSAL = {
    "type": "object",
    "required": ["error", "text"],
    "properties": {"error": {"type": "string"}, "text": {"type": "string"}},
}
_KEY = {
    "oneOf": [
        {"type": "string"},
        {"type": "object", "required": ["hex"], "properties": {"hex": {"type": "string"}}},
    ]
}
_NAME = _text("[A-Za-z0-9._-]{1,249}")
_TEXT_OR_HEX = _text("(?!0x)[\\s\\S]*|0x([0-9a-fA-F]{2})*")
_OFFSETS = {"type": "array", "items": _text("[a-zA-Z0-9._-]{1,249}:[0-9]{1,9}:[0-9]{1,18}")}
_FLOW = _parameter("flow", "path", "Name of the flow.", _NAME)
_STAGE = _parameter("stage", "path", "Name of the stage.", _NAME)
_ERRORS = {
    "400": _answer("A parameter has no such value, or there is no such parameter.", _REFUSAL),
    "404": _answer("There is no such flow, stage or key.", _REFUSAL),
    "422": _answer("The flow has not run, or its states are not all there.", _REFUSAL),
    "503": _answer("The store or a broker is away.", _REFUSAL),
}

OPENAPI: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {
        "title": "sqe-chain: states over HTTP",
        "version": "1",
        "description": "States of flows as of one plan, with the offsets that they have reached.",
    },
    "paths": {
        "/api/flows": {
            "get": {
                "summary": "All flows.",
                "responses": {
                    "200": _answer(
                        "The flows.",
                        {
                            "type": "object",
                            "required": ["flows"],
                            "properties": {
                                "flows": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["name", "stages"],
                                        "properties": {
                                            "name": {"type": "string"},
                                            "stages": {"type": "array", "items": {"type": "string"}},
                                        },
                                    },
                                }
                            },
                        },
                    ),
                    "400": _ERRORS["400"],
                    "503": _ERRORS["503"],
                },
            }
        },
        "/flows/{flow}/stages/{stage}/keys": {
            "get": {
                "summary": "A page of keys.",
                "parameters": [
                    _FLOW,
                    _STAGE,
                    _parameter("prefix", "query", "Only keys that begin so; 0x... for bytes.", _TEXT_OR_HEX),
                    _parameter("after", "query", "`next` of the page before.", _text(CURSOR)),
                    _parameter("limit", "query", "Most keys.", _whole(1, PAGE)),
                ],
                "responses": {
                    "200": _answer(
                        "Keys, those of a state partition in their order.",
                        {
                            "type": "object",
                            "required": ["keys", "next", "longer"],
                            "properties": {
                                "keys": {"type": "array", "items": _KEY},
                                "next": {"type": ["string", "null"]},
                                "longer": {"type": "integer"},
                            },
                        },
                    ),
                    **_ERRORS,
                },
            }
        },
        "/flows/{flow}/stages/{stage}/keys/{key}": {
            "get": {
                "summary": "The state of a key, as of one plan.",
                "parameters": [
                    _FLOW,
                    _STAGE,
                    _parameter("key", "path", "The key; 0x... for bytes.", _TEXT_OR_HEX),
                    _parameter(
                        "at_least",
                        "query",
                        "TOPIC:PARTITION:OFFSET that must be counted. Repeatable.",
                        _OFFSETS,
                    ),
                    _parameter("timeout", "query", "Seconds to wait for that.", _whole(0, 60)),
                ],
                "responses": {
                    "200": _answer(
                        "The state.",
                        {
                            "type": "object",
                            "required": ["flow", "stage", "key", "plan", "offsets", "states"],
                            "properties": {
                                "flow": {"type": "string"},
                                "stage": {"type": "string"},
                                "key": _KEY,
                                "plan": {"type": "integer"},
                                "offsets": {"type": "object", "additionalProperties": {"type": "integer"}},
                                "states": {"type": "array", "items": {"type": "object"}},
                            },
                        },
                    ),
                    "304": {"description": "It is still of the plan that If-None-Match names."},
                    "504": _answer("The offset was not counted in time.", _REFUSAL),
                    **_ERRORS,
                },
            }
        },
    },
}
