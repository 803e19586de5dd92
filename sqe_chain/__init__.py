"""Exactly-once streaming on Kafka in Python: every message carries the chain of messages it came from.

Importing this loads no driver and no pyspark; wrapping and reading messages needs protobuf alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sqe_chain._old_names import accept_old_names
from sqe_chain.chain import Chain, Coordinates, Link
from sqe_chain.envelope import Envelope, read, republish, wrap
from sqe_chain.envelope.replays import ReplayFilter
from sqe_chain.flow import Flow

if TYPE_CHECKING:
    from sqe_chain.features.events import TableFlushed
    from sqe_chain.features.settings import settings_of
    from sqe_chain.plans.settings import Settings
    from sqe_chain.runtime.running import RunningService, run, running
    from sqe_chain.runtime.states import States, get, states

__all__ = [
    "Chain",
    "Coordinates",
    "Envelope",
    "Flow",
    "Link",
    "ReplayFilter",
    "RunningService",
    "Settings",
    "States",
    "TableFlushed",
    "get",
    "read",
    "republish",
    "run",
    "running",
    "settings_of",
    "states",
    "wrap",
]

_LATER = {
    "TableFlushed": "sqe_chain.features.events",
    "get": "sqe_chain.runtime.states",
    "RunningService": "sqe_chain.runtime.running",
    "run": "sqe_chain.runtime.running",
    "running": "sqe_chain.runtime.running",
    "Settings": "sqe_chain.plans.settings",
    "settings_of": "sqe_chain.features.settings",
    "States": "sqe_chain.runtime.states",
    "states": "sqe_chain.runtime.states",
}
"""Names for running flows: imported at first use, so that programs that only wrap messages do not load them."""


accept_old_names()


def __getattr__(name: str) -> object:
    """Import a name for running flows."""
    if name not in _LATER:
        raise AttributeError(f"module 'sqe_chain' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
