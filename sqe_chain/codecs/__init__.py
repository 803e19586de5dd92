"""Codecs, bytes <-> Python values of payloads and states: protobuf, JSON, plain bytes, and your own."""

from __future__ import annotations

from sqe_chain.codecs.codec import Codec, Field, FieldKind, Place, RecordHeaders, Role, Shape, codec_name
from sqe_chain.codecs.registry import codec_for, codec_named, register

__all__ = [
    "Codec",
    "Field",
    "FieldKind",
    "Place",
    "RecordHeaders",
    "Role",
    "Shape",
    "codec_for",
    "codec_name",
    "codec_named",
    "register",
]
