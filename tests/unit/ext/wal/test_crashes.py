"""Goal: whatever call is the last one, what was acknowledged counts once. Method: die at, or refuse, every single call."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from typing import Any

import pytest

from sqe_chain.errors import ChainError, LogUnwritable
from sqe_chain.ext.wal import MemoryFiles, Publisher
from sqe_chain.testing.faults import Crash
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.wal_faults import (
    Fault,
    Faults,
    FaultyFiles,
    Source,
    assert_exact,
    counted,
    new_broker,
    open_log,
    publish_all,
)

ANYTHING = random.Random(7)
Ending = Callable[[MemoryFiles], MemoryFiles]
ENDINGS: dict[str, Ending] = {
    "killed": MemoryFiles.killed,
    "power lost, nothing unsynced is there": MemoryFiles.power_lost,
    "power lost, half is there": lambda files: files.power_lost(lambda most: most // 2),
    "power lost, almost all is there": lambda files: files.power_lost(lambda most: max(0, most - 1)),
    "power lost, every other sector is there": lambda files: files.power_lost(
        lambda most: most, cycle((False, True)).__next__
    ),
    "power lost, the others are there": lambda files: files.power_lost(
        lambda most: most, cycle((True, False)).__next__
    ),
    "power lost, anything is there": lambda files: files.power_lost(lambda most: ANYTHING.randint(0, most)),
}
GROUPS = (1, 3, 2, 5, 1, 1, 8, 2, 4, 1, 6, 3)


def run(files: Any, broker: Any, source: Source, *, patient: bool = False) -> None:
    """Two lives of a log: append, publish, trim, close, open again, and so on."""
    for life in range(2):
        log = None
        while log is None:
            try:
                log = open_log(files)
            except LogUnwritable:
                assert patient
        publisher = Publisher(log, broker)
        for number, count in enumerate(GROUPS):
            source.send(log, count)
            if number % 3 == life:
                try:
                    publisher.publish()
                    if number % 2:
                        log.save()
                    log.trim()
                except ChainError:
                    assert patient
        with suppress(LogUnwritable):
            log.close()


def calls() -> list[str]:
    faults = Faults()
    broker = new_broker("wal-crashes")
    run(FaultyFiles(MemoryFiles(), faults), faulty_log(broker, faults), Source())
    return faults.calls


CALLS = calls()


def test_the_run_does_everything_that_a_log_does() -> None:
    kinds = {" ".join(call.split()[: 2 if call.startswith("broker") else 1]) for call in CALLS}
    assert kinds == {
        "create", "write", "overwrite", "truncate", "sync", "rename", "remove", "sync_directory", "broker publish", "broker flush",
    }  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("fault", ["before", "half", "after"])
def test_a_crash_at_every_call(fault: Fault, ending: str) -> None:
    for number, call in enumerate(CALLS):
        faults, disk, source = Faults({number: fault}), MemoryFiles(), Source()
        broker = new_broker("wal-crashes")
        with pytest.raises(Crash):
            run(FaultyFiles(disk, faults), faulty_log(broker, faults), source)
        try:
            after = ENDINGS[ending](disk)
            go_on(after, broker, source)
        except BaseException as error:
            raise AssertionError(f"{fault} call {number}, {call}, {ending}: {error!r}") from error


def go_on(disk: MemoryFiles, broker: Any, source: Source) -> None:
    """The life after a crash: it appends, publishes, and is exact."""
    with open_log(disk) as log:
        source.send(log, 3)
        publish_all(log, broker)
        source.send(log, 2)
        publish_all(log, broker)
    assert_exact(broker, source)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_second_crash_while_the_first_is_repaired(ending: str) -> None:
    draw = random.Random(20)
    for _ in range(40):
        source, broker = Source(), new_broker("wal-crashes")
        disk = MemoryFiles()
        for _ in range(3):
            faults = Faults({draw.randrange(len(CALLS)): draw.choice(["before", "half", "after"])})
            with suppress(Crash):
                run(FaultyFiles(disk, faults), faulty_log(broker, faults), source)
            disk = ENDINGS[draw.choice(["killed", ending])](disk)
        go_on(disk, broker, source)


def test_what_a_kill_left_in_memory_is_durable_before_anything_is_built_on_it() -> None:
    for number, call in enumerate(CALLS):
        if call.startswith("sync 0"):
            disk, source, broker = MemoryFiles(), Source(), new_broker("wal-crashes")
            faults = Faults({number: "before"})
            with pytest.raises(Crash):
                run(FaultyFiles(disk, faults), faulty_log(broker, faults), source)
            disk = disk.killed()
            source.send(open_log(disk), 1)
            go_on(disk.power_lost(), broker, source)


@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize("fault", ["full", "full half"])
def test_a_full_disk_is_an_error_and_loses_nothing(fault: Fault, length: int) -> None:
    for number, call in enumerate(CALLS):
        faults = Faults(dict.fromkeys(range(number, number + length), fault))
        disk, source, broker = MemoryFiles(), Source(), new_broker("wal-crashes")
        run(FaultyFiles(disk, faults), faulty_log(broker, faults), source, patient=True)
        go_on(disk.killed(), broker, source)
        refused = set(source.refused) & set(counted(broker))
        assert not refused, f"{fault} call {number}, {call}: refused, and published: {refused}"


@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize("fault", ["refused", "refused half"])
def test_a_disk_and_a_broker_that_refuse_everything_lose_nothing(fault: Fault, length: int) -> None:
    for number in range(len(CALLS)):
        faults = Faults(dict.fromkeys(range(number, number + length), fault))
        disk, source, broker = MemoryFiles(), Source(), new_broker("wal-crashes")
        run(FaultyFiles(disk, faults), faulty_log(broker, faults), source, patient=True)
        go_on(disk.killed(), broker, source)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_crash_soon_after_a_full_disk(ending: str) -> None:
    for number in range(0, len(CALLS), 2):
        for later in (1, 2, 4):
            faults = Faults({number: "refused half", number + later: "half"})
            disk, source, broker = MemoryFiles(), Source(), new_broker("wal-crashes")
            with suppress(Crash):
                run(FaultyFiles(disk, faults), faulty_log(broker, faults), source, patient=True)
            go_on(ENDINGS[ending](disk), broker, source)
