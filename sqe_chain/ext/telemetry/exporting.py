"""Where spans go: the SDK's own settings, from the environment variables OTEL_*."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator

from sqe_chain.errors import ConfigurationError
from sqe_chain.wings import installed

_EXPORTERS: Final = "opentelemetry_traces_exporter"
"""Group of entry points: name of an exporter -> its class."""
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""What OTEL_EXPORTER_OTLP_PROTOCOL may be -> name of the exporter."""


class QuietExporter(SpanExporter):
    """Exports spans, and logs one warning for each outage of the collector.

    The service turns warnings of libraries into notices, and the exporter logs one for each attempt.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._warned = False
        self._logger = logging.getLogger(type(exporter).__module__)
        self._logger.addFilter(self._is_first)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans; a success ends the outage."""
        result = self._exporter.export(spans)
        self._warned &= result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
        self._logger.removeFilter(self._is_first)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def _is_first(self, _record: logging.LogRecord) -> bool:
        warned, self._warned = self._warned, True
        return not warned


def provider_of(flow: str, ids: IdGenerator) -> TracerProvider:
    """A provider that exports and samples as the environment variables set it.

    Args:
        flow: name of the flow, which is the service's name unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has one.
        ids: gives the ids of spans.

    Raises:
        ConfigurationError: no installed package has the exporter.
    """
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: flow}))
    provider = TracerProvider(resource=resource, id_generator=ids)
    for exporter in _exporters():
        provider.add_span_processor(BatchSpanProcessor(QuietExporter(exporter)))
    return provider


def _exporters() -> Iterator[SpanExporter]:
    """The exporters that OTEL_TRACES_EXPORTER names; by default OTLP."""
    for named in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",") or [""]:
        name = named.strip() or "otlp"
        if name == "none":
            continue
        name = _otlp() if name == "otlp" else name
        point = installed(_EXPORTERS).get(name)
        if point is None:
            raise ConfigurationError(
                f"OTEL_TRACES_EXPORTER={named.strip()}: no installed package has the exporter {name!r}. Expected otlp, console, none "
                f"or one of {', '.join(sorted(installed(_EXPORTERS)))}. Install the package of the exporter, or name another one"
            )
        yield point.load()()


def _otlp() -> str:
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((os.environ[name] for name in names if os.environ.get(name)), "http/protobuf")
    exporter = _PROTOCOLS.get(protocol.strip())
    if exporter is None:
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}. Expected one of {', '.join(_PROTOCOLS)}. Choose one of these"
        )
    return exporter
