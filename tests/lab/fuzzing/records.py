"""An input of the fuzzer as records of a topic: how they are written into one string of bytes, for any string of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CHAIN_HEADER: Final = "sqe-chain"
MOST_RECORDS: Final = 64
MOST_BYTES: Final = 0xFFFF
_NULL, _HEADERS, _NULL_HEADER = 1, 6, 8


@dataclass(slots=True)
class Record:
    """A message as a log and as a consumer give it.

    Attributes:
        data: its value.
        chains: contents of its headers `sqe-chain`.
        at: its offset.
        epoch: of its batch, as clients report it.
    """

    data: bytes | None
    chains: tuple[bytes | None, ...] = ()
    at: int = 0
    epoch: int = 0

    def topic(self) -> str:
        return "words"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes | None:
        return self.data

    def key(self) -> bytes:
        return b"record's key"

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        if not self.chains:
            return None
        return [("ce_id", b"x"), *((CHAIN_HEADER, content) for content in self.chains)]

    def error(self) -> None:
        return None

    def leader_epoch(self) -> int:
        return self.epoch

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


@dataclass(slots=True)
class Script:
    """Records, and how they are read.

    Attributes:
        setting: which of the settings: see `ways`.
        records: in the order of their offsets.
    """

    setting: int
    records: list[Record]


def to_bytes(script: Script) -> bytes:
    """The bytes of an input; `from_bytes` reads them."""
    parts = [bytes([script.setting & 0xFF])]
    for record in script.records:
        chains = record.chains[:3]
        flags = (record.data is None) * _NULL | len(chains) << 1 | (None in chains) * _NULL_HEADER
        parts += [bytes([flags]), _sized(record.data)]
        parts += [_sized(content) for content in chains]
    return b"".join(parts)


def from_bytes(data: bytes) -> Script:
    """The records that some bytes stand for; what is cut off is empty."""
    records: list[Record] = []
    at = 1
    while at < len(data) and len(records) < MOST_RECORDS:
        flags, at = data[at], at + 1
        value, at = _taken(data, at)
        chains: list[bytes | None] = []
        for _ in range((flags & _HEADERS) >> 1):
            content, at = _taken(data, at)
            chains.append(content or (None if flags & _NULL_HEADER else b""))
        records.append(Record(None if flags & _NULL else value, tuple(chains), len(records)))
    return Script(data[0] if data else 0, records)


def contents(records: Sequence[Record]) -> list[bytes]:
    """The bytes in records that may be envelopes."""
    return [record.chains[0] or b"" if record.chains else record.data or b"" for record in records]


def _sized(content: bytes | None) -> bytes:
    kept = (content or b"")[:MOST_BYTES]
    return len(kept).to_bytes(2, "little") + kept


def _taken(data: bytes, at: int) -> tuple[bytes, int]:
    size = int.from_bytes(data[at : at + 2], "little")
    return data[at + 2 : at + 2 + size], at + 2 + size
