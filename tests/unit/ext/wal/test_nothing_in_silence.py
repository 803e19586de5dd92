"""Goal: a record that was acknowledged is published or named as lost, and its offset never has another record.

Method: every history dies at every call and loses every file. The ledger here knows records and numbers, nothing of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import pytest

from sqe_chain.errors import LogDamaged
from sqe_chain.ext.wal import Limits, MemoryFiles, Publisher, Record, WriteAheadLog
from sqe_chain.ext.wal.recovery import UNNOTED
from sqe_chain.testing.faults import Crash
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.wal_faults import PARTITIONS, TOPIC, Fault, Faults, FaultyFiles, new_broker, open_log

TWO_IN_A_SEGMENT = Limits(max_bytes=1 << 20, segment_bytes=1_024, max_record_bytes=500, group_bytes=1_024)
KEYS = (b"robot-1", b"robot-2")
"""One for each partition."""


def names_alone() -> Callable[[int], int]:
    """A choice for `power_lost`: names are on the disk, and no content that was not synced."""
    first = iter((True,))
    return lambda most: most if next(first, False) else 0


ENDINGS: dict[str, Callable[[MemoryFiles], MemoryFiles]] = {
    "killed": MemoryFiles.killed,
    "power lost, names are there": lambda files: files.power_lost(names_alone()),
    "power lost, nothing is there": MemoryFiles.power_lost,
}


@dataclass
class Ledger:
    """What a source was promised, and what a reader of the topic got."""

    broker: Any = field(default_factory=lambda: new_broker("wal-ledger"))
    promised: dict[int, bytes] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    clock: Iterator[int] = field(default_factory=lambda: count(1_000, 1_000))

    def open(self, files: Any, *, accept_loss: bool = False) -> WriteAheadLog:
        return open_log(files, next(self.clock), limits=TWO_IN_A_SEGMENT, accept_loss=accept_loss)

    def append(self, log: WriteAheadLog, records: int) -> list[bytes]:
        """Append groups of one record."""
        values = []
        for _ in range(records):
            number = next(self.numbers)
            value = b"%d;" % number
            offset = log.append(Record(value + bytes(350), KEYS[number % 2]))
            assert offset not in self.promised, f"offset {offset} is given out again"
            self.promised[offset] = value
            values.append(value)
        return values

    def publish(self, log: WriteAheadLog, most: int = 100, broker: Any = None) -> None:
        """Publish groups, at most that number."""
        publisher = Publisher(log, broker or self.broker, batch_records=1)
        for _ in range(most):
            if not publisher.publish():
                break

    def counted(self) -> dict[int, list[tuple[int, int, bytes]]]:
        """Epoch, number and value of what a reader takes that wants rising numbers, by partition."""
        taken: dict[int, list[tuple[int, int, bytes]]] = {partition: [] for partition in range(PARTITIONS)}
        for message in self.broker.records(TOPIC):
            headers, value = dict(message.headers()), message.value()
            number = int(headers["sqe-wal-epoch"]), int(headers["sqe-wal-sequence"])
            before = taken[message.partition()]
            if not before or number > before[-1][:2]:
                before.append((*number, value[: value.index(b";") + 1]))
        return taken

    def check(self, log: WriteAheadLog, new: list[bytes]) -> None:
        """Everything counts once or is named as lost; a loss shows in the numbers of its partition."""
        taken = self.counted()
        values = [value for found in taken.values() for _, _, value in found]
        assert len(values) == len(set(values)), "something counts twice"
        assert set(new) <= set(values), f"never counted: {set(new) - set(values)}"
        for offset, value in self.promised.items():
            if value not in values:
                assert any(first <= offset < end for first, end in log.losses), f"lost in silence: {offset}"
                numbers = [number for _, number, _ in taken[int(value[:-1]) % 2]]
                whole = numbers[0] == 0 and all(after <= before + 1 for before, after in pairwise(numbers))
                assert not whole, f"readers do not see that offset {offset} is lost"


def work(ledger: Ledger, files: Any, broker: Any = None, *, accept_loss: bool = False) -> None:
    """A short life: it does everything that a log does."""
    log = ledger.open(files, accept_loss=accept_loss)
    ledger.append(log, 3)
    ledger.publish(log, 3, broker)
    log.save()
    ledger.append(log, 2)
    ledger.publish(log, 1, broker)
    log.trim()
    ledger.append(log, 1)
    log.close()


def move_away(disk: MemoryFiles, damaged: str) -> None:
    if damaged in disk.names():
        disk.remove(damaged)


def repaired(ledger: Ledger, disk: MemoryFiles, damaged: str) -> WriteAheadLog | None:
    """Do what errors and docs advise: move the file away, then accept the loss. None: `log.json` is needed."""
    for accept in (False, False, True):
        disk = disk.killed()
        try:
            log = ledger.open(disk, accept_loss=accept)
            ledger.publish(log)
        except LogDamaged:
            move_away(disk, damaged)
        else:
            return log
    assert damaged == "log.json"
    return None


def go_on(ledger: Ledger, log: WriteAheadLog) -> None:
    """Work on, close, and open again: what was accepted is never asked again."""
    assert log.position == log.end, "the log waits for records that are not there"
    new = ledger.append(log, 3)
    ledger.publish(log)
    ledger.check(log, new)
    losses, disk = log.losses, log.files
    log.close()
    with ledger.open(disk) as again:
        assert again.losses == losses
        new = ledger.append(again, 2)
        ledger.publish(again)
        ledger.check(again, new)


def calls_of(life: Callable[[Any, Any], None], disk: MemoryFiles, ledger: Ledger) -> int:
    faults = Faults()
    life(FaultyFiles(disk, faults), faulty_log(ledger.broker, faults))
    return len(faults.calls)


def die(
    ledger: Ledger, disk: MemoryFiles, number: int, fault: Fault, *, accept_loss: bool = False
) -> MemoryFiles:
    """Work until a call; returns the disk as the process left it."""
    faults = Faults({number: fault})
    with suppress(Crash):
        work(ledger, FaultyFiles(disk, faults), faulty_log(ledger.broker, faults), accept_loss=accept_loss)
    return disk


_OPENING = 16
"""Calls of the next process: it opens the log, and appends its first record."""


@pytest.mark.parametrize("second", ENDINGS)
@pytest.mark.parametrize("first", ENDINGS)
def test_a_process_and_the_next_one_die_at_any_two_calls(first: str, second: str) -> None:
    begun = Ledger()
    calls = calls_of(lambda files, broker: work(begun, files, broker), MemoryFiles(), begun)
    for number in range(calls):
        for later in range(_OPENING):
            ledger = Ledger()
            disk = ENDINGS[first](die(ledger, MemoryFiles(), number, "before"))
            disk = ENDINGS[second](die(ledger, disk, later, "before"))
            try:
                log = ledger.open(disk)
                ledger.publish(log)
                assert not log.losses
                go_on(ledger, log)
            except BaseException as error:
                raise AssertionError(f"call {number}, then call {later}: {error!r}") from error


def killed_unnoted(ledger: Ledger, disk: MemoryFiles) -> None:
    ledger.append(ledger.open(disk), 5)


def killed_after_two_epochs(ledger: Ledger, disk: MemoryFiles) -> None:
    ledger.append(ledger.open(disk), 3)
    disk.unlock()
    ledger.append(ledger.open(disk), 4)


def saved_in_the_middle(ledger: Ledger, disk: MemoryFiles) -> None:
    log = ledger.open(disk)
    ledger.append(log, 6)
    ledger.publish(log, 3)
    log.save()


def saved_early(ledger: Ledger, disk: MemoryFiles) -> None:
    log = ledger.open(disk)
    ledger.append(log, 3)
    ledger.publish(log)
    log.save()
    ledger.append(log, 1)


def published_and_saved(ledger: Ledger, disk: MemoryFiles) -> None:
    log = ledger.open(disk)
    ledger.append(log, 6)
    ledger.publish(log)
    log.save()


def published_and_not_saved(ledger: Ledger, disk: MemoryFiles) -> None:
    log = ledger.open(disk)
    ledger.append(log, 6)
    ledger.publish(log)


def trimmed(ledger: Ledger, disk: MemoryFiles) -> None:
    published_and_saved(ledger, disk)
    disk.unlock()
    log = ledger.open(disk)
    ledger.append(log, 1)
    ledger.publish(log)
    log.trim()
    ledger.append(log, 1)
    log.close()


def given_up_before(ledger: Ledger, disk: MemoryFiles) -> None:
    killed_unnoted(ledger, disk)
    disk.unlock()
    move_away(disk, max(name for name in disk.names() if name.endswith(".wal")))
    log = ledger.open(disk, accept_loss=True)
    ledger.append(log, 3)
    log.save()


HISTORIES = (
    killed_unnoted, killed_after_two_epochs, saved_in_the_middle, saved_early, published_and_saved,
    published_and_not_saved, trimmed, given_up_before,
)  # fmt: skip
NOTED = {saved_in_the_middle, published_and_saved, trimmed, given_up_before}
"""Where a cut anywhere is known to be one: everything was noted."""


def lived(history: Callable[[Ledger, MemoryFiles], None]) -> tuple[Ledger, MemoryFiles]:
    ledger, disk = Ledger(), MemoryFiles()
    history(ledger, disk)
    return ledger, disk.killed()


def harms(content: bytes, *, noted: bool) -> Iterator[bytes | None]:
    """What may become of a file: gone, a changed bit, or cut."""
    yield None
    for place in range(0, len(content), 61 if len(content) < 5_000 else 1_021):
        yield content[:place] + bytes((content[place] ^ 4,)) + content[place + 1 :]
        if noted:
            yield content[:place]


@pytest.mark.parametrize("history", HISTORIES)
def test_any_file_that_is_gone_changed_or_cut_loses_nothing_in_silence(history: Any) -> None:
    for name, content in lived(history)[1].contents().items():
        for harm in harms(content, noted=history in NOTED):
            ledger, disk = lived(history)
            contents = {**disk.contents(), name: harm}
            disk = MemoryFiles({file: found for file, found in contents.items() if found is not None})
            try:
                log = repaired(ledger, disk, name)
                if log is not None:
                    go_on(ledger, log)
            except BaseException as error:
                raise AssertionError(f"{name} of {len(content)} bytes, {harm!r}: {error!r}") from error


@pytest.mark.parametrize("history", HISTORIES)
def test_all_segments_that_are_gone_are_missed(history: Any) -> None:
    ledger, disk = lived(history)
    disk = MemoryFiles({name: found for name, found in disk.contents().items() if not name.endswith(".wal")})
    with pytest.raises(LogDamaged, match="expected"):
        ledger.open(disk)
    log = ledger.open(disk, accept_loss=True)
    before = log.position
    assert Publisher(log, ledger.broker).publish() == log.end - before > 0
    go_on(ledger, log)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("history", HISTORIES)
def test_a_process_that_accepts_a_loss_dies_at_any_call(history: Any, ending: str) -> None:
    for name in [name for name in lived(history)[1].names() if name.endswith(".wal")]:
        for number in count():
            ledger, disk = lived(history)
            move_away(disk, name)
            disk.sync_directory()
            faults = Faults({number: "before"})
            try:
                work(ledger, FaultyFiles(disk, faults), faulty_log(ledger.broker, faults), accept_loss=True)
            except Crash:
                pass
            else:
                break
            try:
                log = repaired(ledger, ENDINGS[ending](disk), name)
                assert log is not None
                go_on(ledger, log)
            except BaseException as error:
                raise AssertionError(f"{name} is gone, call {number}: {error!r}") from error


def test_an_end_that_is_lost_reaches_as_far_as_anything_can_be_acknowledged_without_a_note() -> None:
    """Large groups, so that notes by number of records matter."""
    limits = Limits(1 << 24, 1 << 23, 1_000, 3_000, 1 << 20)
    files = MemoryFiles()
    log = open_log(files, limits=limits)
    for _ in range(11):
        framed = log.framed([Record(b"x", KEYS[0])] * 3_000, iter(()))
        log.append_frames(framed.pieces, framed.partitions)
        contents = {name: found for name, found in files.contents().items() if not name.endswith(".wal")}
        with open_log(MemoryFiles(contents), limits=limits, accept_loss=True) as again:
            assert again.append(Record(b"y", KEYS[0])) >= log.end
            assert again.losses == ((0, again.end - 1),)
            assert again.end <= log.end + UNNOTED + 1


def test_what_is_read_is_durable_before_a_segment_is_deleted() -> None:
    """Disks need not keep the order of names, so no loss of power in memory shows it."""
    ledger, disk = lived(published_and_saved)
    faults = Faults()
    ledger.open(FaultyFiles(disk, faults))
    assert [call.split(maxsplit=1)[0] for call in faults.calls[:5]] == [
        "sync_directory",
        "sync",
        "sync",
        "remove",
        "remove",
    ]
    assert {call.split("-")[0] for call in faults.calls[1:3]} == {
        "sync position",
        "sync 00000000000000000004",
    }


def test_log_json_that_is_gone_is_missed_without_segments_too() -> None:
    _, disk = lived(published_and_saved)
    contents = {"position": disk.contents()["position"]}
    with pytest.raises(LogDamaged, match=r"log\.json is missing"):
        open_log(MemoryFiles(contents), accept_loss=True)
