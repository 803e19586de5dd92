"""States and payloads as a protobuf type that the test names."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from sqe_chain.envelope.message import Envelope
from sqe_chain.testing import Rehearsal

Parsed = TypeVar("Parsed", bound=Message)


def states_as(kind: type[Parsed], rehearsal: Rehearsal, stage: str) -> dict[bytes, Parsed]:
    """All states of an aggregate whose states are of this type."""
    found: dict[bytes, Parsed] = {}
    for key, state in rehearsal.states(stage).items():
        assert isinstance(state, kind), f"{key!r} has a {type(state).__name__}"
        found[key] = state
    return found


def payloads_of(kind: type[Parsed], envelope: Envelope) -> list[Parsed]:
    """All payloads of an envelope; no payload may be a deletion."""
    payloads = envelope.payloads_as(kind)
    found = [payload for payload in payloads if payload is not None]
    assert len(found) == len(payloads), "one is a deletion"
    return found
