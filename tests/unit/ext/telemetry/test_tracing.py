"""Goal: a service's spans show its batches and steps, as the log lines name them. Method: rehearsals, the SDK's exporter in memory."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, StatusCode

from sqe_chain import wings
from sqe_chain.errors import ConfigurationError, PoisonError
from sqe_chain.ext.telemetry.exporting import QuietExporter, provider_of
from sqe_chain.ext.telemetry.tracing import Tracing
from sqe_chain.flow import Flow
from sqe_chain.plans.events import PROCESS, PUBLISH, Committed
from sqe_chain.runtime.lines import Lines
from sqe_chain.runtime.running import _observers
from tests.support.traced import Traced, attributes, children


def add(total: dict[str, int], sale: dict[str, int]) -> None:
    total["sum"] = total.get("sum", 0) + sale["amount"]


def totals(**options: Any) -> Flow:
    flow = Flow("totals", state_partitions=1, **options)
    stage = flow.source("sales", dict, raw=True).aggregate("total", state=dict, fold=add, key=lambda _: "all")
    stage.changes().to("totals.topic", partitions=1)
    return flow


def relay() -> Flow:
    flow = Flow("relay")
    flow.source("sales", dict, raw=True).to("relayed", key=lambda _: "all", partitions=1)
    return flow


def fed(flow: Flow, *amounts: int) -> Traced:
    traced = Traced(flow)
    for amount in amounts:
        traced.feed("sales", {"amount": amount})
    return traced


def test_a_batch_is_a_span_with_a_span_for_each_step() -> None:
    traced = fed(totals(), 1, 2, 3)
    assert traced.batch()
    (batch,) = traced.named("batch totals")
    assert batch.parent is None
    assert batch.kind == SpanKind.CONSUMER
    steps = children(batch, traced.spans)
    assert [span.name for span in steps] == [
        "process sales",
        "seal",
        "publish totals.topic",
        "persist",
        "commit sales",
    ]
    process, seal, publish, persist, commit = map(attributes, steps)
    found = attributes(batch)
    assert (
        found
        | {
            "messaging.system": "kafka",
            "messaging.operation.name": "batch",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": "totals",
            "messaging.destination.name": "sales",
            "messaging.batch.message_count": 3,
            "sqe_chain.flow": "totals",
            "sqe_chain.batch.number": 1,
            "sqe_chain.plan.number": 1,
            "sqe_chain.replays": 0,
            "sqe_chain.skipped": 0,
            "sqe_chain.outputs": 1,
            "sqe_chain.lag": 0,
        }
        == found
    )
    assert found["sqe_chain.plan.id"] == seal["sqe_chain.plan.id"]
    assert [one["sqe_chain.step"] for one in (process, seal, publish, persist, commit)] == [3, 4, 5, 6, 7]
    assert "messaging.system" not in process | seal | persist
    assert (publish["messaging.operation.type"], publish["messaging.batch.message_count"]) == ("send", 1)
    assert persist["sqe_chain.stages"] == ("total",)
    assert persist["sqe_chain.states"] == 1
    assert commit["messaging.operation.type"] == "settle"
    assert [span.kind for span in steps] == [SpanKind.INTERNAL] * 2 + [
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
    ]


def test_steps_1_and_2_have_a_span_of_their_own() -> None:
    traced = fed(totals())
    traced.start()
    (start,) = traced.named("start totals")
    assert [span.name for span in children(start, traced.spans)] == ["claim", "recover"]
    (claim,) = traced.named("claim")
    assert attributes(claim)["sqe_chain.claim.epoch"] == 1


def test_a_plan_that_is_redone_lies_in_the_span_of_recovery() -> None:
    traced = fed(totals(), 1)
    traced.crash(step=PUBLISH, when="before")
    traced.run_until_crash()
    assert traced.crashes == 1
    traced.trace_again()
    traced.exporter.clear()
    traced.start()
    (recover,) = traced.named("recover")
    redone = children(recover, traced.spans)
    assert [span.name for span in redone] == ["publish totals.topic", "persist", "commit sales"]
    assert attributes(redone[0])["sqe_chain.plan.number"] == 1
    assert attributes(recover)["sqe_chain.plans.redone"] == ("1",)
    assert not traced.named("batch")


def test_each_level_of_stages_has_a_span_and_the_last_level_comes_first() -> None:
    flow = Flow("levels", state_partitions=1)
    first = flow.source("sales", dict, raw=True).aggregate(
        "first", state=dict, fold=lambda _, sale: [sale], key=lambda _: "all"
    )
    first.aggregate("second", state=dict, fold=add, key=lambda _: "all")
    traced = fed(flow, 1)
    traced.batch()
    assert [attributes(span)["sqe_chain.stages"] for span in traced.named("persist")] == [
        ("second",),
        ("first",),
    ]


def test_a_republisher_has_batches_without_plans() -> None:
    traced = fed(relay(), 1, 2)
    traced.batch()
    traced.feed("sales", {"amount": 3})
    traced.batch()
    batches = traced.named("batch relay")
    for batch, count in zip(batches, (2, 1), strict=True):
        assert [span.name for span in children(batch, traced.spans)] == [
            "seal",
            "publish relayed",
            "commit sales",
        ]
        assert attributes(batch)["messaging.batch.message_count"] == count
        assert "sqe_chain.plan.number" not in attributes(batch)


def test_the_counts_of_a_commit_in_the_background_are_those_of_its_own_batch() -> None:
    traced = fed(relay(), 1, 2)
    service = traced.start()
    with service.env.commits.in_background():
        service.batch()
        traced.feed("sales", {"amount": 3})
        service.batch()
        service.env.commits.settle()
    counts = [attributes(span)["messaging.batch.message_count"] for span in traced.named("batch relay")]
    assert counts == [2, 1]
    first, second = traced.named("batch relay")
    assert (first.end_time or 0) <= (second.start_time or 0), "a batch ends with its last step"


def test_a_plan_that_only_brings_in_a_layout_is_no_batch_of_records() -> None:
    traced = fed(totals(), 1)
    traced.batch()
    traced.log.grow("sales", 2)
    traced.feed("sales", {"amount": 2}, partition=1)
    traced.batch(at_end=True)  # looks at the topics again
    layouts = [
        span for span in traced.named("batch") if "messaging.batch.message_count" not in attributes(span)
    ]
    assert [[one.name for one in children(span, traced.spans)] for span in layouts] == [
        ["seal", "publish totals.topic", "persist", "commit sales"]
    ]
    counted = [attributes(span).get("messaging.batch.message_count") for span in traced.named("batch")]
    assert counted == [1, None, 1]


def test_an_error_is_recorded_on_the_spans_that_it_ends() -> None:
    traced = fed(totals())
    traced.feed("sales", b"no json")
    with pytest.raises(PoisonError) as raised, traced.tracing:
        traced.batch()
    failed = [span for span in traced.spans if span.status.status_code == StatusCode.ERROR]
    assert [span.name for span in failed] == ["batch totals", "process sales"]
    for span in failed:
        assert attributes(span)["error.type"] == "PoisonError"
        (event,) = span.events
        assert event.name == "exception"
        assert dict(event.attributes or {})["exception.message"] == str(raised.value)


def test_a_password_in_an_error_is_not_exported() -> None:
    traced = fed(totals(), 1)
    traced.tracing.step(PROCESS, "before")
    error = ConfigurationError("redis://ann:secret@host is away")
    traced.tracing.__exit__(type(error), error, None)
    texts = [
        dict(event.attributes or {})["exception.message"] for span in traced.spans for event in span.events
    ]
    assert texts == ["redis://ann:***@host is away"] * 2


def test_a_step_that_begins_again_is_another_span_of_the_batch() -> None:
    traced = fed(totals(), 1)
    traced.start()
    traced.tracing.step(PROCESS, "before")  # its input was created again: it ends without an end
    traced.batch()
    (batch,) = traced.named("batch")
    assert [span.name for span in children(batch, traced.spans)][:3] == [
        "process sales",
        "process sales",
        "seal",
    ]


def test_json_lines_have_the_ids_of_the_span_in_which_their_event_happens() -> None:
    traced, lines = fed(totals(), 1), io.StringIO()
    traced.further = [Lines("totals", as_json=True, stream=lines, fields_of=traced.tracing.log_fields)]
    traced.batch()
    found = {line["event"]: line for line in map(json.loads, lines.getvalue().splitlines())}
    by_id = {f"{span.context.span_id:016x}": span for span in traced.spans}
    where = {name: by_id[line["span_id"]].name for name, line in found.items() if "span_id" in line}
    assert where == {
        "notice": "claim",  # of the weak store
        "claimed": "claim",
        "recovered": "recover",
        "sealed": "seal",
        "published": "publish totals.topic",
        "persisted": "persist",
        "committed": "batch totals",
    }
    for name, line in found.items():
        span = by_id[line["span_id"]]
        assert line["trace_id"] == f"{span.context.trace_id:032x}", name
    assert [found[name].get("step") for name in ("sealed", "persisted", "committed")] == [
        "seal",
        "persist",
        None,
    ]
    assert {(found[name]["batch"], found[name]["plan"]) for name in ("sealed", "persisted", "committed")} == {
        (1, 1)
    }


def test_opentelemetry_that_is_disabled_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    traced, lines = fed(totals(traces=True), 1), io.StringIO()
    traced.feed(
        "sales", {"amount": 2}, headers=[("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")]
    )
    traced.further = [Lines("totals", as_json=True, stream=lines, fields_of=traced.tracing.log_fields)]
    with traced.tracing:
        traced.batch()
    assert traced.states("total")[b"all"] == {"sum": 3}
    assert not traced.spans
    found = {line["event"]: line for line in map(json.loads, lines.getvalue().splitlines())}
    assert found["sealed"]["step"] == "seal"
    assert "trace_id" not in found["sealed"]


def test_a_line_is_written_before_the_span_of_its_event_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    lines, tracing = _observers(totals().compile(), "json", None, telemetry=True)
    assert isinstance(lines, Lines)
    assert isinstance(tracing, Tracing)
    assert lines._fields_of == tracing.log_fields


def test_lines_without_tracing_have_no_ids() -> None:
    lines = io.StringIO()
    Lines("totals", as_json=True, stream=lines).event(
        Committed(
            inputs=1,
            replays=0,
            excluded=0,
            outputs=0,
            lag=0,
            lag_by_partition={},
            event_time_ms=0,
            batch_ms=1,
        )
    )
    assert "trace_id" not in json.loads(lines.getvalue())


def test_without_its_packages_tracing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("opentelemetry", "sqe_chain.ext.telemetry"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # as if it were not installed
    with pytest.raises(
        ConfigurationError,
        match=r"pip install 'sqe-chain\[telemetry\]'",
    ):
        wings.load(wings.WINGS, "telemetry", "telemetry")


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "carrier-pigeon"},
            "no installed package has the exporter 'carrier-pigeon'",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "OTEL_EXPORTER_OTLP_PROTOCOL=smoke. Expected one of"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], text: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=text):
        Tracing(totals().compile())


def test_the_service_is_called_like_the_flow_unless_the_environment_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    names = []
    for variable in ("", "night-shift"):
        monkeypatch.setenv("OTEL_SERVICE_NAME", variable)
        names.append(provider_of("totals", RandomIdGenerator()).resource.attributes["service.name"])
    assert names == ["totals", "night-shift"]


def test_an_outage_of_the_collector_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Exporter(InMemorySpanExporter):
        away = True

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if self.away:
                logging.getLogger(__name__).warning("no answer")
                logging.getLogger(__name__).error("spans are lost")
                return SpanExportResult.FAILURE
            return super().export(spans)

    inner = Exporter()
    exporter = QuietExporter(inner)
    for inner.away in (True, True, False, False, True):
        exporter.export([])
    exporter.shutdown()
    assert caplog.messages == ["no answer", "no answer"]
    inner.export([])
    assert len(caplog.messages) == 4, "after its end nothing is held back"
