"""What a batch gives, as numbers: the plan has them, so that a redo which gives something else is noticed before it changes anything.

Each record has a checksum, and the sum of those does not depend on the engine, nor on how the work is divided. It finds functions
that give something else, not somebody who wants to deceive: CRC-32 costs a tenth of a microsecond for a record. Of a value that
ends with a CRC-32 of its own it shows the length alone. Envelopes are such values, and are looked at apart; states and payloads in
a format of the user may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import unpack
from typing import Final
from zlib import crc32

from sqe_chain.envelope.wire import CHECKSUM, PREFIX
from sqe_chain.ports import Headers, Output

VERSION: Final = "version"
"""Name under which a plan has `CURRENT`; a plan without it has digests of keys, values and states alone."""
CURRENT: Final = 3
ROUTED: Final = 3
"""From this version on records of chains that name no topics bear their routes; see `sqe_chain.task.routes`."""

_MASK = (1 << 64) - 1
_TOPIC = "topic/"
_HEADERS = "headers/"
_DEAD_LETTERS = "dead letters/"
_STATES = "states/"

Digests = dict[str, int]
"""What was given -> the sum of its checksums; names are from `of_topic`, `of_headers`, `of_dead_letters` and `of_cell`."""


def of_topic(topic: str) -> str:
    """The name of an output topic."""
    return f"{_TOPIC}{topic}"


def of_headers(topic: str) -> str:
    """The name of the headers of what an output topic gets."""
    return f"{_HEADERS}{topic}"


def of_dead_letters(topic: str) -> str:
    """The name of the inputs that go to a dead-letter topic."""
    return f"{_DEAD_LETTERS}{topic}"


def of_cell(stage: str, part: int) -> str:
    """The name of the states of a stage in a state partition."""
    return f"{_STATES}{stage}/{part}"


def outputs_digests(records: Sequence[Output]) -> Digests:
    """Of records to publish: their topics, partitions, keys, values and headers.

    Envelopes have positions, times and watermarks. So what is covered with them is the order within a lane, too.
    """
    by_partition: dict[tuple[str, int], list[Output]] = {}
    for record in records:
        by_partition.setdefault((record[0], record[1]), []).append(record)
    digests: Digests = {}
    for (topic, partition), own in by_partition.items():
        # The partition belongs to the sum: the same record in another partition is another record for readers.
        seed = crc32(f"{topic}/{partition}".encode())
        values = [known ^ seed for known in _checksums([record[3] or b"" for record in own])]
        sums = list(map(crc32, [record[2] or b"" for record in own], values))
        add_digests(digests, {of_topic(topic): sum(sums)})
        described = [
            (_joined(record[4]), known) for record, known in zip(own, sums, strict=True) if record[4]
        ]
        if described:
            add_digests(digests, {of_headers(topic): sum([crc32(text, known) for text, known in described])})
    return digests


def dead_letters_digests(records: Sequence[Output]) -> Digests:
    """Of dead-letter records: the inputs' keys and values. Headers have texts of errors, which may differ."""
    digests: Digests = {}
    for record, known in zip(records, _checksums([record[3] or b"" for record in records]), strict=True):
        add_digests(digests, {of_dead_letters(record[0]): crc32(record[2] or b"", known)})
    return digests


def _checksums(values: Sequence[bytes]) -> Sequence[int]:
    """A checksum of each value.

    An envelope ends with the CRC-32 of what is before. A CRC-32 over both is the same number for every envelope, whatever it holds,
    so its own one is taken.
    """
    own = [
        value[-CHECKSUM.size :] if value.startswith(PREFIX) else CHECKSUM.pack(crc32(value))
        for value in values
    ]
    return unpack(f"<{len(own)}I", b"".join(own))


def _joined(headers: Headers) -> bytes:
    return b"\0".join([part for name, value in headers for part in (name.encode(), value or b"")])


def rows_digest(rows: Sequence[tuple[bytes, bytes | None]]) -> int:
    """Of changed states, as they are stored; a removed one differs from an empty one."""
    keys = map(crc32, [key for key, _ in rows])
    return sum(map(crc32, [b"\0" if value is None else value for _, value in rows], keys)) & _MASK


def add_digests(to: Digests, other: Mapping[str, int]) -> None:
    """Add what another task has given."""
    for name, value in other.items():
        to[name] = (to.get(name, 0) + value) & _MASK


def differing(sealed: Mapping[str, int], now: Mapping[str, int], names: Iterable[str]) -> list[str]:
    """Which of these are not what was sealed; what is missing has given nothing."""
    return sorted({name for name in names if sealed.get(name, 0) != now.get(name, 0)})
