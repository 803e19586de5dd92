"""Sequence numbers, as juplo uses them: a record is forwarded if its number is greater than the last one.

For producers that number their messages but may send one twice, at two offsets: no chain can show that.

    >>> from sqe_chain.stages.record import Record
    >>> from sqe_chain.stages.table import MemoryTable
    >>> stale = StaleSequences(MemoryTable(), sequence=lambda record: record.value)
    >>> [stale.accept(Record(value=number)).forward for number in (1, 2, 3, 2, 3, 4)]
    [True, True, True, False, False, True]

Needs numbers that grow strictly within a scope, and records that arrive in that order:

* `partition`, the input partition: each has one producer, or all producers share one sequence (juplo's case);
* `lane`: one sequence for each path, where different republishers distinguish the producers;
* `key`: one sequence for each key.

**Several producers in one scope** have sequences of their own if `producer` finds a name that distinguishes them.

Numbers may be skipped. A gap is reported (`GAP`), but means a loss only where a scope has a sequence of its own.

**Restarts.** A producer that begins again at 1 is dropped until it passes its old mark, unless an `epoch` shows the
restart: a number that is greater after each one (a counter, the start time). A greater epoch resets the mark, a
smaller one is stale. Numbers that go on in a greater epoch and skip some are a gap, too.

**Late first arrivals.** With `window=N` a record is also forwarded if its number is new and less than N below the highest.
A bit for each number remembers it, as in IPsec's anti-replay window. Order is not restored.

    >>> window = StaleSequences(MemoryTable(), sequence=lambda record: record.value, window=3)
    >>> [window.accept(Record(value=number)).forward for number in (9, 8, 7, 7, 6)]
    [True, True, True, False, False]

**Siblings.** What a flat-map makes of one message carries one number if that is read from key or header; each
is forwarded once.

`compat="juplo"` behaves like the published transformer: the scope is the partition's number whatever the topic, and there are no
siblings and no gaps. Epoch, producer, window and policies other than `stop` are refused.

Source: juplo, "Deduplicating Partitioned Data With a Kafka Streams ValueTransformer"; the window: RFC 4303,
section 3.4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from sqe_chain._proto.filters_pb2 import Passed, SequenceMark
from sqe_chain.errors import FlowError, PoisonError, text_of
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.declaration import check_bool, check_choice, check_int
from sqe_chain.flow.filtering import MAX_WINDOW
from sqe_chain.flow.functions import DeclaredFunction
from sqe_chain.flow.shapes import check_callable
from sqe_chain.flow.stage_kind import StageTraits
from sqe_chain.flow.table import RowTable
from sqe_chain.stages.identity import rows_of
from sqe_chain.stages.live_rows import LiveRows
from sqe_chain.stages.provenance import input_row, is_sibling, remember, spot_of
from sqe_chain.stages.record import FORWARD, Reason, Record, Verdict, dropped
from sqe_chain.stages.record_work import FORWARDING, Extract, RecordFunctions
from sqe_chain.stages.timed_stage import RuleKind

Extractor = Callable[[Record], int | None]
"""Finds a number in a record. None, or an exception: the record is malformed."""
ProducerExtractor = Callable[[Record], bytes | str | None]
"""Finds the name of a producer in a record. None, or an exception: the record is malformed."""
Scope = Literal["partition", "lane", "key"]
MalformedPolicy = Literal["stop", "drop", "pass", "dead_letter"]

_LARGEST: Final = 2**63 - 1
_LONGEST_NAME: Final = 255
PRODUCER_ROW: Final = b"producer/"
"""Begins the rows of producers; then the length of the producer's name in one byte, the name, and the row of the scope."""


