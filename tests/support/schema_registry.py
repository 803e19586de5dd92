"""A schema registry over HTTP for tests: the look-ups of Confluent's API, with outages and with ids that change."""

from __future__ import annotations

import json
import threading
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any
from urllib.parse import unquote, urlsplit

Answer = tuple[int, Any]

NO_SUBJECT = 404, {"error_code": 40401, "message": "Subject not found."}
NO_VERSION = 404, {"error_code": 40402, "message": "Version not found."}
NO_SCHEMA = 404, {"error_code": 40403, "message": "Schema not found"}


@dataclass
class TestRegistry:
    """What it holds, and how it answers.

    Attributes:
        port: where it listens.
        schemas: id -> schema, as its API shows it.
        subjects: subject -> ids of its versions.
        login: user and password that it asks for; empty: anyone may ask.
        answer: what it answers to everything, in place of what it should; None: it works.
        guids: whether it has any.
        asked: method and path of each request.
    """

    __test__ = False
    port: int = 0
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    login: str = ""
    answer: Answer | None = None
    guids: bool = True
    asked: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """As a service is given it."""
        return f"registry://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """As Confluent's client is given it."""
        return f"http://127.0.0.1:{self.port}"

    def register(self, subject: str, schema: object, kind: str = "AVRO", references: object = ()) -> int:
        """Register a schema as its owner would; returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": references}
        return int(self._register(subject, body)[1]["id"])

    def renumber(self, by: int) -> None:
        """Give all schemas other ids, as a registry does that was restored from texts."""
        self.schemas = {number + by: schema for number, schema in self.schemas.items()}
        self.subjects = {name: [number + by for number in ids] for name, ids in self.subjects.items()}

    def respond(  # noqa: C901, PLR0911 - a table
        self,
        method: str,
        path: str,
        body: Any,
        login: str,
    ) -> Answer:
        """The answer to one request."""
        self.asked.append(f"{method} {path}")
        if self.answer is not None:
            return self.answer
        if self.login and login != "Basic " + b64encode(self.login.encode()).decode():
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "GET", ["subjects"]:
                return 200, sorted(self.subjects)
            case "GET", ["schemas", "ids", number]:
                known = self.schemas.get(int(number))
                return (200, known) if known else NO_SCHEMA
            case "GET", ["schemas", "guids", guid]:
                return next(
                    ((200, known) for known in self.schemas.values() if known.get("guid") == guid), NO_SCHEMA
                )
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case "POST", ["subjects", subject]:
                return self._find(subject, body)
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, body)
            case "POST", ["compatibility", "subjects", subject, "versions", _]:
                if subject not in self.subjects:
                    return NO_SUBJECT
                return 200, {"is_compatible": self._fits(subject, body)}
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _version(self, subject: str, version: str) -> Answer:
        ids = self.subjects.get(subject)
        if ids is None:
            return NO_SUBJECT
        number = len(ids) if version == "latest" else int(version)
        return (200, self._shown(subject, number)) if 0 < number <= len(ids) else NO_VERSION

    def _shown(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}

    def _find(self, subject: str, body: dict[str, Any]) -> Answer:
        if subject not in self.subjects:
            return NO_SUBJECT
        for version, number in enumerate(self.subjects[subject], 1):
            if _is_same(self.schemas[number], body):
                return 200, self._shown(subject, version)
        return NO_SCHEMA

    def _register(self, subject: str, body: dict[str, Any]) -> Answer:
        number = next((known for known, schema in self.schemas.items() if _is_same(schema, body)), 0)
        if not number:
            if not self._fits(subject, body):
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
            number = max(self.schemas, default=0) + 1
            kept = {name: body[name] for name in ("schema", "references") if body.get(name)}
            guid = (
                {"guid": str(uuid.UUID(int=0x89791762_2336_4186_9674_299B90A80000 + number))}
                if self.guids
                else {}
            )
            self.schemas[number] = {"schemaType": body.get("schemaType") or "AVRO", **kept, **guid}
        ids = self.subjects.setdefault(subject, [])
        if number not in ids:
            ids.append(number)
        return 200, self._shown(subject, ids.index(number) + 1)

    def _fits(self, subject: str, body: dict[str, Any]) -> bool:
        """Readers of the new schema can read what the newest one has written: all fields that it adds have defaults."""
        if (body.get("schemaType") or "AVRO") != "AVRO" or subject not in self.subjects:
            return True
        old = json.loads(self.schemas[self.subjects[subject][-1]]["schema"])["fields"]
        types = {known["name"]: known["type"] for known in old}
        return all(
            types[known["name"]] == known["type"] if known["name"] in types else "default" in known
            for known in json.loads(body["schema"])["fields"]
        )


def _is_same(known: dict[str, Any], body: dict[str, Any]) -> bool:
    kinds = known["schemaType"] == (body.get("schemaType") or "AVRO")
    return (
        kinds
        and _text(known["schema"]) == _text(body["schema"])
        and (list(known.get("references", ())) == list(body.get("references") or ()))
    )


def _text(schema: str) -> str:
    try:
        return json.dumps(json.loads(schema), sort_keys=True)
    except ValueError:
        return schema


@contextmanager
def serving(registry: TestRegistry | None = None, tls: SSLContext | None = None) -> Iterator[TestRegistry]:
    """Serve a registry on a free port, or again on the port that it had; over TLS if that is given."""
    held = registry or TestRegistry()

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, answer = held.respond(
                self.command, urlsplit(self.path).path, body, self.headers.get("Authorization", "")
            )
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _respond  # noqa: N815 - the names are the server's

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the server's name
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing: clients that are refused end their connections."""

    server = Server(("127.0.0.1", held.port), Handler)
    if tls is not None:
        # Each handshake in the thread of its connection: one that fails must not end the server.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    held.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
