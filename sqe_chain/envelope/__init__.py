"""Envelopes: messages wrapped with the chain of messages they came from. Only this package knows their bytes."""

from sqe_chain.envelope.head import EnvelopeHead, check_head, parse_chain, parse_head
from sqe_chain.envelope.message import Envelope, payloads_of, read, republish, wrap
from sqe_chain.envelope.template import OutputTemplate

__all__ = [
    "Envelope",
    "EnvelopeHead",
    "OutputTemplate",
    "check_head",
    "parse_chain",
    "parse_head",
    "payloads_of",
    "read",
    "republish",
    "wrap",
]
