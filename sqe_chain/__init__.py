"""Exact streaming on Kafka with PySpark: every message carries the chain of messages it came from.

Importing this loads no driver and no pyspark; wrapping and reading messages needs protobuf alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sqe_chain.chain import Chain, Coordinates, Link
from sqe_chain.envelope import Envelope, read, republish, wrap
from sqe_chain.flow import Flow
from sqe_chain.replays import ReplayFilter

if TYPE_CHECKING:
    from sqe_chain.runtime.lookup import get
    from sqe_chain.runtime.running import RunningService, run, running
    from sqe_chain.runtime.states import States, states

__all__ = [
    "Chain",
    "Coordinates",
    "Envelope",
    "Flow",
    "Link",
    "ReplayFilter",
    "RunningService",
    "States",
    "get",
    "read",
    "republish",
    "run",
    "running",
    "states",
    "wrap",
]

_LATER = {
    "get": "sqe_chain.runtime.lookup",
    "RunningService": "sqe_chain.runtime.running",
    "run": "sqe_chain.runtime.running",
    "running": "sqe_chain.runtime.running",
    "States": "sqe_chain.runtime.states",
    "states": "sqe_chain.runtime.states",
}
"""What runs flows: loaded when it is asked for, so that who only wraps messages does not pay for it."""


def __getattr__(name: str) -> object:
    """Load what runs flows."""
    if name not in _LATER:
        raise AttributeError(f"module 'sqe_chain' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
