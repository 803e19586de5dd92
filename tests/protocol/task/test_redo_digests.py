"""Goal: a redo that differs in one thing alone stops before it publishes: in one partition, key, header, time, or in the order.

Method: a crash right after the seal; then the same flow with a function that gives something else for one of twenty inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from sqe_chain import Flow
from sqe_chain.errors import PlanMismatch
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Output
from sqe_chain.task import source_partition
from sqe_chain.task.dead_letters import dead_letter
from sqe_chain.task.digest import (
    CURRENT,
    VERSION,
    dead_letters_digests,
    of_dead_letters,
    of_headers,
    of_topic,
    outputs_digests,
)
from sqe_chain.task.results import Job
from sqe_chain.testing import Crash, Rehearsal
from tests.support.plans import last_plan

INPUTS = 20
PARTITIONS = 4
Change = Callable[[dict[str, Any]], dict[str, Any]]


def flow_with(
    *,
    emitted: Change = lambda value: value,
    added: Callable[[int], int] = lambda _: 1,
    later: Callable[[int], int] = lambda _: 0,
    reverses: bool = False,
    carrier: Literal["payload", "headers"] = "payload",
) -> Flow:
    def fold(state: dict[str, Any], value: dict[str, Any]) -> None:
        state["n"] = state.get("n", 0) + added(value["n"])

    def both(value: dict[str, Any]) -> list[dict[str, Any]]:
        pair = [emitted(value), {"n": -value["n"]}]
        return pair[::-1] if reverses and value["n"] == 1 else pair

    flow = Flow("digests", state_partitions=PARTITIONS, poison="dead_letter")
    source = flow.source("numbers", dict, raw=True, timestamp=lambda value: 1_000 + later(value["n"]))
    outputs: dict[str, Any] = {} if carrier == "payload" else {"carrier": carrier}
    source.flat_map(both).to("copies", key=lambda value: str(value["n"]), partitions=PARTITIONS, **outputs)
    source.aggregate("sums", key=lambda value: str(value["n"]), state=dict, fold=fold)
    return flow


def crashed(flow: Flow) -> Rehearsal:
    rehearsal = Rehearsal(flow, partitions={"numbers": 2})
    rehearsal.start()
    for number in range(INPUTS):
        rehearsal.feed("numbers", {"n": number}, partition=number % 2)
    rehearsal.feed("numbers", b"rubbish")
    rehearsal.crash(step=4, when="after")
    with pytest.raises(Crash):
        rehearsal.batch()
    return rehearsal


def stops(rehearsal: Rehearsal, flow: Flow, where: str) -> None:
    rehearsal.flow = flow
    with pytest.raises(PlanMismatch, match=f"in {where}"):
        rehearsal.start()
    assert rehearsal.log.records("copies") == []
    assert rehearsal.states("sums") == {}


@pytest.mark.parametrize("number", range(6))
def test_one_output_that_differs_is_found_whatever_its_partition(number: int) -> None:
    rehearsal = crashed(flow_with())
    other = flow_with(emitted=lambda value: {**value, "more": 1} if value["n"] == number else value)
    stops(rehearsal, other, r"topic/copies\.")


@pytest.mark.parametrize("carrier", ["payload", "headers"])
@pytest.mark.parametrize("number", range(6))
def test_one_output_that_differs_and_is_as_long_is_found(
    number: int, carrier: Literal["payload", "headers"]
) -> None:
    """An envelope ends with its own checksum: a CRC-32 over all of it is the same number for every envelope of that length."""
    rehearsal = crashed(flow_with(emitted=lambda value: {**value, "more": 1}, carrier=carrier))
    other = flow_with(emitted=lambda value: {**value, "more": 1 + (value["n"] == number)}, carrier=carrier)
    stops(rehearsal, other, r"[^.]*topic/copies\.")


@pytest.mark.parametrize("carrier", ["payload", "headers"])
def test_values_that_two_outputs_have_exchanged_are_found(carrier: Literal["payload", "headers"]) -> None:
    rehearsal = crashed(flow_with(emitted=lambda value: {**value, "more": value["n"] % 2}, carrier=carrier))
    other = flow_with(
        emitted=lambda value: {**value, "more": (value["n"] + (value["n"] in {4, 5})) % 2}, carrier=carrier
    )
    stops(rehearsal, other, r"[^.]*topic/copies\.")


@pytest.mark.parametrize("number", range(6))
def test_one_state_that_differs_is_found_whatever_its_partition(number: int) -> None:
    rehearsal = crashed(flow_with())
    stops(rehearsal, flow_with(added=lambda value: 2 if value == number else 1), r"states/sums/\d\.")


def test_another_order_is_found() -> None:
    stops(crashed(flow_with()), flow_with(reverses=True), r"topic/copies\.")


def test_headers_that_differ_are_found() -> None:
    """With the carrier `headers` the time of an event is nowhere else."""
    rehearsal = crashed(flow_with(carrier="headers"))
    other = flow_with(carrier="headers", later=lambda value: int(value == 1))
    stops(rehearsal, other, r"headers/copies\.")


@pytest.mark.parametrize("carrier", ["payload", "headers"])
def test_another_watermark_is_found(
    monkeypatch: pytest.MonkeyPatch, carrier: Literal["payload", "headers"]
) -> None:
    """It is in an envelope beside payloads, wherever that is."""
    rehearsal = crashed(flow_with(carrier=carrier))
    with monkeypatch.context() as patched:
        patched.setattr(Job, "watermarks", property(lambda _: {"copies": 777}))
        stops(rehearsal, flow_with(carrier=carrier), "(headers|topic)/copies")


def test_a_dead_letter_record_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = crashed(flow_with())

    def make_another(*arguments: Any, **options: Any) -> Output:
        record = dead_letter(*arguments, **options)
        return (*record[:3], b"something else", *record[4:])

    with monkeypatch.context() as patched:
        patched.setattr(source_partition, "dead_letter", make_another)
        stops(rehearsal, flow_with(), "dead letters/")


def without_new_digests(read: Callable[[bytes], Plan], *, versioned: bool) -> Callable[[bytes], Plan]:
    """Reads plans as if they had digests of keys, values and states alone."""

    def read_less(data: bytes) -> Plan:
        plan = read(data)
        kept = ("topic/", "states/", VERSION) if versioned else ("topic/", "states/")
        gives = {name: value for name, value in (plan.gives or {}).items() if name.startswith(kept)}
        return replace(plan, gives=None if plan.gives is None else gives)

    return read_less


def test_a_plan_with_older_digests_is_redone_and_compared_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version has noted neither headers nor dead-letter records."""
    monkeypatch.setattr(Plan, "from_bytes", without_new_digests(Plan.from_bytes, versioned=False))
    rehearsal = crashed(flow_with(carrier="headers"))
    stops(rehearsal, flow_with(carrier="headers", added=lambda _: 2), r"states/sums/\d,")
    rehearsal.flow = flow_with(carrier="headers")
    rehearsal.start()
    assert len(rehearsal.states("sums")) == INPUTS


