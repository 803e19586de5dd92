"""What the metadata of a group's commit holds: JSON, and in it a republisher's marks, compressed."""

from __future__ import annotations

import json
import zlib
from base64 import b85decode, b85encode

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.ports import Commit

METADATA_LENGTH = 4_095
"""Characters of commit metadata that a broker takes by default."""


def parse_metadata(commit: Commit | None) -> dict[str, object]:
    """What a commit's metadata says; empty when it is not ours."""
    try:
        found = json.loads(commit.metadata) if commit and commit.metadata else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def moved_by(commit: Commit | None) -> str:
    """Who has moved a republisher's place: a rewind, by its id, or another program; empty for a commit of a run."""
    meta = parse_metadata(commit)
    return "" if commit is None else str(meta.get("rewound", "" if "topic_id" in meta else "another program"))


def encode_marks(marks: PartitionMarks) -> str:
    """Marks as a text without quotes, of about 40 characters for each lane.

    >>> marks = PartitionMarks("robot.raw", bytes(16), 0)
    >>> marks.accept_raw(7)
    True
    >>> decode_marks(encode_marks(marks)) == marks
    True
    """
    return b85encode(zlib.compress(json.dumps(marks.to_json(), separators=(",", ":")).encode(), 9)).decode()


def decode_marks(text: object) -> PartitionMarks | None:
    """What `encode_marks` was given; None for what it did not write, such as nothing at all."""
    if not isinstance(text, str):
        return None
    try:
        return PartitionMarks.from_json(json.loads(zlib.decompress(b85decode(text))))
    except (ValueError, zlib.error, KeyError, TypeError, RecursionError):
        return None
