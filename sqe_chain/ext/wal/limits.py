"""How large a write-ahead log, its files and its records may become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqe_chain.errors import ConfigurationError

MIB: Final = 1 << 20
_LEAST_SEGMENT: Final = 1_024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a log; they may be changed whenever it is opened.

    Attributes:
        max_bytes: of all segments on the disk: how much may wait for Kafka.
        segment_bytes: of one segment, 1 KiB or more; at most half of `max_bytes`. Disk space is freed by whole segments.
        max_record_bytes: of one record with its key and headers, and 30 bytes. The default is what topics with Kafka's default
            limits take; the topic's `max.message.bytes` should be a little more.
        group_records: records that are written and synced at once, at most.
        group_bytes: the same in bytes; at most `segment_bytes`.

    Raises:
        ConfigurationError: one is out of its bounds.
    """

    max_bytes: int = 1_024 * MIB
    segment_bytes: int = 32 * MIB
    max_record_bytes: int = 1_000_000
    group_records: int = 1_000
    group_bytes: int = 4 * MIB

    def __post_init__(self) -> None:
        """Check them."""
        if not _LEAST_SEGMENT <= self.segment_bytes <= self.max_bytes // 2:
            raise ConfigurationError(
                f"segment_bytes is {self.segment_bytes:,}: at least {_LEAST_SEGMENT:,}, at most half of max_bytes ({self.max_bytes:,})"
            )
        if not 0 < self.max_record_bytes <= self.segment_bytes:
            raise ConfigurationError(
                f"max_record_bytes is {self.max_record_bytes:,}: at least 1, at most segment_bytes ({self.segment_bytes:,})"
            )
        if self.group_records < 1 or not 0 < self.group_bytes <= self.segment_bytes:
            raise ConfigurationError(
                f"group_records is {self.group_records:,} and group_bytes {self.group_bytes:,}: at least 1, and at most "
                f"segment_bytes ({self.segment_bytes:,})"
            )