def test_a_plan_with_the_digests_of_now_has_given_what_it_lacks_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Plan, "from_bytes", without_new_digests(Plan.from_bytes, versioned=True))
    flow = flow_with(carrier="headers")
    stops(crashed(flow), flow, "dead letters/.*, headers/copies")


def test_a_sealed_plan_has_the_version_of_its_digests() -> None:
    plan = last_plan(crashed(flow_with(carrier="headers")).stores[""], "digests")
    assert plan.gives is not None
    assert plan.gives[VERSION] == CURRENT
    assert {of_topic("copies"), of_headers("copies")} < plan.gives.keys()


# --- what a digest covers --------------------------------------------------------------------------------

HEADERS: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", b"2")]
RECORDS: list[Output] = [
    ("t", 0, b"k", b"v", HEADERS, 1),
    ("t", 1, b"l", b"w", None, 1),
]
RECORD, OTHER = RECORDS
CHANGED: dict[str, list[Output]] = {
    "a record is missing": [OTHER],
    "a record is there twice": [RECORD, RECORD, OTHER],
    "another topic": [("u", *RECORD[1:]), OTHER],
    "another partition": [("t", 1, *RECORD[2:]), OTHER],
    "another key": [("t", 0, b"m", *RECORD[3:]), OTHER],
    "another value": [(*RECORD[:3], b"x", *RECORD[4:]), OTHER],
    "values of two records exchanged": [
        (*RECORD[:3], OTHER[3], *RECORD[4:]),
        (*OTHER[:3], RECORD[3], None, 1),
    ],
    "no headers": [(*RECORD[:4], None, 1), OTHER],
    "a header less": [(*RECORD[:4], HEADERS[:1], 1), OTHER],
    "another name of a header": [(*RECORD[:4], [("a", b"1"), ("c", b"2")], 1), OTHER],
    "another value of a header": [(*RECORD[:4], [("a", b"1"), ("b", b"3")], 1), OTHER],
    "headers in another order": [(*RECORD[:4], HEADERS[::-1], 1), OTHER],
    "headers of another record": [(*RECORD[:4], None, 1), (*OTHER[:4], HEADERS, 1)],
}


@pytest.mark.parametrize("change", CHANGED)
def test_each_part_of_a_record_is_covered(change: str) -> None:
    assert outputs_digests(CHANGED[change]) != outputs_digests(RECORDS)


def test_how_tasks_divide_records_does_not_matter() -> None:
    assert outputs_digests(RECORDS[::-1]) == outputs_digests(RECORDS)


def test_of_dead_letter_records_the_inputs_are_covered_and_texts_of_errors_are_not() -> None:
    record: Output = ("d", 0, b"k", b"v", [("sqe-text", b"at line 7")], 0)
    known = dead_letters_digests([record])
    assert known.keys() == {of_dead_letters("d")}
    assert dead_letters_digests([(*record[:4], [("sqe-text", b"at line 8")], 0)]) == known
    for other in ([(*record[:3], b"w", None, 0)], [("d", 0, b"l", *record[3:])], [record, record], []):
        assert dead_letters_digests(other) != known
