"""Goal: traces lead through republishers and aggregates, by links. Method: chains of rehearsals, the SDK's exporter in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import SpanContext, SpanKind

from sqe_chain import read
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.chain import event_id
from sqe_chain.envelope.carrier import in_headers
from sqe_chain.envelope.message import wrap
from sqe_chain.envelope.trace_context import ids_of, trace_context
from sqe_chain.ext.telemetry import trace_headers
from sqe_chain.ext.web.history import History
from sqe_chain.flow import Flow
from sqe_chain.ports import Headers
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.traced import Traced, attributes


def add(total: dict[str, int], sale: dict[str, Any]) -> None:
    total["sum"] = total.get("sum", 0) + sale["amount"]


def totals(**options: Any) -> Flow:
    flow = Flow("totals", **({"state_partitions": 1, "traces": True} | options))
    stage = flow.source("sales", dict).aggregate("total", state=dict, fold=add, key=lambda sale: sale["shop"])
    stage.changes().to("totals.topic", partitions=1)
    return flow


def headers_of(number: int, flags: str = "01") -> Headers:
    """The headers that a producer gives whose span has this number."""
    return [("traceparent", f"00-{number:032x}-{number:016x}-{flags}".encode())]


def sell(rehearsal: Rehearsal, shop: str, trace: int | None = None, **more: Any) -> None:
    headers = None if trace is None else headers_of(trace)
    rehearsal.feed("sales", {"shop": shop, "amount": 1}, **({"headers": headers} | more))


def numbers(contexts: Iterable[SpanContext]) -> list[int]:
    """The numbers of spans of producers."""
    return [context.trace_id for context in contexts if context.trace_id == context.span_id]


def linked(span: ReadableSpan) -> list[int]:
    return numbers(link.context for link in span.links)


def published(rehearsal: Rehearsal, topic: str) -> Iterator[tuple[str, bytes, dict[str, bytes | None]]]:
    """Key, event id and headers of each record of an output."""
    for message in rehearsal.log.records(topic):
        found = read(message.value(), headers=message.headers())
        identity = found.event_id if not found.chain else event_id(found.lane, found.position)
        yield (message.key() or b"").decode(), identity, dict(message.headers() or ())


def test_an_output_links_to_the_traces_of_the_records_that_it_counted() -> None:
    traced = Traced(totals())
    for shop, number in (("a", 1), ("b", 2), ("a", 3), ("b", None), ("c", None), ("a", 1)):
        sell(traced, shop, number)
    traced.batch()
    (batch,) = traced.named("batch totals")
    assert linked(batch) == [1, 2, 3]
    spans = {span.context.trace_id: span for span in traced.named("create totals.topic")}
    assert len(spans) == 2
    found = {}
    for shop, identity, headers in published(traced, "totals.topic"):
        if "traceparent" in headers:
            span = spans[int.from_bytes(identity)]
            assert headers["traceparent"] == f"00-{identity.hex()}-{span.context.span_id:016x}-01".encode()
            found[shop] = linked(span)
            assert span.links[-1].context.span_id == traced.named("publish")[0].context.span_id
            assert (span.parent, span.kind) == (None, SpanKind.PRODUCER)
            assert attributes(span) == {
                "messaging.system": "kafka",
                "messaging.operation.name": "create",
                "messaging.operation.type": "create",
                "messaging.destination.name": "totals.topic",
                "messaging.destination.partition.id": "0",
                "sqe_chain.flow": "totals",
            }
    assert found == {"a": [1, 3], "b": [2]}, "shop c counted no record with a trace"
    assert {link.context.trace_id for link in traced.named("publish")[0].links} == set(spans)


def test_traces_lead_from_a_producer_through_a_republisher_and_two_aggregates() -> None:
    log = MemoryLog("through")
    relay = Flow("relay")
    relay.source("raw", dict, raw=True).to("sales", key=lambda sale: sale["shop"], partitions=1)
    after = Flow("after", state_partitions=1, traces=True)
    after.source("totals.topic", dict).aggregate(
        "all", state=dict, fold=lambda state, total: state.update(last=total["sum"]), key=lambda _: "all"
    ).changes().to("all.topic", partitions=1)
    first, second, third = (Traced(flow, log=log) for flow in (relay, totals(), after))
    tracer = TracerProvider().get_tracer("producer")
    with tracer.start_as_current_span("sell") as producer:
        first.feed("raw", {"shop": "a", "amount": 1}, headers=trace_headers())
    for service in (first, second, third):
        service.run_until_caught_up()
    before = producer.get_span_context()
    (message,) = log.records("sales")
    passed_on = trace_context(message.headers() or [])
    assert passed_on is not None
    assert ids_of(passed_on) == (before.trace_id, before.span_id)
    for batch in (*second.named("batch totals")[-1:], *second.named("create totals.topic")):
        assert batch.links[0].context.trace_id == before.trace_id
        assert batch.links[0].context.span_id == before.span_id
    (total,) = second.named("create totals.topic")
    for span in (*third.named("create all.topic"), *third.named("batch after")):
        assert span.links[0].context.span_id == total.context.span_id
        assert span.links[0].context.trace_id == total.context.trace_id


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("carrier", ["value", "headers"])
def test_carriers_and_shuffles_make_no_difference(
    in_place: bool, carrier: Literal["value", "headers"]
) -> None:
    flow = Flow("totals", state_partitions=2 if in_place else 3, traces=True)
    flow.source("sales", dict).aggregate(
        "total", state=dict, fold=add, key=lambda sale: sale["shop"]
    ).changes().to("totals.topic", partitions=1, carrier=carrier)
    traced = Traced(flow, partitions={"sales": 2})
    for number in range(1, 9):
        shop = f"shop-{number % 3}"
        envelope = wrap({"shop": shop, "amount": 1}, key=shop, timestamp_ms=1)
        value, headers = in_headers(envelope, source="till")
        assert value is not None
        if carrier == "value":
            sell(traced, shop, number, key=shop)
        else:
            traced.feed("sales", value, key=shop, headers=[*headers, *headers_of(number)])
    traced.batch()
    spans = {span.context.trace_id: linked(span) for span in traced.named("create")}
    found = {shop: spans[int.from_bytes(identity)] for shop, identity, _ in published(traced, "totals.topic")}
    assert found == {"shop-0": [3, 6], "shop-1": [1, 4, 7], "shop-2": [2, 5, 8]}
    assert sorted(linked(traced.named("batch")[-1])) == list(range(1, 9))


def test_links_are_bounded_and_the_others_counted() -> None:
    traced = Traced(totals())
    for number in range(1, 41):
        sell(traced, "a", number)
    sell(traced, "a", 40)
    sell(traced, "b", 41)
    traced.batch()
    (batch,) = traced.named("batch")
    assert linked(batch) == list(range(1, 33))
    assert attributes(batch)["sqe_chain.links.dropped"] == 10
    first, second = sorted(traced.named("create"), key=lambda span: -len(span.links))
    assert linked(first) == list(range(1, 33))
    assert attributes(first)["sqe_chain.links.dropped"] == 9
    assert linked(second) == [41]
    assert "sqe_chain.links.dropped" not in attributes(second)


def test_spans_of_outputs_are_bounded_and_the_others_counted() -> None:
    traced = Traced(totals())
    for number in range(1, 1_003):
        sell(traced, f"shop-{number}", number)
    traced.batch()
    assert len(traced.named("create")) == 1_000
    assert attributes(traced.named("batch")[0])["sqe_chain.outputs.without_span"] == 2


def test_what_a_filter_passes_on_stays_in_the_trace_of_its_record() -> None:
    flow = Flow("filters", state_partitions=1, traces=True)
    flow.source("sales", dict).drop_replays("once-only").to("once", partitions=1)
    traced = Traced(flow)
    sell(traced, "a", 1, headers=[*headers_of(1), ("tracestate", b"rojo=1"), ("other", b"x")])
    sell(traced, "b")
    sell(traced, "c", 2)
    traced.batch()
    assert not traced.named("create")
    assert [headers for _, _, headers in published(traced, "once")] == [
        {"traceparent": headers_of(1)[0][1], "tracestate": b"rojo=1"},
        {},
        dict(headers_of(2)),
    ]


def test_what_a_fold_emits_links_to_the_records_before_it_and_to_no_later_ones() -> None:
    flow = Flow("emits", state_partitions=1, traces=True)
    flow.source("sales", dict).aggregate(
        "total", state=dict, fold=lambda _, sale: [sale], key=lambda sale: sale["shop"]
    ).to("emitted", partitions=1)
    traced = Traced(flow)
    for shop, number in (("a", 1), ("b", 2), ("a", None), ("a", 3)):
        sell(traced, shop, number)
    traced.batch()
    spans = {span.context.trace_id: linked(span) for span in traced.named("create")}
    found = [spans[int.from_bytes(identity)] for _, identity, _ in published(traced, "emitted")]
    assert found == [[1], [2], [1], [1, 3]]


def test_links_lead_to_the_records_of_the_batch_alone() -> None:
    traced = Traced(totals())
    for number in (1, 2):
        sell(traced, "a", number)
        traced.batch()
    assert [linked(span) for span in traced.named("create")] == [[1], [2]]


def test_the_result_of_a_window_links_to_the_records_of_its_key() -> None:
    flow = Flow("hours", state_partitions=1, traces=True)
    flow.source("sales", dict).windowed(
        "hour", Tumbling(1_000), state=dict, fold=add, key=lambda sale: sale["shop"], lateness_ms=0
    ).map(lambda window: window.state).to("hours.topic", partitions=1)
    traced = Traced(flow, partitions={"sales": 2})
    sell(traced, "c", 4, timestamp_ms=5_000, partition=0)  # it ends the window
    for shop, number, time_ms in (("a", 1, 100), ("b", 2, 200), ("a", 3, 300), ("d", 5, 5_000)):
        sell(traced, shop, number, timestamp_ms=time_ms, partition=1)
    traced.batch(at_end=True)
    assert sorted(linked(span) for span in traced.named("create")) == [[1, 3], [2]]


@pytest.mark.parametrize(
    "headers",
    [headers_of(1, "00"), [("traceparent", b"nonsense")], headers_of(1) * 2, [("traceparent", None)]],
)
def test_a_trace_that_is_not_sampled_or_malformed_leads_nowhere(headers: Headers) -> None:
    traced = Traced(totals())
    sell(traced, "a", headers=headers)
    traced.batch()
    assert [headers for _, _, headers in published(traced, "totals.topic")] == [{}]
    assert not traced.named("create")
    assert not traced.named("batch")[0].links


def test_a_flow_that_is_not_declared_so_follows_no_trace() -> None:
    traced = Traced(totals(traces=False))
    sell(traced, "a", 1)
    traced.batch()
    assert [headers for _, _, headers in published(traced, "totals.topic")] == [{}]
    assert not traced.named("create")
    assert not traced.named("batch")[0].links


def test_an_input_that_is_skipped_leaves_no_trace_in_an_output() -> None:
    def add_sound(total: dict[str, int], sale: dict[str, Any]) -> None:
        if sale["amount"] < 0:
            raise ValueError("a negative amount")
        add(total, sale)

    flow = Flow("totals", state_partitions=1, poison="skip", traces=True)
    stage = flow.source("sales", dict).aggregate(
        "total", state=dict, fold=add_sound, key=lambda sale: sale["shop"]
    )
    stage.changes().to("totals.topic", partitions=1)
    traced = Traced(flow)
    for amount, shop, number in ((-1, "a", 1), (1, "a", None), (1, "b", 2)):
        headers = None if number is None else headers_of(number)
        traced.feed("sales", {"shop": shop, "amount": amount}, headers=headers)
    traced.batch()
    found = {shop: "traceparent" in headers for shop, _, headers in published(traced, "totals.topic")}
    assert found == {"a": False, "b": True}
    assert [linked(span) for span in traced.named("create")] == [[2]]


def test_outputs_that_go_out_together_link_to_the_records_of_both_keys() -> None:
    flow = Flow("pairs", state_partitions=1, traces=True)
    both = flow.source("sales", dict).flat_map(lambda sale: [{**sale, "shop": shop} for shop in sale["shop"]])
    stage = both.aggregate("total", state=dict, fold=add, key=lambda sale: sale["shop"])
    stage.changes().to("together", key=lambda _: "all", partitions=1)
    traced = Traced(flow)
    for shops, number in (("a", 1), ("b", 2), ("ab", 3)):
        sell(traced, shops, number)
    traced.batch()
    (span,) = traced.named("create")
    assert linked(span) == [1, 3, 2]


def test_the_page_beside_a_service_shows_how_many_traces_there_were() -> None:
    traced, history = Traced(totals()), History()
    traced.further = [history]
    sell(traced, "a", 1)
    sell(traced, "a", 2)
    traced.batch()
    (event,) = [event for event in json.loads(json.dumps(history.events())) if event["event"] == "traces"]
    assert (event["links"], event["outputs"]) == (2, 1)
