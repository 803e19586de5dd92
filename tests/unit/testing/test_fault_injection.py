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


def feed(rehearsal: Rehearsal, *numbers: int) -> None:
    for number in numbers:
        rehearsal.feed("numbers", Int64Value(value=number))


def total(rehearsal: Rehearsal) -> int:
    return int(rehearsal.states("all")[b"all"].value)


def test_a_fault_that_could_never_happen_is_refused() -> None:
    rehearsal = sums()
    with pytest.raises(ConfigurationError, match=r"step=8\. Expected one of 1, 2,"):
        rehearsal.crash(step=8)
    with pytest.raises(ConfigurationError, match="of='stores'"):
        rehearsal.outage("stores")  # type: ignore[arg-type]
    for method, of in (("reed", None), ("commit", "store")):
        with pytest.raises(ConfigurationError, match=rf"method='{method}'\. Expected one of .*read, "):
            rehearsal.meanwhile(list, of=of, method=method)  # type: ignore[arg-type]


@pytest.mark.parametrize("of", ["broker", "store"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outage_is_waited_for_by_the_same_run(of: str, when: str) -> None:
    rehearsal = sums()
    run = rehearsal.start()
    feed(rehearsal, *range(10))
    rehearsal.outage(of, when=when, calls=3)  # type: ignore[arg-type]
    rehearsal.run_until_caught_up()
    assert rehearsal.service is run
    assert len(rehearsal.events("waiting")) == 3
    assert total(rehearsal) == 45


def test_an_outage_can_be_for_writes_only_and_come_later() -> None:
    rehearsal = sums()
    rehearsal.start()
    feed(rehearsal, 1, 2)
    before = len(rehearsal.script.written)
    rehearsal.outage("store", writes=True, at=1)
    rehearsal.run_until_caught_up()
    (wait,) = rehearsal.events("waiting")
    assert wait["what"] != "seal plan 1"  # the first write of the batch was passed
    assert len(rehearsal.script.written) > before + 2
    assert total(rehearsal) == 3


def test_every_call_of_a_batch_can_be_the_last() -> None:
    probe = sums(max_rows_per_write=1, block_records=2)
    probe.start()
    feed(probe, *range(6))
    calls = probe.script.calls
    probe.run_until_caught_up()
    assert probe.script.calls - calls > 20
    for number in range(probe.script.calls - calls):
        rehearsal = sums(max_rows_per_write=1, block_records=2)
        rehearsal.start()
        feed(rehearsal, *range(6))
        rehearsal.crash_at_call(number)
        rehearsal.run_until_caught_up()
        assert (rehearsal.crashes, total(rehearsal)) == (1, 15), number


def test_what_was_armed_and_not_reached_can_be_taken_back() -> None:
    rehearsal = sums()
    rehearsal.crash(step=7)
    rehearsal.crash_at_write(1_000)
    rehearsal.crash_at_call(1_000)
    rehearsal.outage(at=1_000)
    rehearsal.cancel()
    feed(rehearsal, 1)
    rehearsal.run_until_caught_up()
    assert (
        rehearsal.crashes,
        rehearsal.script.injected,
        rehearsal.script.writes,
        rehearsal.script.steps,
    ) == (
        0,
        [],
        set(),
        {},
    )


def test_a_run_pauses_while_another_does_its_work_and_wakes_as_a_zombie() -> None:
    rehearsal = sums()
    zombie = rehearsal.start()
    feed(rehearsal, 1, 2, 3)
    seen = []

    def others() -> None:
        rehearsal.start()
        rehearsal.run_until_caught_up()
        seen.append(total(rehearsal))

    rehearsal.meanwhile(others, of="store", writes=True)
    with pytest.raises(Superseded):
        zombie.batch()
    assert seen == [6]
    assert total(rehearsal) == 6


def test_what_is_armed_is_not_for_those_at_work_meanwhile() -> None:
    rehearsal = sums()
    rehearsal.start()
    feed(rehearsal, 1)
    rehearsal.crash_at_call(3)

    def another() -> None:
        rehearsal.start()
        rehearsal.run_until_caught_up()

    rehearsal.meanwhile(another)
    rehearsal.run_until_caught_up()
    assert rehearsal.crashes == 1
    assert total(rehearsal) == 1


def test_a_zombie_is_set_aside_and_wakes_when_asked() -> None:
    rehearsal = sums()
    zombie = rehearsal.zombie()
    feed(rehearsal, 5)
    rehearsal.run_until_caught_up()
    feed(rehearsal, 6)
    with pytest.raises(Superseded):
        zombie.wake()
    rehearsal.run_until_caught_up()
    assert total(rehearsal) == 11


def test_a_supervisor_starts_again_what_was_superseded_or_had_no_answer_for_too_long() -> None:
    rehearsal = sums()
    rehearsal.start()
    feed(rehearsal, 1)
    rehearsal.outage("broker", calls=150)
    rehearsal.run_until_caught_up()
    assert rehearsal.ended == 1
    other = sums(log=rehearsal.log, store=rehearsal.stores)
    feed(rehearsal, 2)
    other.start()
    rehearsal.run_until_caught_up()
    assert rehearsal.ended == 2
    assert total(rehearsal) == 3


def test_a_state_partition_goes_back_and_the_service_reports_it() -> None:
    rehearsal = sums()
    feed(rehearsal, 1)
    rehearsal.run_until_caught_up()
    copies = rehearsal.copy_stores()
    feed(rehearsal, 2)
    rehearsal.run_until_caught_up()
    rehearsal.roll_back(copies, stage="all")
    assert total(rehearsal) == 1
    with pytest.raises(StoreInconsistent):
        rehearsal.restart()
    rehearsal.rebuild()
    rehearsal.run_until_caught_up()
    assert total(rehearsal) == 3


def test_a_whole_store_goes_back() -> None:
    rehearsal = sums()
    feed(rehearsal, 1)
    rehearsal.run_until_caught_up()
    copies = rehearsal.copy_stores()
    feed(rehearsal, 2)
    rehearsal.run_until_caught_up()
    rehearsal.roll_back(copies)
    with pytest.raises(StoreInconsistent):
        rehearsal.restart()
    rehearsal.start(settings_of(accept_rollback=True, takeover=True, allow_weak_durability=True))
    rehearsal.run_until_caught_up()
    assert total(rehearsal) == 3


def test_blocks_and_chunks_are_as_small_as_is_asked_for() -> None:
    rehearsal = sums(block_records=1, max_rows_per_write=1)
    feed(rehearsal, *range(4))
    rehearsal.run_until_caught_up()
    assert any("part of the next" in what for what in rehearsal.script.written)
    assert rehearsal.log.bounds([("numbers", 0)])["numbers", 0].stable_end == 4
    with pytest.raises(ConfigurationError):
        rehearsal.log.set_block(0)


def test_the_clock_begins_at_the_given_time_and_jumps() -> None:
    rehearsal = sums(now_ms=1_700_000_000_000)
    rehearsal.clock.jump(-5_000)
    assert rehearsal.clock.now_ms() == 1_699_999_995_001


def test_a_republisher_is_rewound() -> None:
    flow = Flow("hop")
    flow.source("numbers", Int64Value).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    feed(rehearsal, 1, 2)
    rehearsal.run_until_caught_up()
    rehearsal.rewind({("numbers", 0): 1})
    rehearsal.run_until_caught_up()
    assert [envelope.payload_as(Int64Value).value for envelope in rehearsal.published("out")] == [1, 2, 2]
    with pytest.raises(ConfigurationError, match="rebuild"):
        sums().rewind(0)


def test_a_fault_waits_for_one_call_of_a_port() -> None:
    rehearsal = sums()
    rehearsal.start()
    feed(rehearsal, 1, 2, 3)
    rehearsal.outage(method="headers", at=1)
    seen: list[int] = []
    rehearsal.meanwhile(
        lambda: seen.append(rehearsal.script.made["broker", "publish"]), method="publish", when="after"
    )
    rehearsal.crash_at_call(1, method="write")
    written = rehearsal.script.made["store", "write"]
    rehearsal.run_until_crash()
    assert (seen, rehearsal.crashes, rehearsal.script.made["store", "write"] - written) == ([1], 1, 2)
    rehearsal.run_until_caught_up()
    (waited,) = rehearsal.events("waiting")
    assert "headers" in str(waited["what"])
    assert total(rehearsal) == 6
