"""Each kind of injected fault happens where the test asked for it, and the service survives it with exact states."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import ConfigurationError, StoreInconsistent, Superseded
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal


def add(total: Int64Value, number: Int64Value) -> list[Int64Value]:
    total.value += number.value
    return [number]


def sums(**options: object) -> Rehearsal:
    flow = Flow("sums", state_partitions=2)
    first = flow.source("numbers", Int64Value).aggregate(
        "per-digit", key=lambda n: str(n.value % 10), state=Int64Value, fold=add
    )
    first.aggregate("all", key=lambda _: "all", state=Int64Value, fold=add).changes().to(
        "totals", partitions=1
    )
    return Rehearsal(flow, **options)  # type: ignore[arg-type]


def feed(found: Rehearsal, *numbers: int) -> None:
    for number in numbers:
        found.feed("numbers", Int64Value(value=number))


def total(found: Rehearsal) -> int:
    return int(found.states("all")[b"all"].value)


@pytest.mark.parametrize("of", ["broker", "store"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_is_waited_for_by_the_same_run(of: str, when: str) -> None:
    found = sums()
    run = found.start()
    feed(found, *range(10))
    found.outage(of, when=when, calls=3)  # type: ignore[arg-type]
    found.run_until_caught_up()
    assert found.service is run
    assert len(found.events("waiting")) == 3
    assert total(found) == 45


def test_an_outage_can_be_for_writes_only_and_come_later() -> None:
    found = sums()
    found.start()
    feed(found, 1, 2)
    before = len(found.script.written)
    found.outage("store", writes=True, at=1)
    found.run_until_caught_up()
    (wait,) = found.events("waiting")
    assert wait["what"] != "seal plan 1"  # the first write of the batch was passed
    assert len(found.script.written) > before + 2
    assert total(found) == 3


def test_every_call_of_a_batch_can_be_the_last() -> None:
    probe = sums(max_rows_per_write=1, block_records=2)
    probe.start()
    feed(probe, *range(6))
    calls = probe.script.calls
    probe.run_until_caught_up()
    assert probe.script.calls - calls > 20
    for number in range(probe.script.calls - calls):
        found = sums(max_rows_per_write=1, block_records=2)
        found.start()
        feed(found, *range(6))
        found.crash_at_call(number)
        found.run_until_caught_up()
        assert (found.crashes, total(found)) == (1, 15), number


def test_what_was_armed_and_not_reached_can_be_taken_back() -> None:
    found = sums()
    found.crash(step=7)
    found.crash_at_write(1_000)
    found.crash_at_call(1_000)
    found.outage(at=1_000)
    found.cancel()
    feed(found, 1)
    found.run_until_caught_up()
    assert (found.crashes, found.script.injected, found.script.writes, found.script.steps) == (
        0,
        [],
        set(),
        {},
    )


def test_a_run_pauses_while_another_does_its_work_and_wakes_as_a_zombie() -> None:
    found = sums()
    zombie = found.start()
    feed(found, 1, 2, 3)
    seen = []

    def others() -> None:
        found.start()
        found.run_until_caught_up()
        seen.append(total(found))

    found.meanwhile(others, of="store", writes=True)
    with pytest.raises(Superseded):
        zombie.batch()
    assert seen == [6]
    assert total(found) == 6


def test_what_is_armed_is_not_for_those_at_work_meanwhile() -> None:
    found = sums()
    found.start()
    feed(found, 1)
    found.crash_at_call(3)

    def another() -> None:
        found.start()
        found.run_until_caught_up()

    found.meanwhile(another)
    found.run_until_caught_up()
    assert found.crashes == 1
    assert total(found) == 1


def test_a_zombie_is_set_aside_and_wakes_when_asked() -> None:
    found = sums()
    zombie = found.zombie()
    feed(found, 5)
    found.run_until_caught_up()
    feed(found, 6)
    with pytest.raises(Superseded):
        zombie.wake()
    found.run_until_caught_up()
    assert total(found) == 11


def test_a_supervisor_starts_again_what_was_superseded_or_had_no_answer_for_too_long() -> None:
    found = sums()
    found.start()
    feed(found, 1)
    found.outage("broker", calls=150)
    found.run_until_caught_up()
    assert found.ended == 1
    other = sums(log=found.log, store=found.stores)
    feed(found, 2)
    other.start()
    found.run_until_caught_up()
    assert found.ended == 2
    assert total(found) == 3


def test_a_state_partition_goes_back_and_the_service_reports_it() -> None:
    found = sums()
    feed(found, 1)
    found.run_until_caught_up()
    copies = found.copy_stores()
    feed(found, 2)
    found.run_until_caught_up()
    found.roll_back(copies, stage="all")
    assert total(found) == 1
    with pytest.raises(StoreInconsistent):
        found.restart()
    found.rebuild()
    found.run_until_caught_up()
    assert total(found) == 3


def test_a_whole_store_goes_back() -> None:
    found = sums()
    feed(found, 1)
    found.run_until_caught_up()
    copies = found.copy_stores()
    feed(found, 2)
    found.run_until_caught_up()
    found.roll_back(copies)
    with pytest.raises(StoreInconsistent):
        found.restart()
    found.start(settings_of(accept_rollback=True, takeover=True, allow_weak_durability=True))
    found.run_until_caught_up()
    assert total(found) == 3


def test_blocks_and_chunks_are_as_small_as_is_asked_for() -> None:
    found = sums(block_records=1, max_rows_per_write=1)
    feed(found, *range(4))
    found.run_until_caught_up()
    assert any("part of the next" in what for what in found.script.written)
    assert found.log.bounds([("numbers", 0)])["numbers", 0].stable_end == 4
    with pytest.raises(ConfigurationError):
        found.log.set_block(0)


def test_the_clock_begins_at_the_given_time_and_jumps() -> None:
    found = sums(now_ms=1_700_000_000_000)
    found.clock.jump(-5_000)
    assert found.clock.now_ms() == 1_699_999_995_001


def test_a_republisher_is_rewound() -> None:
    flow = Flow("hop")
    flow.source("numbers", Int64Value).to("out", partitions=1)
    found = Rehearsal(flow)
    feed(found, 1, 2)
    found.run_until_caught_up()
    found.rewind({("numbers", 0): 1})
    found.run_until_caught_up()
    assert [envelope.payload_as(Int64Value).value for envelope in found.published("out")] == [1, 2, 2]
    with pytest.raises(ConfigurationError, match="rebuild"):
        sums().rewind(0)


def test_a_fault_waits_for_one_call_of_a_port() -> None:
    found = sums()
    found.start()
    feed(found, 1, 2, 3)
    found.outage(method="headers", at=1)
    seen: list[int] = []
    found.meanwhile(
        lambda: seen.append(found.script.made["broker", "publish"]), method="publish", when="after"
    )
    found.crash_at_call(1, method="write")
    written = found.script.made["store", "write"]
    found.run_until_crash()
    assert (seen, found.crashes, found.script.made["store", "write"] - written) == ([1], 1, 2)
    found.run_until_caught_up()
    (waited,) = found.events("waiting")
    assert "headers" in str(waited["what"])
    assert total(found) == 6
