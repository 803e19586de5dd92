"""How a state is shown to programs that know no protobuf: as JSON, or field by field.

The forms are protobuf's own JSON mapping with the field names of the .proto: 64-bit numbers are strings, bytes
are base64, fields without presence are there also when they are 0 or empty.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from sqe_chain.states import View
from sqe_chain.topology import Node


def as_dict(state: Message) -> Any:  # noqa: ANN401 - the JSON of some of protobuf's own types is no object
    """A state as protobuf's JSON mapping has it, with the field names of the .proto."""
    return MessageToDict(state, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def view_of(stage: Node) -> View | None:
    """How a stage shows its states; None: it does not."""
    if stage.view is None or stage.payload is None:
        return None
    return View(stage.view, partial(_as_json if stage.view == "json" else _as_hash, stage.payload))


def _as_json(message_type: type[Message], state: bytes) -> str:
    return json.dumps(_fields(message_type, state), ensure_ascii=False, separators=(",", ":"))


def _as_hash(message_type: type[Message], state: bytes) -> dict[str, str]:
    """Texts as they are, everything else as JSON."""
    return {
        name: value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in _fields(message_type, state).items()
    }


def _fields(message_type: type[Message], state: bytes) -> dict[str, object]:
    found = as_dict(message_type.FromString(state))
    # The JSON of some of protobuf's own types (wrappers, timestamps) is no object.
    return found if isinstance(found, dict) else {"value": found}
