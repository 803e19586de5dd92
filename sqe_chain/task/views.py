"""How a state is shown to programs that read the store: as JSON, or field by field."""

from __future__ import annotations

import json
from functools import partial

from sqe_chain.flow.nodes import StageNode
from sqe_chain.task.states import View


def view_of(stage: StageNode) -> View | None:
    """How a stage shows its states; None: it does not."""
    if stage.view is None or stage.codec is None:
        return None
    return View(stage.view, partial(_as_json if stage.view == "json" else _as_hash, stage))


def _as_json(stage: StageNode, row: bytes, content: bytes) -> str | None:
    shown = stage.stage_kind.shown_in(row, content)
    return None if shown is None else json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def _as_hash(stage: StageNode, row: bytes, content: bytes) -> dict[str, str] | None:
    """Texts as they are, everything else as JSON; of a window the fields of its state, too."""
    shown = stage.stage_kind.shown_in(row, content)
    if shown is None:
        return None
    fields = dict(shown)
    if stage.traits.windowed and isinstance(state := fields.get("state"), dict):
        del fields["state"]
        fields |= {f"state.{name}": value for name, value in state.items()}
    return {
        str(name): value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in fields.items()
    }