class StaleSequences:
    """The filter, for all scopes of one state partition.

    State: one row for each scope and producer ever seen: for each input partition (with topic id), lane, or key. A row is
    at most 75 bytes, the position of the last record, and one bit for each number of the window. Rows do not
    expire.

    Args:
        table: where numbers are kept.
        sequence: finds the sequence number of a record: a signed integer of 64 bits.
        scope: what has a sequence of its own.
        epoch: finds the number that distinguishes a producer's restarts; None: there is none.
        producer: finds what distinguishes producers that write into one scope, at most 255 bytes; None: each scope has one.
        malformed: what becomes of a record without a number, or with one that is no integer or too large. `stop` raises, `drop`
            drops it, `pass` forwards it, `dead_letter` makes a dead-letter record of it. All but `stop` give MALFORMED.
        window: how many numbers, from the highest downwards, are remembered one by one; 0 and 1: the highest only.
        gaps: report gaps.
        compat: "juplo" to behave like the published transformer.

    Raises:
        FlowError: a setting is out of its bounds, or does not go with this `compat`.
    """

    def __init__(  # noqa: PLR0913 - settings, by keyword
        self,
        table: RowTable,
        *,
        sequence: Extractor,
        scope: Scope = "partition",
        epoch: Extractor | None = None,
        producer: ProducerExtractor | None = None,
        malformed: MalformedPolicy = "stop",
        window: int = 0,
        gaps: bool = True,
        compat: Literal["juplo"] | None = None,
    ) -> None:
        _check(scope, epoch or producer, malformed, window, compat)
        check_callable("sequence", sequence, type(self).__name__)
        if epoch is not None:
            check_callable("epoch", epoch, type(self).__name__)
        if producer is not None:
            check_callable("producer", producer, type(self).__name__)
        check_bool("gaps", gaps, type(self).__name__)
        self._sequence = sequence
        self._scope: Scope = scope
        self._epoch = epoch
        self._producer = producer
        self._malformed: MalformedPolicy = malformed
        self._window = max(window, 1)
        self._exact = compat == "juplo"
        self._gaps = gaps and not self._exact
        self._rows: LiveRows[_Seen] = LiveRows(table, self._read, self._written)

    def rows_for(self, records: Iterable[Record]) -> Iterable[bytes]:
        """The rows that `accept` will ask for: one for each scope."""
        return rows_of(self._row, records)

    def accept(self, record: Record) -> Verdict:
        """Decide one record.

        Returns:
            STALE: dropped, not greater than the highest of its scope, or of an older epoch. DUPLICATE: dropped,
            in the window and seen before. Both name the `original` if it is the last record forwarded. GAP: it is
            forwarded, numbers before it are missing; `detail` begins with how many. MALFORMED: see `malformed`.

        Raises:
            PoisonError: a malformed record under policy `stop`; or one without the scope: a null key,
                an element without a lane. Nothing was changed.
        """
        try:
            row = self._row(record)
        except Exception as error:  # noqa: BLE001 - an extractor is user code and may raise anything
            return self._refuse(record, error)
        if row is None:
            missing = "a null key" if self._scope == "key" else "no lane"
            raise PoisonError(f"{record}: {missing} at drop_stale(scope={self._scope!r}): use another scope")
        try:
            sequence = _checked(self._sequence(record), "sequence number")
            epoch = 0 if self._epoch is None else _checked(self._epoch(record), "epoch")
        except Exception as error:  # noqa: BLE001 - an extractor is user code and may raise anything
            return self._refuse(record, error)
        # The scope changes only after both extractors have succeeded: a malformed record leaves no trace.
        seen = self._rows[row]
        verdict = self._decide(seen, epoch, sequence, record)
        if verdict.forward:
            seen.last = sequence
            remember(seen.passed, record)
            self._rows.changed(row)
        return verdict

    def finish(self, now_ms: int) -> None:  # noqa: ARG002 - nothing expires
        """Write the rows of the scopes that moved; numbers do not expire."""
        self._rows.write()

    def _decide(self, seen: _Seen, epoch: int, sequence: int, record: Record) -> Verdict:
        if epoch < seen.epoch and not seen.fresh:
            return dropped(Reason.STALE, f"epoch {epoch}, but {seen.epoch} has begun")
        begins = seen.fresh or epoch > seen.epoch
        if not begins and sequence <= seen.highest:
            return self._not_ahead(seen, sequence, record)
        missing = 0 if seen.fresh else sequence - seen.highest - 1
        detail = f"{missing} missing between {seen.highest} and {sequence}"
        if begins:
            seen.fresh, seen.epoch, seen.highest, seen.bits = False, epoch, sequence, 1
        else:
            seen.advance(sequence, self._window)
        return (
            Verdict(forward=True, reason=Reason.GAP, detail=detail) if missing > 0 and self._gaps else FORWARD
        )

    def _not_ahead(self, seen: _Seen, sequence: int, record: Record) -> Verdict:
        # Before the window: a sibling carries a number that was seen, so the bits would call it a duplicate.
        same = sequence == seen.last
        if same and not self._exact and is_sibling(record, seen.passed):
            return FORWARD
        below = seen.highest - sequence
        original = spot_of(seen.passed) if same else None
        if below >= self._window or self._window == 1:
            return dropped(Reason.STALE, f"number {sequence}, the highest is {seen.highest}", original)
        if seen.bits >> below & 1:
            return dropped(Reason.DUPLICATE, f"number {sequence} was seen", original)
        seen.bits |= 1 << below
        return FORWARD

    def _refuse(self, record: Record, error: Exception) -> Verdict:
        raise_outage(error, str(record))
        detail = f"{record}: malformed: {type(error).__name__}: {text_of(error)}"
        if self._malformed == "stop":
            raise PoisonError(
                f"{detail}; fix the extractor or the producer, or choose malformed='drop', 'pass' or 'dead_letter'"
            ) from error
        return Verdict(
            forward=self._malformed == "pass",
            reason=Reason.MALFORMED,
            detail=detail,
            dead_letter=self._malformed == "dead_letter",
        )

    def _row(self, record: Record) -> bytes | None:
        """The row of a record's scope and producer; None when it has no scope."""
        scope = self._scope_row(record)
        if self._producer is None or scope is None:
            return scope
        return PRODUCER_ROW + _checked_name(self._producer(record)) + scope

    def _scope_row(self, record: Record) -> bytes | None:
        if self._exact:
            return b"number/%d" % record.partition
        if self._scope == "partition":
            return b"partition/" + input_row(record)
        if self._scope == "lane":
            return b"lane/" + record.spot.lane.to_bytes(8, "big") if record.spot.lane else None
        return None if record.key is None else b"key/" + record.key

    def _read(self, content: bytes | None) -> _Seen:
        if content is None:
            return _Seen()
        mark = SequenceMark.FromString(content)
        # Bit 0 is the highest number itself. A row that was written without a window has no bits.
        bits = int.from_bytes(mark.seen, "little") | 1
        known = max(mark.window, 1)
        if known < self._window:
            # A smaller window remembered nothing of the numbers below it: treat them as seen, so none is forwarded twice.
            bits |= (1 << self._window) - (1 << known)
        bits &= (1 << self._window) - 1
        return _Seen(
            fresh=False, epoch=mark.epoch, highest=mark.highest, bits=bits, last=mark.last, passed=mark.passed
        )

    def _written(self, seen: _Seen) -> bytes:
        bits = seen.bits.to_bytes((self._window + 7) // 8, "little") if self._window > 1 else b""
        return SequenceMark(
            epoch=seen.epoch,
            highest=seen.highest,
            window=self._window,
            seen=bits,
            last=seen.last,
            passed=seen.passed,
        ).SerializeToString(deterministic=True)


@dataclass(slots=True)
class _Seen:
    """A scope while a batch runs.

    Attributes:
        fresh: nothing was seen yet.
        bits: bit i: number highest - i was seen; as many as the window is wide.
    """

    fresh: bool = True
    epoch: int = 0
    highest: int = 0
    bits: int = 0
    last: int = 0
    passed: Passed = field(default_factory=Passed)

    def advance(self, sequence: int, window: int) -> None:
        """Make a greater number the highest."""
        ahead = sequence - self.highest
        # Do not shift by a jump beyond the window: the result could be 2^64 bits wide.
        self.bits = 1 if ahead >= window else (self.bits << ahead | 1) & (1 << window) - 1
        self.highest = sequence


def _checked(number: int | None, what: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"the {what} is {type(number).__name__}, not an integer")
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise ValueError(f"the {what} does not fit into 64 bits")
    return number


def _checked_name(name: bytes | str | None) -> bytes:
    """The name of a producer, after its length."""
    if not isinstance(name, bytes | str):
        raise TypeError(f"the producer is {type(name).__name__}, not bytes or str")
    encoded = name.encode() if isinstance(name, str) else name
    if len(encoded) > _LONGEST_NAME:
        raise ValueError(f"the producer has {len(encoded)} bytes; at most {_LONGEST_NAME}")
    return bytes((len(encoded),)) + encoded


def _check(scope: str, epoch: object, malformed: str, window: int, compat: str | None) -> None:
    """Refuse settings that cannot work."""
    where = "StaleSequences"
    check_choice("scope", scope, ("partition", "lane", "key"), where)
    check_choice("malformed", malformed, ("stop", "drop", "pass", "dead_letter"), where)
    check_int("window", window, 0, MAX_WINDOW, where)
    check_choice("compat", compat, ("juplo", None), where)
    if compat and (scope != "partition" or epoch is not None or malformed != "stop" or window > 1):
        raise FlowError(
            f"{where}: compat='juplo' takes no scope, epoch, producer, window or policy for malformed records; leave them out"
        )


@dataclass(frozen=True)
class SequencesKind(RuleKind[StaleSequences]):
    """The kind of `drop_stale`."""

    name = "sequences"
    rule = StaleSequences

    sequence: DeclaredFunction
    scope: Any = "partition"
    epoch: DeclaredFunction | None = None
    producer: DeclaredFunction | None = None
    malformed: Any = "stop"
    window: int = 0
    compat: Any = None

    @property
    def traits(self) -> StageTraits:
        return replace(FORWARDING, method="drop_stale", order="times", spread=self.scope)

    def wrapped(self, function: DeclaredFunction, functions: RecordFunctions) -> Extract:
        return functions.of(function, catch=True)  # `malformed` decides what becomes of what it raises

    def check(self, where: str, *, dead_letters: bool) -> None:
        super().check(where, dead_letters=dead_letters)
        if self.malformed == "dead_letter" and not dead_letters:
            raise FlowError(f"{where}: malformed='dead_letter' needs a flow with poison='dead_letter'")
