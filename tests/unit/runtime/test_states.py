"""Goal: one state is found by names that never change, also while a rebuild moves and deletes it.

Method: flows run in memory; a store that is asked for a state rebuilds the flow first, at the worst moment.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import Flow, get, states
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError, StoreInconsistent, Unavailable
from sqe_chain.ports import Header, Location, Locations
from sqe_chain.runtime import states as reading
from sqe_chain.runtime.states import StoredStage
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import FaultScript, InjectedFault
from sqe_chain.testing.faulty_ports import faulty_store
from tests.support.word_flows import first_letter, word

names = itertools.count()


def add(total: Int64Value, _: StringValue) -> None:
    total.value += 1


def add_json(total: dict[str, int], _: StringValue) -> None:
    total["words"] = total.get("words", 0) + 1


def flow_of() -> Flow:
    flow = Flow("counts", state_partitions=3)
    source = flow.source("words", StringValue)
    source.aggregate("per-letter", key=first_letter, state=Int64Value, fold=add, buckets=2)
    source.aggregate("plain", key=first_letter, state=dict, fold=add_json, store="other")
    source.windowed(
        "windows", Tumbling(60_000), key=first_letter, state=Int64Value, fold=add, retention_ms=1_000
    )
    return flow


@dataclass
class Deployment:
    """A flow that has counted three words, and the addresses of its stores."""

    flow: Flow
    stores: dict[str, MemoryStore]
    rehearsal: Rehearsal

    @property
    def urls(self) -> dict[str, str]:
        return {name: f"memory://{store.name}" for name, store in self.stores.items()}


@pytest.fixture
def found() -> Iterator[Deployment]:
    flow = flow_of()
    stores = {name: MemoryStore(f"lookup-{next(names)}") for name in ("", "other")}
    rehearsal = Rehearsal(flow, store=stores)
    for text in ("ant", "bee", "ape"):
        rehearsal.feed("words", word(text))
    rehearsal.run_until_caught_up()
    yield Deployment(flow, stores, rehearsal)
    for store in stores.values():
        store.restore_all()


@pytest.mark.parametrize("rebuilds", [0, 1, 2])
def test_a_state_keeps_its_name_through_rebuilds(found: Deployment, rebuilds: int) -> None:
    for _ in range(rebuilds):
        found.rehearsal.rebuild()
    for flow in (found.flow, "counts"):
        assert get(flow, "per-letter", "a", store=found.urls) == Int64Value(value=2)
        assert get(flow, "per-letter", b"b", store=found.urls[""]) == Int64Value(value=1)
        assert get(flow, "per-letter", "c", store=found.urls) is None
        assert get(flow, "plain", "a", store=found.urls) == {"words": 2}


def test_a_store_of_the_stage_alone_is_enough(found: Deployment) -> None:
    assert get("counts", "plain", "b", store={"other": found.urls["other"]}) == {"words": 1}


def test_questions_that_cannot_be_answered_are_refused(found: Deployment) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("store={'': URL, 'other': URL}")):
        get("counts", "plain", "a", store=found.urls[""])
    with pytest.raises(ConfigurationError, match="has no flow 'nobody'"):
        get("nobody", "plain", "a", store=found.urls)
    with pytest.raises(ConfigurationError, match="has not run with stage 'nothing' yet"):
        get("counts", "nothing", "a", store=found.urls)
    for flow in (found.flow, "counts"):
        with pytest.raises(ConfigurationError, match="Expected one state for a key"):
            get(flow, "windows", "a", store=found.urls)
    with pytest.raises(ConfigurationError, match="Expected the address of one"):
        get("counts", "plain", "a", store={})


def test_a_type_that_is_not_known_here_asks_for_the_flow(found: Deployment) -> None:
    store = found.stores[""]
    known = store.locations("counts")
    assert known is not None
    for name in ("acme.v1.Total", "own:Total", ""):
        one = Location("counts", 3, 2, "aggregate", name)
        store.set_locations("counts", Locations(known.epoch + 1, 0, {"per-letter": one}))
        with pytest.raises(ConfigurationError, match=r"(?i)give the flow itself"):
            get("counts", "per-letter", "a", store=found.urls)
        assert get(found.flow, "per-letter", "a", store=found.urls) == Int64Value(value=2)
        known = store.locations("counts") or known


def test_what_is_no_state_of_this_type_is_inconsistent(found: Deployment) -> None:
    store = found.stores[""]
    for part, before in enumerate(store.headers("counts", "per-letter", range(6))):
        store.write("counts", "per-letter", part, before, Header(1, "r", 1, "p"), [(b"a", b"\xff")])
    with pytest.raises(StoreInconsistent, match="the state of key 'a' in stage 'per-letter'"):
        get(found.flow, "per-letter", "a", store=found.urls)


def test_a_store_without_the_locations_of_states_names_the_start_that_writes_them(found: Deployment) -> None:
    """Plans are not read in their place."""
    for store in found.stores.values():
        known = store.locations("counts")
        assert known is not None
        store.forget_locations("counts", known)
    for flow in (found.flow, "counts"):
        with pytest.raises(Unavailable, match="'counts' has run with this store"):
            get(flow, "per-letter", "a", store=found.urls)
    with states(found.flow, "plain", found.urls) as plain, pytest.raises(Unavailable):
        plain.to_dict()


def rebuilt(deployment: Deployment) -> tuple[StoredStage, Callable[[], None]]:
    """A stage, and what lets the flow be rebuilt right before a state is read: after its location was looked up."""
    script = FaultScript()
    store = faulty_store(deployment.stores[""], script)

    def rebuild() -> None:
        script.injected += [
            InjectedFault(deployment.rehearsal.rebuild, method=name) for name in ("read", "scan")
        ]

    return StoredStage("counts", "per-letter", store, store), rebuild


def test_a_state_that_is_deleted_meanwhile_is_found_where_it_is_now(found: Deployment) -> None:
    stage, rebuild = rebuilt(found)
    for keys in ([b"a", b"b"], [b"a"], [b"none"]):
        rebuild()
        expected = [{b"a": 2, b"b": 1}.get(key) for key in keys]
        read = stage.read(keys)
        assert [None if one is None else Int64Value.FromString(one).value for one in read] == expected


def test_rows_that_may_be_missing_are_not_passed_off_as_all(found: Deployment) -> None:
    stage, rebuild = rebuilt(found)
    rebuild()
    with pytest.raises(Unavailable, match="rebuilt while this read stage 'per-letter'"):
        list(stage.scan())
    assert {key for key, _ in stage.scan()} == {b"a", b"b"}


def test_a_server_is_asked_once_who_it_is(found: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(reading, "check_stores", asked.append)
    for _ in range(3):
        get("counts", "per-letter", "a", store=found.urls[""])
    assert asked == [[found.urls[""]]]
