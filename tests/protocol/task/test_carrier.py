"""Goal: a chain may travel in headers, also beside envelopes in one topic, and the values in the topic are plain JSON.

Method: a republisher and a service that adds up. Crashes with both carriers are in `test_prove_flows.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

from sqe_chain import Flow
from sqe_chain.errors import OutputTooLarge, PoisonError, ServiceStopped
from sqe_chain.flow.nodes import Carrier
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of


class Fastening(msgspec.Struct):
    robot: str
    screws: int


class Total(msgspec.Struct):
    events: int = 0
    screws: int = 0


def split(fastening: Fastening) -> Iterator[Fastening]:
    """Several for one: each of them is a record of its own."""
    for _ in range(fastening.screws):
        yield Fastening(fastening.robot, 1)


def add(total: Total, fastening: Fastening) -> None:
    total.events += 1
    total.screws += fastening.screws


def add_totals(total: Total, found: Total) -> None:
    total.events += found.events
    total.screws += found.screws


def add_length(total: Total, length: int) -> None:
    total.events += 1
    total.screws += length


def without_first(found: bytes) -> bytes:
    return found[1:]


def upstream_flow(carrier: Carrier) -> Flow:
    flow = Flow("clean")
    flow.source("raw", Fastening, raw=True).flat_map(split).to(
        "screws", key=lambda found: found.robot, partitions=3, carrier=carrier
    )
    return flow


def downstream_flow(carrier: Carrier) -> Flow:
    flow = Flow("totals", state_partitions=2)
    totals = flow.source("screws", Fastening).aggregate("per-robot", state=Total, fold=add)
    totals.changes().to("totals", partitions=2, carrier=carrier)
    return flow


def test_a_topic_may_change_its_carrier() -> None:
    """The same output, first in values, then in headers: lanes and positions go on, so the reader knows a republished record."""
    log = None
    for carrier in ("value", "headers", "value"):
        upstream = Rehearsal(upstream_flow(carrier), log=log)
        log = upstream.log
        upstream.feed("raw", b'{"robot": "r", "screws": 3}')
        upstream.run_until_caught_up()
        upstream.rewind(0)
        upstream.run_until_caught_up()
    downstream = Rehearsal(downstream_flow("headers"), log=log)
    downstream.run_until_caught_up()
    assert downstream.states("per-robot") == {b"r": Total(9, 9)}


def test_a_deleted_state_is_a_tombstone_that_keeps_its_chain() -> None:
    def fold(total: Total, fastening: Fastening, context: object) -> None:
        add(total, fastening)
        if fastening.screws == 0:
            context.delete_state()  # type: ignore[attr-defined]

    flow = Flow("deleting", state_partitions=1)
    stage = flow.source("raw", Fastening, raw=True).aggregate(
        "per-robot", key=lambda found: found.robot, state=Total, fold=fold
    )
    stage.changes().to("totals", partitions=1, carrier="headers")
    rehearsal = Rehearsal(flow)
    for screws in (3, 0):
        rehearsal.feed("raw", json.dumps({"robot": "r", "screws": screws}).encode())
        rehearsal.run_until_caught_up()
    values = [record.value() for record in rehearsal.log.records("totals")]
    assert values == [b'{"events":1,"screws":3}', None]
    assert [envelope.payloads_as(Total) for envelope in rehearsal.published("totals")] == [
        (Total(1, 3),),
        (None,),
    ]
    reader = Flow("reader", state_partitions=1)
    reader.source("totals", Total, nulls="skip").aggregate(
        "seen", key=lambda _: "k", state=Total, fold=add_totals
    )
    reading = Rehearsal(reader, log=rehearsal.log)
    reading.run_until_caught_up()
    assert reading.states("seen") == {b"k": Total(1, 3)}
    decoding = Flow("decoding", state_partitions=1)
    decoding.source("totals", lambda data: len(data or b""), nulls="decode").aggregate(
        "lengths", key=lambda _: "k", state=Total, fold=add_length
    )
    reading = Rehearsal(decoding, log=rehearsal.log)
    reading.run_until_caught_up()
    assert reading.states("lengths") == {b"k": Total(2, 23)}


def test_a_raw_source_refuses_a_chain_in_headers() -> None:
    upstream = Rehearsal(upstream_flow("headers"))
    upstream.feed("raw", b'{"robot": "r", "screws": 3}')
    upstream.run_until_caught_up()
    flow = Flow("careless")
    flow.source("screws", Fastening, raw=True).to("out", partitions=1)
    with pytest.raises(ServiceStopped, match="Its chain would be lost"):
        Rehearsal(flow, log=upstream.log).run_until_caught_up()


def test_a_dead_letter_record_keeps_the_chain_of_its_headers_and_comes_back() -> None:
    upstream = Rehearsal(upstream_flow("headers"))
    for screws in (1, 2):
        upstream.feed("raw", json.dumps({"robot": "r", "screws": screws}).encode(), headers=[("trace", b"t")])
    upstream.run_until_caught_up()
    broken = [True]

    def check(fastening: Fastening) -> Fastening:
        if broken[0]:
            raise ValueError("broken")
        return fastening

    flow = Flow("checked", poison="dead_letter", state_partitions=1)
    flow.source("screws", Fastening).map(check).aggregate("per-robot", state=Total, fold=add)
    downstream = Rehearsal(flow, log=upstream.log, settings=Settings(max_excluded_share=1.0))
    downstream.run_until_caught_up()
    assert len(downstream.log.records("checked.dead-letters")) == 3
    broken[0] = False
    FailedInPlans(environment_of(downstream)).release()
    downstream.service = None
    downstream.run_until_caught_up()
    assert downstream.states("per-robot") == {b"r": Total(3, 3)}


def test_a_payload_that_would_be_read_as_an_envelope_is_poison() -> None:
    flow = Flow("bytes")
    flow.source("raw", bytes, raw=True).map(without_first).to("out", partitions=1, carrier="headers")
    rehearsal = Rehearsal(flow)
    rehearsal.feed("raw", b"-\x0dSQE\xff and more")
    with pytest.raises(PoisonError, match="begins like an envelope"):
        rehearsal.run_until_caught_up()


def test_headers_count_towards_the_size_of_a_record() -> None:
    flow = Flow("large")
    flow.source("raw", bytes, raw=True).to("out", partitions=1, carrier="headers")
    rehearsal = Rehearsal(flow)
    rehearsal.log.configure("out", max_message_bytes=1_000)
    rehearsal.feed("raw", bytes(100))
    rehearsal.run_until_caught_up()
    rehearsal.feed("raw", bytes(400))
    with pytest.raises(OutputTooLarge):
        rehearsal.run_until_caught_up()
