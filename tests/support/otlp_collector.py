"""A collector of spans: an HTTP server that takes OTLP in protobuf, as real ones do, and keeps what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What was exported.

    Attributes:
        endpoint: for OTEL_EXPORTER_OTLP_ENDPOINT.
        spans: (name of the service, span), in the order of their arrival.
        refused: why requests were refused.
    """

    endpoint: str = ""
    spans: list[tuple[str, Span]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def take(self, path: str, content_type: str, body: bytes) -> bool:
        """Take a request. Returns whether it is one of OTLP over HTTP."""
        if (path, content_type) != ("/v1/traces", "application/x-protobuf"):
            self.refused.append(f"{path} {content_type}")
            return False
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            name = attributes(resource.resource.attributes)["service.name"]
            self.spans += [(name, span) for scope in resource.scope_spans for span in scope.spans]
        return True

    def named(self, service: str, prefix: str) -> list[Span]:
        """The spans of a service whose names begin so, each once, in the order of their beginnings."""
        by_id = {span.span_id: span for name, span in self.spans if name == service}
        return sorted(
            (span for span in by_id.values() if span.name.startswith(prefix)),
            key=lambda span: span.start_time_unix_nano,
        )


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes as Python values."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, str(kind))


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port of this machine, while in the context."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            taken = kept.take(self.path, str(self.headers["content-type"]), body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if taken else 400)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, name="collector", daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
