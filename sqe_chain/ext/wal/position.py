"""How far a log was published: two slots, of which the older one is overwritten.

Overwriting needs no space, so a log on a full disk can still note what was published, and then delete segments. A slot
holds `SQEPOS1` and a newline (8 bytes), a counter (8), the offset before which Kafka has acknowledged everything (8), the
offset before which everything was synced (8), and the CRC-32 of these (4), all little-endian. The slot with the higher
counter counts. The slots lie in blocks of their own, so a crash can damage one of them at most.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from sqe_chain.errors import LogDamaged
from sqe_chain.ext.wal.files import Files
from sqe_chain.ext.wal.identity import write_whole

NAME: Final = "position"
_MAGIC: Final = b"SQEPOS1\n"
_SLOT: Final = Struct("<8sQQQ")
_CRC: Final = Struct("<I")
_BLOCK: Final = 4_096


class Position(NamedTuple):
    """What a slot says.

    Attributes:
        counter: rises with each writing.
        published: everything before this offset was acknowledged by Kafka.
        durable: everything before this offset was synced: if it is not there, it was lost.
    """

    counter: int
    published: int
    durable: int


def make_position(files: Files, published: int, durable: int) -> Position:
    """Write the file for the first time."""
    position = Position(0, published, durable)
    write_whole(files, NAME, _bytes_of(position).ljust(2 * _BLOCK, b"\0"))
    return position


def write_position(files: Files, before: Position, published: int, durable: int) -> Position:
    """Overwrite the older slot.

    Args:
        files: the directory.
        before: what the newer slot says.
        published: see `Position`.
        durable: see `Position`.

    Raises:
        OSError: the disk fails. What the newer slot says still counts, or what this one should have said.
    """
    position = Position(before.counter + 1, published, durable)
    files.overwrite(NAME, position.counter % 2 * _BLOCK, _bytes_of(position))
    files.sync(NAME)
    return position


def read_position(files: Files) -> Position | None:
    """What the newer slot says; None if there is no file.

    Raises:
        LogDamaged: neither slot is sound.
    """
    if NAME not in files.names():
        return None
    slots = [_slot(files.read(NAME, index * _BLOCK, _SLOT.size + _CRC.size)) for index in range(2)]
    sound = [slot for slot in slots if slot is not None]
    if not sound:
        raise LogDamaged(
            f"{files.where}/{NAME} is damaged in both of its slots. Delete it: all records that are still in the log are then "
            "published again, with the numbers they have, so that drop_stale drops what was published before"
        )
    return max(sound)


def _bytes_of(position: Position) -> bytes:
    content = _SLOT.pack(_MAGIC, *position)
    return content + _CRC.pack(crc32(content))


def _slot(found: bytes) -> Position | None:
    content, checksum = found[: _SLOT.size], found[_SLOT.size :]
    if checksum != _CRC.pack(crc32(content)) or len(content) < _SLOT.size:
        return None
    magic, *numbers = _SLOT.unpack(content)
    return Position(*numbers) if magic == _MAGIC else None
