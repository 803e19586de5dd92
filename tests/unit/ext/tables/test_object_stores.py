"""Goal: what an object store refuses stops a service with the reason, and what may pass is waited for with the reason.

Method: a server on the loopback interface answers delta-rs with one status; no answer of a real object store is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import socket

import pytest

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.tables.opening import storage_at
from sqe_chain.ext.tables.storage import Storage

SECRET = "hunter2"  # noqa: S105 - of no server
BODY = b'<?xml version="1.0"?>\n<Error><Code>Sent</Code></Error>\n{"error":\n  "sent"}'
Answering = Callable[[int], Storage]


def place(port: int) -> Storage:
    options = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": SECRET,
        "aws_region": "here",
        "aws_endpoint_url": f"http://user:{SECRET}@127.0.0.1:{port}",
        "allow_http": "true",
        "max_retries": "0",
        "retry_timeout": "1s",
    }
    return storage_at(f"s3://key:{SECRET}@bucket/t", options)


@pytest.fixture(autouse=True)
def _no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """The login is given: nothing asks the network of a cloud for one."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Makes a table at a server that answers with this status."""
    servers: list[HTTPServer] = []

    def serve(status: int) -> Storage:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(BODY)))
                self.end_headers()
                self.wfile.write(BODY)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return place(servers[-1].server_port)

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("status", "reason"), [(401, "401 Unauthorized"), (403, "403 Forbidden")])
def test_a_login_that_is_refused_stops_and_is_not_waited_for(
    answering: Answering, status: int, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        answering(status).snapshot()
    assert not any(text in str(caught.value) for text in (SECRET, "\x1b", "\n", "Sent", "sent"))


def test_a_server_that_is_away_is_waited_for_with_the_reason() -> None:
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="Connection refused") as caught:
            place(unused.getsockname()[1]).snapshot()
    assert SECRET not in str(caught.value)


def test_an_address_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nosuch"):
        storage_at("nosuch://bucket/t").snapshot()
