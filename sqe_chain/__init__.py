"""Exact streaming on Kafka with PySpark: every message carries the chain of messages it came from.

Importing this loads no driver and no pyspark; wrapping and reading messages needs protobuf alone.
"""

from sqe_chain.chain import Chain, Coordinates, Link
from sqe_chain.envelope.message import Envelope, read, wrap
from sqe_chain.envelope.template import republish
from sqe_chain.flow import Flow
from sqe_chain.replays.filter import ReplayFilter

__all__ = ["Chain", "Coordinates", "Envelope", "Flow", "Link", "ReplayFilter", "read", "republish", "wrap"]
