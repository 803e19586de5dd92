"""How a state is shown to programs that read the store: as JSON, or field by field."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from sqe_chain.codecs import Codec
from sqe_chain.flow.nodes import StageNode
from sqe_chain.segment.states import View


def view_of(stage: StageNode) -> View | None:
    """How a stage shows its states; None: it does not."""
    if stage.view is None or stage.codec is None:
        return None
    return View(stage.view, partial(_as_json if stage.view == "json" else _as_hash, stage.codec))


def _as_json(codec: Codec[Any], state: bytes) -> str:
    return json.dumps(_fields(codec, state), ensure_ascii=False, separators=(",", ":"))


def _as_hash(codec: Codec[Any], state: bytes) -> dict[str, str]:
    """Texts as they are, everything else as JSON."""
    return {
        str(name): value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in _fields(codec, state).items()
    }


def _fields(codec: Codec[Any], state: bytes) -> dict[str, object]:
    found = codec.to_view(codec.decode(state))
    # Lists and numbers, and the JSON of some of protobuf's own types (wrappers, timestamps), are no object.
    return found if isinstance(found, dict) else {"value": found}
