"""Goal: a page or a command pointed at the wrong thing names it in one line, and shows what it can.

Method: the page and the commands on flows in memory: with nothing, another flow's store, half an import, no brokers, bare records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ChainError, Unavailable
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.ext.explain.trace import trace
from sqe_chain.ext.web.command import serve
from sqe_chain.ext.web.records import TopicRecords
from sqe_chain.ext.web.site import Site
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash
from tests.support.environments import environment_of
from tests.unit.ext.web.test_pages import Client, client, totals

__all__ = ["client"]
FLOW = "/api/flows/totals"
STATE, KEYS = "/flows/totals/stages/total/keys/k1", "/flows/totals/stages/total/keys"
TRACE, WHY_NOT = f"{FLOW}/stages/total/trace/k1", f"{FLOW}/why-not/numbers/0/0"
RECORD = "/api/records/numbers/0/0"


class Away:
    """Brokers or a store that do not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        def call(*_: object, **__: object) -> None:
            self.asked += 1
            raise Unavailable(f"{name}: nobody answers")

        return call


@contextmanager
def page(service: Rehearsal, log: Any, stores: Any) -> Iterator[Client]:
    with serve(log, stores, {"totals": service.flow}, "127.0.0.1", 0) as port:
        yield Client(port, service)


def text_of(asked: Client, path: str, status: int) -> str:
    """The text of an answer, which is one line."""
    found, _, body = asked.ask(path)
    assert found == status, (path, found, body)
    if path == TRACE and status == 200:
        (event,) = body.decode().strip().split("\n\n")
        name, _, data = event.partition("\ndata: ")
        assert name == "event: failed"
        text = json.loads(data)["text"]
    else:
        text = json.loads(body)["text"]
    assert text
    assert "\n" not in text
    return str(text)


def test_a_page_pointed_at_nothing() -> None:
    service = Rehearsal(totals())
    with serve(None, {}, {}, "127.0.0.1", 0) as port:
        asked = Client(port, service)
        assert asked.get("/api/flows")["flows"] == []
        assert "no flow" in text_of(asked, FLOW, 404)
        assert "no store was given" in text_of(asked, KEYS, 404)
        assert "no brokers were given" in text_of(asked, RECORD, 404)
        assert "was not loaded" in text_of(asked, WHY_NOT, 404)


@pytest.mark.parametrize("other", [False, True], ids=["that never ran", "in the store of another flow"])
def test_a_flow(client: Client, other: bool) -> None:
    service = client.service if not other else Rehearsal(totals(), log=client.service.log)
    with page(service, service.log, {"": MemoryStore("empty")} if not other else service.stores) as asked:
        (summary,) = asked.get("/api/flows")["flows"]
        assert (summary["plan"], summary["stages"]) == (None, ["total"])
        assert asked.get(FLOW)["inputs"] == []
        assert "has not run with this store" in text_of(asked, STATE, 404)
        assert "has not run with this store" in text_of(asked, KEYS, 404)
        assert "has not run with this store" in text_of(asked, WHY_NOT, 422)
        assert "has not run with this store" in text_of(asked, TRACE, 200)
        assert asked.get(RECORD)["chain"]


def test_a_store_into_which_half_an_export_was_imported(client: Client) -> None:
    lines = client.service.exported()
    half = Rehearsal(totals(), log=client.service.log, max_rows_per_write=1)
    half.crash_at_call(8, of="store", writes=True)
    with pytest.raises(Crash):
        half.imported(lines)
    assert any(half.stores[""].headers("totals", "total", range(4)))
    with page(half, half.log, half.stores) as asked:
        assert asked.get("/api/flows")["flows"][0]["plan"] is None
        assert asked.get(FLOW)["plans"] == []
        assert "has not run with this store" in text_of(asked, KEYS, 404)
        assert "has not run with this store" in text_of(asked, STATE, 404)
        assert "has not run with this store" in text_of(asked, TRACE, 200)


def test_brokers_that_do_not_answer(client: Client) -> None:
    away = Away()
    with page(client.service, away, client.service.stores) as asked:
        for _ in range(5):
            assert asked.get("/api/flows")["flows"][0]["lag"] is None
        assert away.asked == 1, "each question would take as long as the client waits"
        described = asked.get(FLOW)
        assert described["away"] == "bounds: nobody answers"
        assert [part["end"] for part in described["inputs"]] == [None, None]
        assert described["plans"]
        assert asked.get(STATE)["states"]
        assert "nobody answers" in text_of(asked, RECORD, 503)
        assert "nobody answers" in text_of(asked, f"{FLOW}/dead-letters", 503)


def test_a_store_that_does_not_answer(client: Client) -> None:
    with page(client.service, client.service.log, {"": Away()}) as asked:
        for path in ("/api/flows", FLOW, STATE, KEYS):
            assert "nobody answers" in text_of(asked, path, 503)
        assert asked.get(RECORD)["chain"]


def test_records_without_envelopes() -> None:
    service = Rehearsal(totals(), partitions={"numbers": 1})
    for value in (b"", b"bare", b"\x00" * 500, None):
        service.log.append("numbers", 0, value, timestamp_ms=1)
    service.feed("numbers", Int64Value(value=1), timestamp_ms=2)
    service.run_until_caught_up()
    with page(service, service.log, service.stores) as asked:
        for offset in range(4):
            record = asked.get(f"/api/records/numbers/0/{offset}")
            assert record["chain"] == []
            assert record["unreadable"]
            assert asked.get(f"{FLOW}/why-not/numbers/0/{offset}")["verdict"] == "skipped"
        assert asked.get("/api/topics/numbers/replays")["replays"] == []
        assert asked.get(f"{FLOW}/why-not/numbers/0/4")["verdict"] == "counted"


def explained(call: Callable[[], object]) -> str:
    """The text of the error that a command shows."""
    with pytest.raises(ChainError) as raised:
        call()
    return str(raised.value)


def test_what_commands_explain_of_a_flow_that_never_ran(tmp_path: Path) -> None:
    service = Rehearsal(totals())
    env = environment_of(service)
    for text in (
        explained(lambda: trace(env, env.flow.stages[0], [b"k1"])),
        explained(lambda: find_fate(env, ("numbers", 0, 0))),
        explained(lambda: trace(env, env.flow.stages[0], [b"k1"], since=tmp_path / "none")),
    ):
        assert "flow 'totals': it has not run with this store" in text


def test_what_is_unknown_is_empty() -> None:
    assert Site(None, {}).list_flows() == []
    assert TopicRecords(None).replays_in("numbers") == {"replays": [], "unread": None}
