"""Marks within the metadata of a group's commit: JSON, compressed, as text without quotes."""

from __future__ import annotations

import json
import zlib
from base64 import b85decode, b85encode
from typing import cast

from sqe_chain.replays.marks import MarksRecord, PartitionMarks


def packed(marks: MarksRecord) -> str:
    """Marks as a text of about 40 characters for each lane.

    >>> marks = PartitionMarks("robot.raw", bytes(16), 0)
    >>> marks.accept_raw(7)
    True
    >>> unpacked(packed(marks.to_json())) == marks.to_json()
    True
    """
    return b85encode(zlib.compress(json.dumps(marks, separators=(",", ":")).encode(), 9)).decode()


def unpacked(text: object) -> MarksRecord | None:
    """What `packed` was given; None for what it did not write, such as nothing at all."""
    if not isinstance(text, str):
        return None
    try:
        record = json.loads(zlib.decompress(b85decode(text)))
        return PartitionMarks.from_json(cast("MarksRecord", record)).to_json()
    except (ValueError, zlib.error, KeyError, TypeError):
        return None
