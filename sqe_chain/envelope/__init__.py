"""Envelopes: messages wrapped with the chain of messages they came from. The only room that knows their bytes."""

from sqe_chain.envelope.message import Envelope, read, wrap
from sqe_chain.envelope.template import republish

__all__ = ["Envelope", "read", "republish", "wrap"]
