"""The interface for programs, as OpenAPI describes it."""

from __future__ import annotations

from typing import Any, Final


def _parameter(name: str, where: str, kind: str, text: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind}
    if kind == "integer":
        schema |= {"minimum": 0}
    return {"name": name, "in": where, "required": where == "path", "description": text, "schema": schema}


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
_FLOW = _parameter("flow", "path", "string", "Name of the flow.")
_STAGE = _parameter("stage", "path", "string", "Name of the stage.")
_ERRORS = {
    "400": _answer("A parameter has no such value.", _REFUSAL),
    "404": _answer("There is no such flow, stage or key.", _REFUSAL),
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
                    _parameter("prefix", "query", "string", "Only keys that begin so; 0x... for bytes."),
                    _parameter("after", "query", "string", "`next` of the page before."),
                    {
                        **_parameter("limit", "query", "integer", "Most keys."),
                        "schema": {"type": "integer", "minimum": 0, "maximum": 100},
                    },
                ],
                "responses": {
                    "200": _answer(
                        "Keys, those of a state partition in their order.",
                        {
                            "type": "object",
                            "required": ["keys", "next"],
                            "properties": {
                                "keys": {"type": "array", "items": _KEY},
                                "next": {"type": ["string", "null"]},
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
                    _parameter("key", "path", "string", "The key; 0x... for bytes."),
                    _parameter(
                        "at_least",
                        "query",
                        "string",
                        "TOPIC:PARTITION:OFFSET that must be counted. Repeatable.",
                    ),
                    {
                        **_parameter("timeout", "query", "integer", "Seconds to wait for that."),
                        "schema": {"type": "integer", "minimum": 0, "maximum": 60},
                    },
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
