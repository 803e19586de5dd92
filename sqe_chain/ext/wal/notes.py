"""Notes beside the segments: the identity of a log (`log.json`), and how far it was published (`position`).

`position` has two slots; a write replaces the older one. That needs no space, so a log on a full disk can still note progress and
delete segments. The slot with the higher counter counts. Each slot is in a block of its own, so a crash damages one at most.
A slot is little-endian: `SQEPOS1` and a newline (8 bytes), then the counter (8). Two offsets follow: up to where
Kafka has acknowledged records (8), and up to where they were synced (8). The last four bytes are the CRC-32 of these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from sqe_chain.errors import LogDamaged
from sqe_chain.ext.wal.files import Files, write_whole

IDENTITY: Final = "log.json"
POSITION: Final = "position"
ID_LENGTH: Final = 8
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose log it is.

    Attributes:
        partitions: over how many partitions of it they are spread; permanent, since a key must keep its partition.
        losses: records that were given up by `accept_loss`: from the first offset to before the second.
    """

    log_id: bytes  # 8 random bytes. A new directory is another log
    topic: str  # where its records go
    partitions: int
    losses: tuple[tuple[int, int], ...] = ()


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
    write_whole(files, IDENTITY, text.encode())


def read_identity(files: Files) -> Identity | None:
    """The content of `log.json`; None if it is not there. Raises LogDamaged: it is not as it was written."""
    if IDENTITY not in files.names():
        return None
    content = files.read(IDENTITY, 0, files.size(IDENTITY))
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
            f"{files.where}/{IDENTITY} is damaged ({type(error).__name__}: {error}). Restore it from a copy: without the log's id and "
            "its number of partitions, the segments beside it cannot be used"
        ) from None


def _checksum(fields: Mapping[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def _check(sound: bool) -> None:  # noqa: FBT001 - one fact
    if not sound:
        raise ValueError("wrong checksum or format")


_MAGIC: Final = b"SQEPOS1\n"
_SLOT: Final = Struct("<8sQQQ")
_CRC: Final = Struct("<I")
_BLOCK: Final = 4_096


class Position(NamedTuple):
    """The content of a slot."""

    counter: int  # rises with each writing
    published: int  # everything before this offset was acknowledged by Kafka
    durable: int  # everything before this offset was synced: if it is not there, it was lost


def make_position(files: Files, published: int, durable: int) -> Position:
    """Write the file for the first time."""
    position = Position(0, published, durable)
    write_whole(files, POSITION, _bytes_of(position).ljust(2 * _BLOCK, b"\0"))
    return position


def write_position(files: Files, before: Position, published: int, durable: int) -> Position:
    """Overwrite the older slot.

    Raises:
        OSError: the disk fails. The newer slot still counts, or the new content of this one.
    """
    position = Position(before.counter + 1, published, durable)
    files.overwrite(POSITION, position.counter % 2 * _BLOCK, _bytes_of(position))
    files.sync(POSITION)
    return position


def read_position(files: Files) -> Position | None:
    """The content of the newer slot, durable; None: no file. Raises LogDamaged: neither slot is sound."""
    if POSITION not in files.names():
        return None
    files.sync(POSITION)  # a kill may have left it in memory alone
    slots = [_slot(files.read(POSITION, index * _BLOCK, _SLOT.size + _CRC.size)) for index in range(2)]
    sound = [slot for slot in slots if slot is not None]
    if not sound:
        raise LogDamaged(
            f"{files.where}/{POSITION} is damaged in both of its slots. Delete it. Then all records that are still in the log are "
            "published again, with the numbers they have: drop_stale drops what was published before"
        )
    return max(sound)


def _bytes_of(position: Position) -> bytes:
    content = _SLOT.pack(_MAGIC, *position)
    return content + _CRC.pack(crc32(content))


def _slot(slot: bytes) -> Position | None:
    content, checksum = slot[: _SLOT.size], slot[_SLOT.size :]
    if checksum != _CRC.pack(crc32(content)) or len(content) < _SLOT.size:
        return None
    magic, *numbers = _SLOT.unpack(content)
    return Position(*numbers) if magic == _MAGIC else None
