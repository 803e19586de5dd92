"""Recovery: reads what a directory holds when a log is opened.

* What is read is synced before anything is deleted or written because of it.
* A log ends at or after every offset that its files note: in `position`, in a segment, or given up. If its segments end earlier,
  it is damaged.
* `position` notes a segment with its first record, and the end at least every `UNNOTED` records. So a last segment that is gone
  is missed, and the end that is lost with it has a bound.
* An offset that was given up is never given out again. A new segment begins behind it, before anything is appended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from sqe_chain.errors import LogDamaged, PartitionsMismatch
from sqe_chain.ext.wal.files import TEMPORARY, Files
from sqe_chain.ext.wal.notes import (
    IDENTITY,
    POSITION,
    Identity,
    Position,
    make_position,
    read_identity,
    read_position,
    write_identity,
)
from sqe_chain.ext.wal.segment import (
    SUFFIX,
    Segment,
    TornTail,
    damaged,
    entries,
    groups,
    header_size,
    is_partly_written,
    read_header,
)

UNNOTED: Final = 10_000
"""Records that may be acknowledged beyond what `position` notes, at most."""


@dataclass(slots=True)
class RecoveredLog:
    """A log as it was found.

    Attributes:
        segments: in order; the first one holds the first record that is not yet published, if there is one.
    """

    identity: Identity  # whose it is
    position: Position  # how far it was published
    segments: list[Segment]
    end: int  # offset of the next record; beyond the last segment if what follows that was given up
    sequences: list[int]  # the next sequence number of each partition, at the end


def recover(files: Files, wanted: Identity, *, accept_loss: bool) -> RecoveredLog:
    """Read what a locked directory holds; a new log is made in an empty one.

    Whatever can be read counts, also if it was never acknowledged. It is synced before anything is done with it, above all
    before segments are deleted that were published entirely.

    Args:
        files: the directory, locked.
        wanted: whose log it should be; its id is that of a new one.
        accept_loss: go on if acknowledged records are missing, and note which.

    Raises:
        LogDamaged: something is not as it was written, or is missing.
        PartitionsMismatch: the log has another number of partitions, or belongs to another topic.
        OSError: the disk fails.
    """
    for name in files.names():
        if name.endswith(TEMPORARY):
            files.remove(name)
    files.sync_directory()
    names = sorted(name for name in files.names() if name.endswith(SUFFIX))
    identity = _identity(files, wanted, names)
    segments = [read_header(files, name, identity.log_id, identity.partitions) for name in names]
    position = read_position(files)
    if position is None:
        begin = segments[0].base if segments else 0
        position = make_position(files, begin, begin)
    sequences = _find_ends(files, segments, position.durable) if segments else [0] * identity.partitions
    segments, spare = _needed(segments, position)
    reached = segments[-1].end if segments else 0
    end = max(reached, position.durable, position.published, *(after for _, after in identity.losses))
    losses = _losses(segments, position.published, reached, end, identity.losses)
    if losses:
        if not accept_loss:
            raise _lost(files, losses, reached, end)
        if losses[-1][1] > reached:  # nobody knows what the missing end was given after the last note
            end += UNNOTED
            losses[-1] = losses[-1][0], end
        identity = replace(identity, losses=(*identity.losses, *losses))
        write_identity(files, identity)
    for segment in spare:
        files.remove(segment.name)
    # Each offset that was given up may have had a number of any partition.
    return RecoveredLog(identity, position, segments, end, [number + end - reached for number in sequences])


def _identity(files: Files, wanted: Identity, segments: list[str]) -> Identity:
    stored = read_identity(files)
    if stored is None:
        if segments or POSITION in files.names():
            raise LogDamaged(
                f"{files.where}/{IDENTITY} is missing, but there are files of a log: restore it from a copy, or use another directory"
            )
        write_identity(files, wanted)
        return wanted
    if (stored.topic, stored.partitions) != (wanted.topic, wanted.partitions):
        raise PartitionsMismatch(
            f"The write-ahead log in {files.where} is for topic {stored.topic} with partitions={stored.partitions}, but is opened "
            f"for {wanted.topic} with partitions={wanted.partitions}. Both are permanent, so that keys keep their partitions: "
            "open it as it was made, or give the new one a directory of its own"
        ).at(stored.topic)
    return stored


def _find_ends(files: Files, segments: list[Segment], durable: int) -> list[int]:
    """Find where the records of each segment end; returns the next sequence numbers. What is before `durable` was certainly synced."""
    for segment, following in pairwise(segments):
        if following.previous == (segment.epoch, segment.base):
            segment.end = following.previous_end
        else:  # the one between is missing
            _scan(files, segment)
        segment.size = files.size(segment.name)
    # What can be read may be in the memory of the operating system alone. It must not be published, and then be lost
    # with the machine: its numbers would be given again.
    files.sync(segments[-1].name)
    return _scan(files, segments[-1], durable)


def _needed(segments: list[Segment], position: Position) -> tuple[list[Segment], list[Segment]]:
    """The segments from the first record on that is not published; and those before, which a crash may have left.

    The last one is always needed: its header has the numbers.
    """
    waiting = (index for index, segment in enumerate(segments[:-1]) if segment.end > position.published)
    first = next(waiting, max(len(segments) - 1, 0))
    return segments[first:], segments[:first]


def _scan(files: Files, segment: Segment, durable: int | None = None) -> list[int]:
    """Read a segment to its end, and set that; returns the next sequence numbers.

    What comes after `durable`, of the last segment, may have been written in part.
    """
    sequences, at = list(segment.sequences), header_size(len(segment.sequences))
    segment.end = segment.base
    try:
        for stored in groups(files, segment, at, files.size(segment.name)):
            if stored.first != segment.end:
                raise damaged(
                    files, segment, at, f"a group from offset {stored.first} on follows {segment.end}"
                )
            entries(files, segment, stored, sequences, at)
            segment.end, at = stored.first + stored.count, stored.after
    except TornTail:
        pass
    except LogDamaged:
        torn = durable is not None and segment.end >= durable and is_partly_written(files, segment, at)
        if not torn:
            raise
    segment.size = at
    return sequences


def _losses(
    segments: list[Segment], published: int, reached: int, end: int, known: tuple[tuple[int, int], ...]
) -> list[tuple[int, int]]:
    """The offsets of records that should be there and are not, and were not given up before.

    A missing end is damage even if all that is known of it was published: later records may have been in it.
    """
    losses, expected = list[tuple[int, int]](), published
    for segment in segments:
        if segment.base > expected:
            losses.append((expected, segment.base))
        expected = max(expected, segment.end)
    if end > reached:
        losses.append((expected, end))
    return [loss for loss in losses if not any(first <= loss[0] and loss[1] <= last for first, last in known)]


def _lost(files: Files, losses: list[tuple[int, int]], reached: int, end: int) -> LogDamaged:
    named = ", ".join(f"{first} to {after - 1}" for first, after in losses if first < after)
    missing = [f"Acknowledged records are missing: offsets {named}."] if named else []
    if losses[-1][1] > reached:
        missing.append(f"It ends at offset {reached}, expected {end} or more.")
    return LogDamaged(
        f"The write-ahead log in {files.where} is not complete. {' '.join(missing)} Look for segments that were moved away, or "
        "cut by the file system, and restore them; or open the log with accept_loss=True, which notes in log.json what is "
        "missing and goes on after it"
    )
