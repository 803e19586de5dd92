"""The plant is the same everywhere, its totals can be recomputed, and the simulator sends just that."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from services import simulate
from services._proto.fastening_pb2 import RawReport
from services.expected import expected
from services.reports import LINES, ROBOTS, reports
from services.simulate import PARTITIONS, TOPIC, Leash, Pace, produce
from sqe_chain.envelope.message import read
from sqe_chain.envelope.partitioner import partition_of
from tests.support.waiting import eventually


def test_a_seed_gives_the_same_reports_on_every_machine() -> None:
    plant = b"".join(report.SerializeToString(deterministic=True) for report in reports(7, 1000))

    assert hashlib.sha256(plant).hexdigest() == (
        "b62940d4fecf0facc152c50abe51084f89017599c4555f7e8ea832b5f909b030"
    )


def test_another_seed_gives_another_plant() -> None:
    assert list(reports(1, 10)) != list(reports(2, 10))


def test_fewer_reports_are_a_prefix_of_more_and_the_start_moves_times_only() -> None:
    few, more = list(reports(7, 20)), list(reports(7, 50, start_ms=1000))
    for number, report in enumerate(more):
        assert report.timestamp_ms == 1000 + number
        report.timestamp_ms -= 1000

    assert more[:20] == few


def test_one_report_may_yield_several_keys_and_each_key_several_events() -> None:
    plant = list(reports(7, 1000))

    assert {len(report.robots) for report in plant} == {1, 2}
    assert {len(robot.joints) for report in plant for robot in report.robots} == {1, 2, 3}


def test_a_robot_stays_behind_one_gateway_so_its_order_is_defined() -> None:
    gateways: dict[str, set[str]] = {}
    for report in reports(7, 5000):
        for robot in report.robots:
            gateways.setdefault(robot.robot, set()).add(report.gateway)

    assert len(gateways) == ROBOTS
    assert {len(names) for names in gateways.values()} == {1}


def test_the_robots_of_each_line_are_in_several_partitions() -> None:
    partitions: dict[str, set[int]] = {}
    for report in reports(7, 5000):
        for robot in report.robots:
            partitions.setdefault(robot.line, set()).add(partition_of(robot.robot.encode(), 4))

    assert {len(numbers) for numbers in partitions.values()} == {4}
    assert len(partitions) == LINES


def test_totals_by_robot_and_by_line_agree_with_a_plain_sum() -> None:
    plant = list(reports(7, 300))
    joints = [joint for report in plant for robot in report.robots for joint in robot.joints]

    truth = expected(plant)

    assert truth.reports == 300
    assert truth.messages == sum(len(report.robots) for report in plant)
    for totals in (truth.robots.values(), truth.lines.values()):
        assert sum(total.events for total in totals) == len(joints) == truth.events
        assert sum(total.fastened for total in totals) == sum(joint.fastened for joint in joints)
        assert sum(total.failed for total in totals) == sum(joint.failed for joint in joints)
        assert sum(total.torque_mnm for total in totals) == sum(joint.torque_mnm for joint in joints)
    assert sum(line.robots for line in truth.lines.values()) == len(truth.robots)
    assert truth.keys == len(truth.robots) + len(truth.lines)


def test_the_newest_report_of_a_robot_is_expected() -> None:
    newest: dict[str, int] = {}
    for report in reports(7, 300):
        newest.update(dict.fromkeys((robot.robot for robot in report.robots), report.number))

    truth = expected(reports(7, 300))

    assert {name: total.last_report for name, total in truth.robots.items()} == newest


class FakeWriter:
    """Remembers what was written and what was acknowledged."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.acknowledged = 0

    def connect(self, topics: Any) -> None:
        pass

    def write(self, outputs: Any) -> None:
        self.written.extend(outputs)

    def flush(self) -> None:
        self.acknowledged = len(self.written)

    def close(self) -> None:
        pass


