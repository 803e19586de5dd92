"""What a store must do with views, which other programs read, and with flows that are forgotten."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Final

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.adapters import open_store
from sqe_chain.flow import Flow
from sqe_chain.ports import Rows, StateStore, ViewKind, Views
from sqe_chain.testing.contracts.store_harness import BORN, CLAIM, NEXT, StoreHarness, refused_as_mistake
from sqe_chain.testing.rehearsal import Rehearsal


def _counts(view: ViewKind) -> Flow:
    """A flow that shows its states."""

    def add(total: Int64Value, _: Int64Value) -> None:
        total.value += 1

    flow = Flow(f"counts-{uuid.uuid4().hex}", state_partitions=2)
    source = flow.source("numbers", Int64Value)
    source.aggregate("s", state=Int64Value, fold=add, view=view)
    return flow


class ViewRules(StoreHarness):
    """Views of states."""

    @pytest.mark.usefixtures("shows_json")
    def test_views_are_written_and_deleted_with_their_states(
        self, url: str, store: StateStore, flow: str
    ) -> None:
        first = Views("json", {b"a": '{"n":1}', b"b": '{"n":"ü"}'})
        store.write(flow, "s", 0, None, BORN, [(b"a", b"1"), (b"b", b"2")], first)
        assert self.shown(url, flow, 0) == first.shown
        # A step that is refused shows nothing.
        store.write(flow, "s", 0, None, NEXT, [(b"a", b"9")], Views("json", {b"a": "9"}))
        assert self.shown(url, flow, 0) == first.shown
        store.write(flow, "s", 0, BORN, NEXT, [(b"a", None), (b"b", b"3")], Views("json", {b"b": "{}"}))
        assert self.shown(url, flow, 0) == {b"b": "{}"}
        assert store.read(flow, "s", 0, [b"a", b"b"]) == (NEXT, [None, b"3"], NEXT)

    @pytest.mark.usefixtures("shows_json")
    def test_rows_without_a_view_show_nothing(self, url: str, store: StateStore, flow: str) -> None:
        """Of a windowed stage only some rows are shown; the others are written and deleted with them."""
        rows: Rows = [(b"a", b"1"), (b"v1", b"2"), (b"v2", b"3"), (b"w", b"4")]
        store.write(flow, "s", 0, None, BORN, rows, Views("json", {b"v1": "1", b"v2": "2"}))
        assert self.shown(url, flow, 0) == {b"v1": "1", b"v2": "2"}
        more: Rows = [(b"a", None), (b"v1", None), (b"v2", b"5"), (b"w", b"6")]
        assert store.write(flow, "s", 0, BORN, NEXT, more, Views("json", {b"v2": "3"})) == NEXT
        assert self.shown(url, flow, 0) == {b"v2": "3"}
        assert store.read(flow, "s", 0, [b"a", b"v1", b"v2", b"w"])[1] == [None, None, b"5", b"6"]

    @pytest.mark.usefixtures("shows_json")
    def test_a_step_with_a_view_that_is_larger_than_usual(self, url: str, flow: str) -> None:
        """A single row may be larger than a step; its view goes with it."""
        store = open_store(url, max_bytes="1000")
        text = '"' + "x" * 5_000 + '"'
        assert (
            store.write(flow, "s", 0, None, BORN, [(b"a", b"1" * 2_000)], Views("json", {b"a": text})) == BORN
        )
        assert self.shown(url, flow, 0) == {b"a": text}
        with refused_as_mistake():
            store.write(
                flow, "s", 0, BORN, NEXT, [(b"a", b"1"), (b"b", b"1")], Views("json", {b"a": text, b"b": ""})
            )
        store.close()

    @pytest.mark.parametrize("view", ["json", "hash"])
    def test_states_and_views_keep_their_name_and_nothing_old_is_left(
        self, url: str, store: StateStore, view: ViewKind
    ) -> None:
        """Found as another program finds them, before and after a rebuild; then under the old name nothing is found."""
        if view not in store.views:
            pytest.skip(f"no {view} views here")
        flow = _counts(view)
        service = Rehearsal(flow, store=store)
        for key in ("a", "b", "a"):
            service.feed("numbers", Int64Value(value=1), key=key)
        service.run_until_caught_up()
        seen: list[str] = []
        for _ in range(3):
            locations = store.locations(flow.name)
            assert locations is not None
            where = locations.stages["s"]
            read = [
                store.read(where.flow, "s", part, [b"a", b"b"])[1] for part in range(where.state_partitions)
            ]
            stored = {state for states in read for state in states if state is not None}
            assert stored == {
                Int64Value(value=2).SerializeToString(),
                Int64Value(value=1).SerializeToString(),
            }
            assert self.shown_keys(url, where.flow, view) == {b"a", b"b"}
            assert all(self.shown_keys(url, before, view) == set() for before in seen)
            seen.append(where.flow)
            service.rebuild()
        assert len(set(seen)) == 3


CHANGED: Final = {
    "epoch": replace(BORN, epoch=2),
    "run_id": replace(BORN, run_id="run-b"),
    "number": replace(BORN, number=1),
    "cursor": replace(BORN, cursor=b"k"),
}
"""Headers that differ from `BORN` in one field."""


class ForgettingRules(StoreHarness):
    """Listing flows, and forgetting them."""

    def test_flows_are_listed_until_they_are_forgotten(self, store: StateStore, flow: str) -> None:
        names = [f"{flow}-b", f"{flow}-a", f"{flow}.again-3"]
        assert not set(names) & set(store.flows())
        for name in names:
            store.set_home(name, None, CLAIM)
            store.write(name, "s", 0, None, BORN, [(b"k", b"1")])  # its keys are no flows
        listed = store.flows()
        assert [name for name in listed if name.startswith(flow)] == sorted(names)
        assert listed == sorted(listed)
        assert store.forget(names[0], CLAIM) is None
        assert [name for name in store.flows() if name.startswith(flow)] == sorted(names[1:])

    def test_what_was_forgotten_is_as_if_it_had_never_been(
        self, url: str, store: StateStore, flow: str
    ) -> None:
        """Other flows keep their data."""
        for name in (flow, f"{flow}-other"):
            store.set_home(name, None, CLAIM)
            store.set_home(name, CLAIM, replace(CLAIM, number=0, plan_id="p"), b"plan")
            store.beat(name, 1, "run-a")
            for part in (0, 1):
                view = Views("json", {b"": "1", b"k": "2"}) if "json" in store.views else None
                store.write(name, "s", part, None, BORN, [(b"", b"1"), (b"k", b"2")], view)
        assert store.forget_part(flow, "s", 0, BORN) is None
        if "json" in store.views:
            assert self.shown(url, flow, 0) == {}
        assert store.headers(flow, "s", [0, 1]) == [None, BORN]
        assert list(store.scan(flow, "s", 0)) == []
        assert store.forget(flow, CLAIM) == replace(CLAIM, number=0, plan_id="p")
        assert store.forget(flow, replace(CLAIM, number=0, plan_id="p")) is None
        assert store.home(flow) == (None, 0)
        assert store.plan(flow, 0) is None
        assert store.beat(flow, 1, "run-a") is False
        assert (
            store.write(flow, "s", 0, BORN, NEXT, [(b"k", b"3")]) is None
        )  # a run that slept changes nothing
        assert store.write(flow, "s", 0, None, BORN, [(b"k", b"4")]) == BORN
        assert dict(store.scan(flow, "s", 0)) == {b"k": b"4"}
        assert store.forget(flow, CLAIM) is None  # sent again
        other = f"{flow}-other"
        assert store.plan(other, 0) == b"plan"
        assert dict(store.scan(other, "s", 0)) == {b"": b"1", b"k": b"2"}

    @pytest.mark.parametrize("field", CHANGED)
    def test_a_state_partition_that_has_changed_is_not_forgotten(
        self, store: StateStore, flow: str, field: str
    ) -> None:
        standing = CHANGED[field]
        store.write(flow, "s", 0, None, standing, [(b"k", b"1")])
        assert store.forget_part(flow, "s", 0, BORN) == standing
        assert store.read(flow, "s", 0, [b"k"]) == (standing, [b"1"], standing)
