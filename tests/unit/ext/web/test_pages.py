"""Goal: the page's data and states over HTTP are right, bounded and safe. Method: a real server in front of flows in memory."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.ext.web import replays
from sqe_chain.ext.web.command import serve
from sqe_chain.flow import Flow
from sqe_chain.stages import Tumbling, WindowResult
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import add

HOSTILE = '<img src=x onerror="alert(1)">\x1b[2J\u202e/..'
REFUSED: int | None = 7
"""The value that a function refuses."""


def key_of(value: Int64Value) -> str:
    return HOSTILE if value.value == 13 else f"k{value.value % 3}"


def note(state: dict[str, Any], event: dict[str, Any]) -> None:
    state["k"] = event["k"]


def check(value: Int64Value) -> Int64Value:
    if value.value == REFUSED:
        raise ValueError("no <b>seven</b>")
    return value


def add_and_pass(state: Int64Value, value: Int64Value) -> Iterator[Int64Value]:
    state.value += value.value
    yield value


def count_result(state: Int64Value, _: WindowResult) -> None:
    state.value += 1


def republisher() -> Flow:
    flow = Flow("up")
    flow.source("raw", Int64Value).to("numbers", key=lambda value: str(value.value), partitions=2)
    return flow


def totals() -> Flow:
    flow = Flow("totals", state_partitions=4, poison="dead_letter", dead_letter_partitions=1)
    flow.source("numbers", Int64Value).map(check).aggregate("total", key=key_of, state=Int64Value, fold=add)
    return flow


@dataclass
class Client:
    """Asks the page."""

    port: int
    service: Rehearsal

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def get(self, path: str, status: int = 200) -> Any:
        found, _, body = self.ask(path)
        assert found == status, body
        return json.loads(body)


@pytest.fixture
def client() -> Iterator[Client]:
    upstream = Rehearsal(republisher(), partitions={"raw": 2})
    service = Rehearsal(totals(), log=upstream.log)
    for number in range(30):
        upstream.feed("raw", Int64Value(value=number), partition=number % 2, timestamp_ms=number)
    upstream.run_until_caught_up()
    service.run_until_caught_up()
    upstream.rewind({("raw", 0): 5})
    upstream.run_until_caught_up()
    service.run_until_caught_up()
    with serve(service.log, service.stores, {"totals": service.flow}, "127.0.0.1", 0) as port:
        yield Client(port, service)


def test_flows_and_their_positions(client: Client) -> None:
    (flow,) = client.get("/api/flows")["flows"]
    assert (flow["name"], flow["lag"], flow["loaded"]) == ("totals", 0, True)
    assert flow["reads"] == ["numbers"]
    found = client.get("/api/flows/totals")
    ends = client.service.log.bounds([("numbers", 0), ("numbers", 1)])
    assert {(part["topic"], part["partition"]): part["position"] for part in found["inputs"]} == {
        tp: bounds.stable_end for tp, bounds in ends.items()
    }
    assert found["skipped"] == [{"error": "ValueError", "count": 1}]
    client.get("/api/flows/nothing", 404)


def test_replays_are_attributed_to_their_republisher(client: Client) -> None:
    found = client.get("/api/topics/numbers/replays")
    (entry,) = found["replays"]
    assert entry["writer"] == "up/numbers"
    assert entry["records"] == 10
    assert found["unread"] == 0


def test_what_was_not_read_of_a_topic_is_counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the newest records alone there may be no repetition, though half of the topic repeats the other half."""
    monkeypatch.setattr(replays, "FIRST_LOOK", 2)
    found = client.get("/api/topics/numbers/replays")
    ends = client.service.log.bounds([("numbers", 0), ("numbers", 1)])
    assert found == {"replays": [], "unread": sum(bound.stable_end - 2 for bound in ends.values())}
    monkeypatch.setattr(replays, "MOST_RECORDS", 1)
    client.service.log.append("numbers", 0, b"x")
    client.service.log.append("numbers", 0, b"y")
    assert client.get("/api/topics/numbers/replays")["unread"] == found["unread"] + 1


