"""The numbers that published records carry in headers, and how a flow reads them.

Each published record has three headers, as text: `sqe-wal-log`, the id of the log in hexadecimal; `sqe-wal-epoch` and
`sqe-wal-sequence`, decimal. Within a partition of the topic, the numbers of each log rise: epochs never fall, sequence
numbers rise by one. A record that is published again has the numbers that it had before. So it is dropped by

    stream.drop_stale("once", sequence=sequence_of, epoch=epoch_of, producer=log_of)
"""

from __future__ import annotations

from typing import Final, Protocol

from sqe_chain.ext.wal.record import Entry
from sqe_chain.ports import Headers, Output

LOG_HEADER: Final = "sqe-wal-log"
EPOCH_HEADER: Final = "sqe-wal-epoch"
SEQUENCE_HEADER: Final = "sqe-wal-sequence"
_LONGEST: Final = 20


class WithHeaders(Protocol):
    """What has the headers of a message: the context of a flow's functions, or a `Record` of a filter."""

    @property
    def headers(self) -> Headers | None:
        """The headers."""


def sequence_of(value: object, context: WithHeaders) -> int | None:
    """The sequence number of a message; None if it has none: it did not come through a write-ahead log.

    For `drop_stale(sequence=sequence_of)`.
    """
    del value
    return _number(context.headers, SEQUENCE_HEADER)


def epoch_of(value: object, context: WithHeaders) -> int | None:
    """The epoch of a message; None if it has none. For `drop_stale(epoch=epoch_of)`."""
    del value
    return _number(context.headers, EPOCH_HEADER)


def log_of(value: object, context: WithHeaders) -> str | None:
    """The id of the log that a message came from; None if it has none. For `drop_stale(producer=log_of)`."""
    del value
    found = _last(context.headers, LOG_HEADER)
    return None if found is None else found.decode("ascii")


def numbered(topic: str, log_id: str, entry: Entry) -> Output:
    """A record as it is published: the same bytes, however often.

    Args:
        topic: the topic.
        log_id: id of its log, hexadecimal.
        entry: the record.
    """
    record = entry.record
    headers: Headers = [
        *(record.headers or ()),
        (LOG_HEADER, log_id.encode()),
        (EPOCH_HEADER, b"%d" % entry.epoch),
        (SEQUENCE_HEADER, b"%d" % entry.sequence),
    ]
    return topic, entry.partition, record.key, record.value, headers, record.timestamp_ms


def _number(headers: Headers | None, name: str) -> int | None:
    found = _last(headers, name)
    if found is None:
        return None
    if not found.isdigit() or len(found) > _LONGEST:
        raise ValueError(f"header {name} is no decimal number")
    return int(found)


def _last(headers: Headers | None, name: str) -> bytes | None:
    """The last header of a name: the log appends its own after those of the record."""
    for header, content in reversed(headers or ()):
        if header == name:
            return content
    return None
