"""What is written once: whose log a directory holds, and which records were given up (`log.json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from sqe_chain.errors import LogDamaged
from sqe_chain.ext.wal.files import Files

NAME: Final = "log.json"
TEMPORARY: Final = ".new"
"""End of the names of files that are not complete yet; they are removed when a log is opened."""
ID_LENGTH: Final = 8
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose log it is.

    Attributes:
        log_id: 8 random bytes. A new directory is another log.
        topic: where its records go.
        partitions: over how many partitions of it they are spread; permanent, since a key must keep its partition.
        losses: records that were given up by `accept_loss`: from the first offset to before the second.
    """

    log_id: bytes
    topic: str
    partitions: int
    losses: tuple[tuple[int, int], ...] = ()


def write_whole(files: Files, name: str, content: bytes) -> None:
    """Write a file that is there as a whole, or not at all (or as before), whatever happens.

    Raises:
        OSError: the disk is full or fails.
    """
    temporary = name + TEMPORARY
    if temporary in files.names():  # of an attempt that failed
        files.remove(temporary)
    files.create(temporary)
    files.write(temporary, 0, content)
    files.sync(temporary)
    files.rename(temporary, name)
    files.sync_directory()


def write_identity(files: Files, identity: Identity) -> None:
    """Write `log.json`."""
    fields = {
        "format": _FORMAT,
        "id": identity.log_id.hex(),
        "topic": identity.topic,
        "partitions": identity.partitions,
        "losses": [list(loss) for loss in identity.losses],
    }
    text = json.dumps({**fields, "crc32": _checksum(fields)}, indent=1) + "\n"
    write_whole(files, NAME, text.encode())


def read_identity(files: Files) -> Identity | None:
    """The content of `log.json`; None if it is not there.

    Raises:
        LogDamaged: it is not as it was written.
    """
    if NAME not in files.names():
        return None
    content = files.read(NAME, 0, files.size(NAME))
    try:
        fields = json.loads(content)
        _check(fields.pop("crc32") == _checksum(fields) and fields["format"] == _FORMAT)
        return Identity(
            bytes.fromhex(fields["id"]),
            fields["topic"],
            fields["partitions"],
            tuple((first, end) for first, end in fields["losses"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogDamaged(
            f"{files.where}/{NAME} is damaged ({type(error).__name__}: {error}). Restore it from a copy: without the log's id and "
            "its number of partitions, the segments beside it cannot be used"
        ) from None


def _checksum(fields: Mapping[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def _check(sound: bool) -> None:  # noqa: FBT001 - one fact
    if not sound:
        raise ValueError("wrong checksum or format")