def test_what_can_be_compared_with_nothing_is_counted(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that repeat others are there, and what they repeat is deleted, or too many writers write."""
    log = client.service.log
    sizes = [log.bounds([("numbers", partition)])["numbers", partition].stable_end for partition in (0, 1)]
    log.truncate_before("numbers", 0, 3)
    assert client.get("/api/topics/numbers/replays")["unread"] == 3
    monkeypatch.setattr(replays, "MOST_LANES", 0)
    with serve(log, client.service.stores, {}, "127.0.0.1", 0) as port:
        unread = Client(port, client.service).get("/api/topics/numbers/replays")["unread"]
    assert unread == sum(sizes)


def test_a_state_has_its_plan_and_offsets_and_a_tag(client: Client) -> None:
    status, headers, body = client.ask("/flows/totals/stages/total/keys/k1")
    found = json.loads(body)
    assert status == 200
    assert found["states"][0]["state"] == sum(n for n in range(30) if n % 3 == 1 and n not in (7, 13))
    assert found["offsets"].keys() == {"numbers:0", "numbers:1"}
    assert (
        client.ask("/flows/totals/stages/total/keys/k1", headers={"If-None-Match": headers["etag"]})[0] == 304
    )
    client.get("/flows/totals/stages/total/keys/k7", 404)
    client.get("/flows/totals/stages/nothing/keys/k1", 404)


def test_keys_come_in_pages_and_by_prefix(client: Client) -> None:
    keys, after = list[Any](), ""
    while True:
        page = client.get(f"/flows/totals/stages/total/keys?limit=2{after}")
        keys += page["keys"]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert sorted(map(str, keys)) == sorted(["k0", "k1", "k2", str({"hex": HOSTILE.encode().hex()})])
    assert len(client.get("/flows/totals/stages/total/keys?prefix=k")["keys"]) == 3
    client.get("/flows/totals/stages/total/keys?after=nonsense", 400)
    client.get("/flows/totals/stages/total/keys?limit=1000", 400)


def test_a_client_can_wait_until_an_offset_is_counted(client: Client) -> None:
    end = client.service.log.bounds([("numbers", 0)])["numbers", 0].stable_end
    path = f"/flows/totals/stages/total/keys/k0?at_least=numbers:0:{end}"
    assert client.ask(f"{path}&timeout=0")[0] == 504
    before = client.get("/flows/totals/stages/total/keys/k0")["states"][0]["state"]
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(client.get(path)))
    asking.start()
    client.service.feed("numbers", Int64Value(value=300), partition=0, timestamp_ms=100)
    client.service.run_until_caught_up()
    asking.join(15)
    assert answers[0]["states"][0]["state"] == before + 300
    client.get("/flows/totals/stages/total/keys/k0?at_least=nonsense", 400)


def test_an_offset_that_waits_for_event_time_is_not_counted() -> None:
    flow = Flow("windows", state_partitions=1)
    numbers = flow.source("numbers", Int64Value)
    numbers.windowed("minutes", Tumbling(10), key=lambda _: "all", state=Int64Value, fold=add).to(
        "sums", partitions=1
    )
    service = Rehearsal(flow, partitions={"numbers": 2})
    for partition, time_ms in ((0, 1), (1, 1), (0, 5), (0, 500)):
        service.feed("numbers", Int64Value(value=1), partition=partition, timestamp_ms=time_ms)
    while service.batch():
        pass
    with serve(service.log, service.stores, {"windows": service.flow}, "127.0.0.1", 0) as port:
        client, path = (
            Client(port, service),
            "/flows/windows/stages/minutes/keys/all?timeout=0&at_least=numbers:0:",
        )
        read = client.get("/flows/windows/stages/minutes/keys/all")
        assert read["offsets"] == {"numbers:0": 3, "numbers:1": 1}
        assert "may still wait for event time" in str(client.get(f"{path}2", 504))
        service.feed("numbers", Int64Value(value=1), partition=1, timestamp_ms=600)
        service.run_until_caught_up()
        assert client.get(f"{path}2")["offsets"] == {"numbers:0": 3, "numbers:1": 2}


def test_no_offset_shows_what_a_stage_after_windows_has_counted() -> None:
    flow = Flow("later", state_partitions=1)
    numbers = flow.source("numbers", Int64Value)
    passed = numbers.aggregate("totals", key=lambda _: "all", state=Int64Value, fold=add_and_pass)
    passed.aggregate("after", key=lambda _: "all", state=Int64Value, fold=add)
    windows = numbers.windowed("minutes", Tumbling(10), key=lambda _: "all", state=Int64Value, fold=add)
    windows.aggregate("sums", key=lambda _: "all", state=Int64Value, fold=count_result)
    service = Rehearsal(flow, partitions={"numbers": 1})
    for time_ms in (1, 15, 16):
        service.feed("numbers", Int64Value(value=1), timestamp_ms=time_ms)
    service.run_until_caught_up()
    with serve(service.log, service.stores, {"later": service.flow}, "127.0.0.1", 0) as port:
        client, wanted = Client(port, service), "keys/all?timeout=0&at_least=numbers:0:2"
        assert client.get("/flows/later/stages/sums/keys/all")["states"][0]["state"] == 1
        assert "'minutes' before it may give results later" in str(
            client.get(f"/flows/later/stages/sums/{wanted}", 422)
        )
        for stage in ("totals", "after", "minutes"):
            client.get(f"/flows/later/stages/{stage}/{wanted}")


def test_keys_of_a_stage_that_has_lost_a_state_partition_are_no_shorter_list(client: Client) -> None:
    store = client.service.stores[""]
    assert isinstance(store, MemoryStore)
    kept = store.copy_part("totals", "total", 1)
    store.restore_part("totals", "total", 1)
    assert "lost all its states" in str(client.get("/flows/totals/stages/total/keys", 500))
    store.restore_part("totals", "total", 1, kept)
    client.get("/flows/totals/stages/total/keys")


def test_an_offset_that_is_parked_is_not_counted() -> None:
    flow = Flow("parks", poison="park", state_partitions=1)
    numbers = flow.source("numbers", Int64Value).map(check)
    numbers.aggregate("total", key=lambda _: "all", state=Int64Value, fold=add)
    service = Rehearsal(flow, partitions={"numbers": 1})
    for offset, value in enumerate((1, 7, 2)):
        service.feed("numbers", Int64Value(value=value), partition=0, key=b"%d" % offset)
    service.run_until_caught_up()
    with serve(service.log, service.stores, {"parks": service.flow}, "127.0.0.1", 0) as port:
        client, path = (
            Client(port, service),
            "/flows/parks/stages/total/keys/all?timeout=0&at_least=numbers:0:",
        )
        assert client.get(f"{path}2")["states"][0]["state"] == 3
        assert "is parked" in str(client.get(f"{path}1", 504))


def test_a_record_shows_its_chain_and_no_payload(client: Client) -> None:
    found = client.get("/api/records/numbers/0/0")
    assert found["chain"][0]["topic"] == "raw"
    assert "value" not in found
    client.get("/api/records/numbers/0/999", 404)
    client.get("/api/records/nothing/0/0", 404)


def test_why_not_and_trace(client: Client) -> None:
    assert client.get("/api/flows/totals/why-not/numbers/0/0")["verdict"] == "counted"
    _, headers, body = client.ask("/api/flows/totals/stages/total/trace/k0")
    assert headers["content-type"].startswith("text/event-stream")
    (result,) = [part for part in body.decode().split("\n\n") if part.startswith("event: result")]
    trace = json.loads(result.partition("data: ")[2])
    assert trace["equal"] is True
    assert len(trace["records"]) == 10
    client.get("/api/flows/nothing/why-not/numbers/0/0", 404)


def test_dead_letter_records_are_listed(client: Client) -> None:
    found = client.get("/api/flows/totals/dead-letters")
    assert found["reasons"] == {"ValueError": 1}
    assert found["unread"] == 0


def test_decisions_are_no_dead_letter_records_and_older_ones_are_counted(client: Client) -> None:
    path, log = "/api/flows/totals/dead-letters", client.service.log
    log.append("totals.dead-letters", 0, b"{}", headers=[("sqe-decision", b"discard")])
    found = client.get(path)
    assert (found["reasons"], len(found["records"]), found["unread"]) == ({"ValueError": 1}, 1, 0)
    newest = client.get(f"{path}?limit=1")
    assert (newest["reasons"], newest["records"], newest["unread"]) == ({}, [], 1)


def test_an_unknown_parameter_of_dead_letter_records_is_refused(client: Client) -> None:
    assert "unknown parameter 'after'" in client.get("/api/flows/totals/dead-letters?after=1", 400)["text"]


def test_nothing_can_be_changed(client: Client) -> None:
    for path in ("/api/flows/totals/dead-letters", "/api/flows", "/flows/totals/stages/total/keys/k1"):
        assert client.ask(path, method="POST")[0] == 405
        assert client.ask(path, method="DELETE")[0] == 405


def test_a_key_leads_to_its_own_state_though_its_text_looks_like_bytes() -> None:
    flow = Flow("hex", state_partitions=1)
    flow.source("raw", dict, raw=True).aggregate("seen", key=lambda e: e["k"], state=dict, fold=note)
    service = Rehearsal(flow)
    for key in ("A", "0x41", "0x", "0x4", "0xzz"):
        service.feed("raw", {"k": key})
    service.run_until_caught_up()
    with serve(service.log, service.stores, {"hex": service.flow}, "127.0.0.1", 0) as port:
        asked = Client(port, service)
        keys = asked.get("/flows/hex/stages/seen/keys")["keys"]
        named = [key if isinstance(key, str) else f"0x{key['hex']}" for key in keys]
        found = [asked.get(f"/flows/hex/stages/seen/keys/{name}") for name in named]
    assert sorted(answer["states"][0]["state"]["k"] for answer in found) == ["0x", "0x4", "0x41", "0xzz", "A"]
    assert [answer["key"] for answer in found] == keys


def test_a_rebuild_is_no_flow_of_its_own(client: Client) -> None:
    service = client.service
    service.service = None
    service.rebuild()
    assert [flow["name"] for flow in client.get("/api/flows")["flows"]] == ["totals"]


def test_what_a_flow_without_plans_has_skipped_is_unknown_here(client: Client) -> None:
    assert client.get("/api/flows/totals")["skipped"] == [{"error": "ValueError", "count": 1}]
    flow = republisher()
    with serve(client.service.log, client.service.stores, {"up": flow.compile()}, "127.0.0.1", 0) as port:
        assert Client(port, client.service).get("/api/flows/up")["skipped"] is None


def test_every_answer_has_the_headers_that_keep_others_out(client: Client) -> None:
    for path in ("/", "/static/app.js", "/api/flows", "/nothing"):
        _, headers, _ = client.ask(path)
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
    for host in ("evil.example", "localhost.evil.example", "testserver"):
        assert client.ask("/api/flows", headers={"Host": host})[0] == 400


def test_large_bodies_are_refused_before_they_are_read(client: Client) -> None:
    path = "/api/flows/totals/dead-letters/replay"
    with closing(socket.create_connection(("127.0.0.1", client.port), 5)) as connection:
        request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {1 << 30}\r\n\r\n"
        connection.sendall(request.encode())
        assert b" 413 " in connection.recv(200)


def open_stream(client: Client) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", client.port), 10)
    connection.sendall(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection


def wait_for_flows(connection: socket.socket) -> None:
    """Read until all flows have come; a socket's time limit ends it."""
    received = b""
    while b"event: flows" not in received:
        block = connection.recv(65_536)
        assert block, received
        received += block


def test_many_streams_get_the_same_snapshot_and_one_reader(client: Client) -> None:
    with ExitStack() as opened:
        streams = [opened.enter_context(closing(open_stream(client))) for _ in range(60)]
        for connection in streams:
            wait_for_flows(connection)
    client.get("/api/flows")


def test_streams_that_end_at_any_moment_stop_no_other(client: Client) -> None:
    with closing(open_stream(client)) as watching:
        wait_for_flows(watching)
        for number in range(40):
            with closing(open_stream(client)):
                time.sleep(number / 10_000)  # anywhere in what the server does for it
            if number % 10 == 0:
                client.service.feed("numbers", Int64Value(value=number), partition=0, timestamp_ms=100)
                wait_for_flows(watching)


def test_the_page_uses_no_html_of_others_and_nothing_from_elsewhere() -> None:
    from sqe_chain.ext.web import application  # noqa: PLC0415 - its files

    for file in Path(application.STATIC).iterdir():
        text = file.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "eval(" not in text
        assert "https://" not in text


def test_the_interface_is_described(client: Client) -> None:
    described = client.get("/openapi.json")
    assert described["openapi"] == "3.1.0"
    for path in described["paths"]:
        filled = path.replace("{flow}", "totals").replace("{stage}", "total").replace("{key}", "k0")
        client.get(filled)
