"""What is too large for a store is found while a batch is processed: after the seal nothing may fail on data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqe_chain.errors import PoisonError
from sqe_chain.flow.nodes import StageNode
from sqe_chain.ports import StateStore
from sqe_chain.task.views import view_of

_ROW_NAME: Final = 64
"""Bytes that a filter's row adds to the key in its name, at most."""
ANY_KEY: Final = 32 * 1024
"""A key up to this length fits into every store, so none has to be asked."""
_ANY_ROW: Final = 64 * 1024
"""The same of a state; its view may be a few times as large."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """What a stage's store takes. It is asked only when something is large.

    Attributes:
        stage: the stage.
        store: its store.
    """

    stage: StageNode
    store: StateStore

    def fits(self, key: bytes) -> bool:
        """Whether the store takes a key. Raises Unavailable."""
        room = 0 if self.stage.traits.states_by_key else _ROW_NAME
        return len(key) <= ANY_KEY or len(key) <= self.store.max_key_bytes - room

    def too_long(self, key: bytes) -> PoisonError:
        """The error of an input whose key does not fit."""
        return PoisonError(
            f"stage {self.stage.name!r}: a key of {len(key)} bytes; its store takes {self.store.max_key_bytes}: use a "
            "shorter key, for example a digest"
        )

    def too_large(self, rows: Iterable[tuple[bytes, bytes | None]]) -> str | None:
        """Why one of these rows cannot be written; None when all can. Raises Unavailable."""
        if self.stage.stage_kind.sink is not None:
            return None
        view = view_of(self.stage)
        for key, state in rows:
            size = len(key) + len(state or b"")
            if size <= _ANY_ROW:
                continue
            if view is not None and state is not None:
                size += view.of([(key, state)]).size(key)
            most = self.store.max_state_bytes
            if size > most:
                shown = " and its view" if view is not None else ""
                return (
                    f"stage {self.stage.name!r}: key {key[:40]!r}, its state{shown} take {size} bytes together, its store "
                    f"takes {most}: keep less in one state, or spread it over several keys; nothing was sealed"
                )
        return None