def test_the_simulator_sends_the_reports_enveloped_and_keyed_by_gateway() -> None:
    writer = FakeWriter()

    produced = produce(writer, reports(7, 1000), Leash(), messages=250)

    assert produced == writer.acknowledged == 250
    for (topic, partition, key, value, headers, time_ms), report in zip(
        writer.written, reports(7, 250), strict=True
    ):
        envelope = read(value, strict=True)
        assert envelope.payload_as(RawReport) == report
        assert envelope.key == key == report.gateway.encode()
        assert (topic, partition) == (TOPIC, partition_of(key, PARTITIONS))
        assert len(envelope.chain) == 0
        assert headers is None
        assert time_ms == envelope.timestamp_ms
    assert len(Counter(read(row[3]).event_id for row in writer.written)) == 250


def test_the_simulator_goes_on_until_it_is_ordered_to_finish() -> None:
    leash = Leash(finish=False)

    def plant() -> Any:
        for report in reports(7, 10_000):
            if report.number == 500:
                leash.obey(["finish"])
            yield report

    assert produce(FakeWriter(), plant(), leash, messages=100) == 500
    assert produce(FakeWriter(), reports(7, 10_000), leash, messages=1000) == 1000


def test_the_simulator_waits_until_more_is_allowed() -> None:
    leash = Leash(0, finish=False)
    writer = FakeWriter()
    orders: SimpleQueue[str] = SimpleQueue()
    arguments = {"messages": 400, "rate": 1e9}
    plant = Thread(target=produce, args=(writer, reports(7, 10_000), leash), kwargs=arguments, daemon=True)
    orderly = Thread(target=leash.obey, args=(iter(orders.get, ""),), daemon=True)
    plant.start()
    orderly.start()

    def reached(size: int) -> bool:
        return len(writer.written) >= size

    for allowed in (150, 250):
        orders.put(f"{allowed}\n")
        eventually(partial(reached, allowed), "as many as are allowed")
        assert len(writer.written) - allowed < 100, "a block more at most"
    orders.put("")
    plant.join(20)

    assert writer.acknowledged == 400


def test_the_simulator_keeps_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Noting(Leash):
        def wait(self, produced: int, pause_s: float) -> None:
            pauses.append(pause_s)

    monkeypatch.setattr(simulate, "Pace", partial(Pace, clock=lambda: 0.0))
    produce(FakeWriter(), reports(7, 1000), Noting(), messages=300, rate=1000)
    assert pauses == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("messages", [0, 300])
def test_the_simulator_goes_on_where_the_topic_ends(messages: int) -> None:
    """Killed, it has written a prefix in each partition; afterwards each report is there once, in order."""
    whole, rest = FakeWriter(), FakeWriter()
    produce(whole, reports(7, 1000), Leash(), messages=300)
    by_partition = [[row for row in whole.written if row[1] == place] for place in range(PARTITIONS)]
    already = {0: 40, 1: 0, 2: len(by_partition[2])}

    produced = produce(rest, reports(7, 1000), Leash(), messages=messages, already=already)

    assert produced == (300 if messages else max(_numbers(by_partition[2][-1:])) + 1)
    for place, count in already.items():
        wanted = [number for number in _numbers(by_partition[place][count:]) if number < produced]
        assert _numbers([row for row in rest.written if row[1] == place]) == wanted


def _numbers(rows: list[Any]) -> list[int]:
    return [read(row[3]).payload_as(RawReport).number for row in rows]


@pytest.mark.parametrize(
    ("rate", "produced", "now", "pause"), [(10, 5, 0.2, 0.3), (10, 5, 0.9, 0), (0, 5, 0, 0)]
)
def test_the_pace_holds_back_what_comes_too_early(
    rate: float, produced: int, now: float, pause: float
) -> None:
    times = iter([0.0, now])

    assert Pace(rate, clock=lambda: next(times)).pause_s(produced) == pytest.approx(pause)
