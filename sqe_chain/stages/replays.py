"""SQE's replay filter: the highest source offset seen of each producer and source partition.

The key of a record names the producer that wrote it, its source partition and its source offset (`sqe_key.py`). A record
passes if its (process id, partition) is new, or its offset is greater than the highest that passed. A record whose key is null or
not 20 bytes long always passes. Marks are kept for each input partition.

    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.envelope.sqe_key import SqeKey
    >>> from sqe_chain.stages.table import MemoryTable
    >>> replays = SqeReplays(MemoryTable())
    >>> [replays.accept(Record(key=SqeKey(1, 0, offset).to_bytes())).forward for offset in (5, 6, 5, 6, 7)]
    [True, True, False, False, True]

Correct where each producer writes in the order of its source partition. With envelopes, replays of upstream
services are recognised without this filter; it is for topics that SQE writes, or wrote.

What differs from SQE, unless `compat="sqe"`:

* **Siblings.** What a flat-map makes of one source offset carries one key. With an equal offset a record of the same
  root message passes if it is new: on another lane, or later on its own. Records without envelopes are roots of their own, so among those an equal offset is
  a replay, as in SQE.
* **Recreated topics.** An input topic with another topic id has no marks. (A recreated *source* topic cannot be
  recognised by the key; give its producer another name.)
* **Expiry** is in milliseconds, in SQE whole seconds.

In both, a batch that fails leaves nothing behind: marks are published with the commit.

Source: SQE, "Replay Filtering", `FilteredTridentCollector`; after the proposal that became Kafka's idempotent
producer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sqe_chain._proto.filters_pb2 import SqeInputs, SqeMark, SqeMarks
from sqe_chain.chain import ROOT_LENGTH, b64
from sqe_chain.envelope.sqe_key import SqeKey, read_sqe_key
from sqe_chain.errors import TooManyLanes
from sqe_chain.flow.declaration import check_choice, check_duration, check_int
from sqe_chain.flow.filtering import DAY_MS
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.provenance import input_row, remember, spot_of
from sqe_chain.stages.record import FORWARD, Reason, Record, Spot, Verdict, dropped
from sqe_chain.stages.record_work import FORWARDING
from sqe_chain.stages.timed_stage import RuleKind

EXPIRY_MS: Final = 2 * DAY_MS
"""How long a mark is kept after the last record that passed: two days, as in SQE."""
_MAX_MARKS: Final = 10_000
"""Producers and source partitions of one input partition."""
_MAX_SIBLING_LANES: Final = 64
"""Lanes on which the siblings of one source offset reach one input partition."""

Source = tuple[int, int]
"""Process id and source partition."""
Marks = dict[Source, SqeMark]

_INPUTS: Final = b"inputs"
"""The row that lists the others. Its name comes first: it depends on them, and they do not depend on it."""
_MARKS: Final = b"marks/"
_SECOND_MS: Final = 1000
_MOST_LIMIT: Final = 10_000_000


class SqeReplays:
    """The filter, for all records of one state partition.

    State: one row for each input partition, with a mark for each (process id, source partition) with a record within the expiry.
    A mark takes at most 45 bytes, and where records have positions, 35 bytes and a position for each lane of the last source
    offset. One more row lists those rows. `finish` purges the marks of all input partitions, idle ones included.

    Args:
        table: where marks are kept.
        expiry_ms: a mark is purged at the end of a batch if no record of it has passed for longer than this, by
            the batches' clocks.
        compat: "sqe" for SQE's own rule: no siblings, no topic ids, whole seconds.
        max_marks: limit for one input partition; marks count until the end of the batch in which they expire.
        max_lanes: limit of lanes on which siblings arrive.

    Raises:
        FlowError: a setting is out of its bounds.
    """

    def __init__(
        self,
        table: RowTable,
        *,
        expiry_ms: int = EXPIRY_MS,
        compat: Literal["sqe"] | None = None,
        max_marks: int = _MAX_MARKS,
        max_lanes: int = _MAX_SIBLING_LANES,
    ) -> None:
        where = type(self).__name__
        check_duration("expiry_ms", expiry_ms, where)
        check_choice("compat", compat, ("sqe", None), where)
        check_int("max_marks", max_marks, 1, _MOST_LIMIT, where)
        check_int("max_lanes", max_lanes, 1, _MOST_LIMIT, where)
        self._table = table
        self._expiry_ms = expiry_ms
        self._exact = compat == "sqe"
        self._max_marks = max_marks
        self._max_lanes = max_lanes
        self._rows: LiveRows[Marks] = LiveRows(table, _read, _written)
        self._looked_at: set[bytes] = set()
        self._accepted: dict[bytes, set[Source]] = {}

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` and `finish` will ask for first."""
        keyed = (record for record in records if read_sqe_key(record.key) is not None)
        return [_INPUTS, *dict.fromkeys(map(self._row, keyed))]

    def accept(self, record: Record) -> Verdict:
        """Decide one record.

        Returns:
            REPLAY for one that is dropped. `original` is the last record with this key that passed, if possible on the same
            lane. It is None where the offset is older than the mark.

        Raises:
            TooManyLanes: a limit is reached; nothing was changed.
        """
        key = read_sqe_key(record.key)
        if key is None:
            return FORWARD
        row = self._row(record)
        self._looked_at.add(row)
        marks = self._rows[row]
        source = key.process_id, key.partition
        mark = marks.get(source)
        if mark is None:
            if len(marks) >= self._max_marks:
                raise TooManyLanes(
                    f"{record}: more than {self._max_marks} pairs of producer and source partition in this "
                    "input partition. Raise max_marks, or check that its keys are SQE's: any 20 bytes look like one"
                )
            mark = marks[source] = SqeMark(process_id=key.process_id, partition=key.partition)
            self._move(mark, key, record)
        elif key.offset > mark.offset:
            self._move(mark, key, record)
        elif key.offset < mark.offset or not self._take_sibling(mark, record):
            detail = f"source offset {key.offset}, but {mark.offset} has passed"
            original = _original(mark, record) if key.offset == mark.offset else None
            return dropped(Reason.REPLAY, detail, original)
        self._accepted.setdefault(row, set()).add(source)
        return FORWARD

    def finish(self, now_ms: int) -> None:
        """Stamp the marks that moved with the batch's clock, purge those that expired, write what changed."""
        listed = list(SqeInputs.FromString(self._table.get(_INPUTS) or b"").rows)
        rows = sorted({*listed, *self._looked_at})
        self._table.load(rows)
        # A row that is emptied below stays listed until the next batch, for the redo after a crash between two chunks.
        kept = sorted({*(row for row in listed if self._rows[row]), *self._accepted})
        for row in rows:
            self._age(row, now_ms)
        if kept != listed:
            self._write_inputs(kept)
        self._rows.write()
        self._looked_at.clear()
        self._accepted.clear()

    def _row(self, record: Record) -> bytes:
        return _MARKS + input_row(record, topic_id=not self._exact)

    def _move(self, mark: SqeMark, key: SqeKey, record: Record) -> None:
        mark.offset = key.offset
        # Another source offset: what passed of the one before cannot be its sibling.
        mark.root = 0
        del mark.passed[:]
        if record.spot.position and not self._exact:
            mark.root = _root(record)
            remember(mark.passed.add(), record)

    def _take_sibling(self, mark: SqeMark, record: Record) -> bool:
        """Whether a record with the mark's offset is a sibling not seen yet; if so, note it."""
        if not mark.passed or mark.root != _root(record):
            return False
        for passed in mark.passed:
            if passed.lane == record.spot.lane:
                if record.spot.position <= passed.position:
                    return False
                remember(passed, record)
                return True
        if len(mark.passed) >= self._max_lanes:
            raise TooManyLanes(
                f"{record}: records of source offset {mark.offset} arrive on more than "
                f"{self._max_lanes} lanes: raise max_lanes, or look for a loop of services"
            )
        remember(mark.passed.add(), record)
        return True

    def _age(self, row: bytes, now_ms: int) -> None:
        marks = self._rows[row]
        # Once a batch, with the batch's clock: a redo stamps the same.
        for source in self._accepted.get(row, ()):
            marks[source].accepted_ms = now_ms
        expired = [source for source, mark in marks.items() if self._expired(mark.accepted_ms, now_ms)]
        for source in expired:
            del marks[source]
        if expired or row in self._accepted:
            self._rows.changed(row)

    def _expired(self, accepted_ms: int, now_ms: int) -> bool:
        if self._exact:
            return now_ms // _SECOND_MS - accepted_ms // _SECOND_MS > self._expiry_ms // _SECOND_MS
        return now_ms - accepted_ms > self._expiry_ms

    def _write_inputs(self, rows: list[bytes]) -> None:
        if rows:
            self._table.put(_INPUTS, SqeInputs(rows=rows).SerializeToString(deterministic=True))
        else:
            self._table.delete(_INPUTS)


def _root(record: Record) -> int:
    topic, topic_id, partition = record.root
    number = partition.to_bytes(4, "big", signed=True)
    return b64(topic.encode(), topic_id, number, record.spot.position[:ROOT_LENGTH])


def _original(mark: SqeMark, record: Record) -> Spot | None:
    if not mark.passed:
        return None
    same_lane = (passed for passed in mark.passed if passed.lane == record.spot.lane)
    return spot_of(next(same_lane, mark.passed[0]))


def _read(content: bytes | None) -> Marks:
    marks = SqeMarks.FromString(content or b"").marks
    return {(mark.process_id, mark.partition): mark for mark in marks}


def _written(marks: Marks) -> bytes | None:
    if not marks:
        return None
    ordered = [marks[source] for source in sorted(marks)]
    return SqeMarks(marks=ordered).SerializeToString(deterministic=True)


@dataclass(frozen=True)
class ReplaysKind(RuleKind[SqeReplays]):
    """The kind of ``drop_replays(by="source")``."""

    name = "replays"
    rule = SqeReplays
    traits = replace(FORWARDING, method="drop_replays", order="times", spread="partition")

    expiry_ms: int
    compat: Any = None
