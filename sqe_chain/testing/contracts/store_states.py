"""What a store must do with states and their headers, and when some of them are gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqe_chain.adapters import open_store
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Header, Rows, StateStore
from sqe_chain.task.states import Claim, Transition, persist
from sqe_chain.testing.contracts.store_harness import (
    BIG,
    BORN,
    CLAIM,
    LONGEST_ROW,
    NEXT,
    ODD_KEYS,
    StoreHarness,
    refused_as_mistake,
    zeros,
)


class StateRules(StoreHarness):
    """States and headers."""

    def test_what_was_never_written_has_no_header_and_no_states(self, store: StateStore, flow: str) -> None:
        assert store.headers(flow, "s", [0, 1]) == [None, None]
        assert store.headers(flow, "s", []) == []
        assert store.read(flow, "s", 0, [b"a", b"b"]) == (None, [None, None], None)
        assert list(store.scan(flow, "s", 0)) == []

    def test_rows_and_header_are_written_together(self, store: StateStore, flow: str) -> None:
        assert store.write(flow, "s", 0, None, BORN, [(b"a", b"1"), (b"b", b"2")]) == BORN
        assert store.read(flow, "s", 0, [b"b", b"a", b"c", b"b"]) == (BORN, [b"2", b"1", None, b"2"], BORN)
        assert store.write(flow, "s", 0, BORN, NEXT, [(b"a", b"3"), (b"c", b"")]) == NEXT
        assert store.read(flow, "s", 0, [b"a", b"b", b"c"]) == (NEXT, [b"3", b"2", b""], NEXT)

    def test_none_deletes_a_state(self, store: StateStore, flow: str) -> None:
        store.write(flow, "s", 0, None, BORN, [(b"a", b"1"), (b"b", b"2")])
        store.write(flow, "s", 0, BORN, NEXT, [(b"a", None), (b"never", None)])
        assert dict(store.scan(flow, "s", 0)) == {b"b": b"2"}
        again = replace(NEXT, number=2)
        store.write(flow, "s", 0, NEXT, again, [(b"a", b"new"), (b"b", None)])
        assert dict(store.scan(flow, "s", 0)) == {b"a": b"new"}

    @pytest.mark.parametrize("field", ["epoch", "run_id", "number", "plan_id", "begun_id", "cursor"])
    @pytest.mark.parametrize("cursor", [None, b"", b"key"])
    def test_a_header_that_differs_in_any_field_refuses_rows(
        self, store: StateStore, flow: str, field: str, cursor: bytes | None
    ) -> None:
        stands = replace(BORN, begun_id="plan-1", cursor=cursor)
        store.write(flow, "s", 0, None, stands, [(b"a", b"1"), (b"b", b"2")])
        other: dict[str, int | str | bytes | None] = {
            "epoch": 2, "run_id": "x", "number": 7, "plan_id": "x", "begun_id": "",
            "cursor": b"" if cursor is None else None,
        }  # fmt: skip
        expected = replace(stands, **{field: other[field]})  # type: ignore[arg-type]  # fields of many types
        assert store.write(flow, "s", 0, expected, NEXT, [(b"a", b"X"), (b"b", None), (b"c", b"X")]) == stands
        assert store.read(flow, "s", 0, [b"a", b"b", b"c"]) == (stands, [b"1", b"2", None], stands)

    def test_a_write_to_an_absent_header_is_refused_and_an_existing_one_is_not_made_again(
        self, store: StateStore, flow: str
    ) -> None:
        assert store.write(flow, "s", 0, BORN, NEXT, [(b"a", b"1")]) is None
        assert store.read(flow, "s", 0, [b"a"]) == (None, [None], None)
        store.write(flow, "s", 0, None, BORN, [])
        assert store.write(flow, "s", 0, None, NEXT, [(b"a", b"1")]) == BORN
        assert store.read(flow, "s", 0, [b"a"]) == (BORN, [None], BORN)

    def test_no_cursor_and_the_cursor_of_the_empty_key_differ(self, store: StateStore, flow: str) -> None:
        begun = replace(BORN, begun_id="plan-1", cursor=b"")
        assert store.write(flow, "s", 0, None, BORN, []) == BORN
        assert store.write(flow, "s", 0, BORN, begun, [(b"", b"1")]) == begun
        assert store.headers(flow, "s", [0]) == [begun]
        assert store.write(flow, "s", 0, begun, NEXT, [(b"z", b"1")]) == NEXT
        assert store.headers(flow, "s", [0]) == [NEXT]

    def test_a_persist_in_chunks_goes_from_cursor_to_cursor(self, store: StateStore, flow: str) -> None:
        header: Header = BORN
        store.write(flow, "s", 0, None, header, [])
        for key in sorted(ODD_KEYS):
            begun = replace(BORN, begun_id="plan-1", cursor=key)
            assert store.write(flow, "s", 0, header, begun, [(key, b"state of " + key)]) == begun
            assert store.headers(flow, "s", [0]) == [begun]
            header = begun
        assert store.write(flow, "s", 0, header, NEXT, []) == NEXT
        assert store.read(flow, "s", 0, ODD_KEYS) == (NEXT, [b"state of " + key for key in ODD_KEYS], NEXT)

    def test_keys_and_states_are_any_bytes(self, store: StateStore, flow: str) -> None:
        rows = [(key, key[::-1] + b"\0") for key in sorted(ODD_KEYS)]
        store.write(flow, "s", 0, None, BORN, rows)
        assert dict(store.scan(flow, "s", 0)) == dict(rows)
        store.write(flow, "s", 0, BORN, NEXT, [(key, None) for key, _ in rows])
        assert store.read(flow, "s", 0, ODD_KEYS)[1] == [None] * len(ODD_KEYS)

    def test_a_state_is_never_taken_for_a_key(self, store: StateStore, flow: str) -> None:
        rows: Rows = [(b"a", b"b"), (b"b", b"c"), (b"c", b"a")]
        store.write(flow, "s", 0, None, BORN, rows)
        assert dict(store.scan(flow, "s", 0)) == dict(rows)
        store.write(flow, "s", 0, BORN, NEXT, [(b"b", None), (b"c", b"a")])
        assert dict(store.scan(flow, "s", 0)) == {b"a": b"b", b"c": b"a"}

    def test_numbers_that_no_double_can_hold_are_compared_exactly(self, store: StateStore, flow: str) -> None:
        home = replace(CLAIM, epoch=BIG, number=BIG)
        store.set_home(flow, None, home, b"plan")
        assert store.set_home(flow, replace(home, epoch=BIG - 1), CLAIM) == home
        assert store.set_home(flow, replace(home, number=BIG - 1), CLAIM) == home
        assert store.beat(flow, BIG, "run-a")
        assert not store.beat(flow, BIG - 1, "run-a")
        assert store.plan(flow, BIG) == b"plan"
        assert store.plan(flow, BIG - 1) is None
        header = replace(BORN, epoch=BIG, number=2**63 - 1)
        store.write(flow, "s", 0, None, header, [])
        assert store.write(flow, "s", 0, replace(header, number=2**63 - 2), NEXT, []) == header
        assert store.write(flow, "s", 0, replace(header, epoch=BIG - 1), NEXT, []) == header
        assert store.headers(flow, "s", [0]) == [header]

    def test_flows_stages_and_parts_do_not_touch_each_other(self, store: StateStore, flow: str) -> None:
        places = [(flow, "s", 0), (flow, "s", 1), (flow, "t", 0), (f"{flow}.b", "s", 0), (flow, "s", 10)]
        for number, place in enumerate(places):
            store.write(*place, None, replace(BORN, number=number), [(b"k", b"%d" % number)])
        for number, place in enumerate(places):
            header = replace(BORN, number=number)
            assert store.read(*place, [b"k"]) == (header, [b"%d" % number], header)
        assert [header and header.number for header in store.headers(flow, "s", [10, 5, 0, 1])] == [
            4,
            None,
            0,
            1,
        ]

    def test_a_state_of_one_megabyte(self, store: StateStore, flow: str) -> None:
        state = bytes(range(256)) * 4096
        assert store.write(flow, "s", 0, None, BORN, [(b"k" * 1024, state)]) == BORN
        assert store.read(flow, "s", 0, [b"k" * 1024])[1] == [state]
        assert list(store.scan(flow, "s", 0)) == [(b"k" * 1024, state)]

    def test_a_single_row_may_be_larger_than_a_step(self, url: str, flow: str) -> None:
        store = open_store(url, max_bytes="1000")
        assert store.write(flow, "s", 0, None, BORN, [(b"k", b"x" * 5000)]) == BORN
        with refused_as_mistake():
            store.write(flow, "s", 0, BORN, NEXT, [(b"k", b"x" * 900), (b"l", b"x" * 200)])
        assert store.headers(flow, "s", [0]) == [BORN]
        store.close()

    def test_a_step_with_too_many_rows_is_the_callers_mistake(self, store: StateStore, flow: str) -> None:
        rows = [(b"%08d" % number, b"") for number in range(store.max_rows + 1)]
        with refused_as_mistake():
            store.write(flow, "s", 0, None, BORN, rows)
        assert store.write(flow, "s", 0, None, BORN, rows[:-1]) == BORN

    def test_a_hundred_thousand_keys_of_one_batch(self, store: StateStore, flow: str) -> None:
        """In chunks, by the cursor, as the protocol persists them; with the sizes that a server takes by default."""
        store.write(flow, "s", 0, None, BORN, [])
        rows = [(b"key-%06d" % number, b"state %d" % number) for number in range(100_000)]
        transition = Transition(flow, Claim(1, "run-a"), 0, "plan-0")
        assert persist(store, transition, "plan-1", "s", 0, rows, BORN) == len(rows)
        asked = [*(key for key, _ in reversed(rows)), b"none"]
        assert store.read(flow, "s", 0, asked) == (
            NEXT,
            [*(state for _, state in reversed(rows)), None],
            NEXT,
        )
        assert dict(store.scan(flow, "s", 0)) == dict(rows)

    def test_deleting_as_many_rows_as_a_step_takes(self, store: StateStore, flow: str) -> None:
        keys = [b"%08d" % number for number in range(store.max_rows)]
        store.write(flow, "s", 0, None, BORN, [(key, b"1") for key in keys])
        assert store.write(flow, "s", 0, BORN, NEXT, [(key, None) for key in keys]) == NEXT
        assert list(store.scan(flow, "s", 0)) == []

    def test_the_longest_key_of_a_row_fits(self, store: StateStore, flow: str) -> None:
        """32 KiB of a key, and 64 bytes that a row's name adds; and a state of 2 MiB with its key."""
        assert store.max_state_bytes >= 2 << 20
        key = b"k" * LONGEST_ROW
        assert store.max_key_bytes >= len(key)
        assert store.write(flow, "s", 0, None, BORN, [(key, b"1")]) == BORN
        begun = replace(BORN, begun_id="plan-1", cursor=key)
        assert store.write(flow, "s", 0, BORN, begun, []) == begun
        assert store.read(flow, "s", 0, [key]) == (begun, [b"1"], begun)
        assert list(store.scan(flow, "s", 0)) == [(key, b"1")]

    def test_data_above_a_limit_is_refused_and_nothing_is_changed(self, store: StateStore, flow: str) -> None:
        """By the store itself: else the server's own error would be one more name to know."""
        store.write(flow, "s", 0, None, BORN, [(b"a", b"1")])
        for rows in ([(zeros(store.max_key_bytes), b"1")], [(b"b", zeros(store.max_state_bytes))]):
            with pytest.raises(ConfigurationError):
                store.write(flow, "s", 0, BORN, NEXT, rows)
        assert store.headers(flow, "s", [0]) == [BORN]
        assert dict(store.scan(flow, "s", 0)) == {b"a": b"1"}
        with pytest.raises(ConfigurationError):
            store.set_home(flow, None, replace(CLAIM, number=0), zeros(store.max_plan_bytes))
        assert store.home(flow)[0] is None

    def test_a_name_that_could_reach_into_anothers_keys_is_refused(self, store: StateStore) -> None:
        for name in ("", "a/b", "a}:home", "a b", "ä"):
            with refused_as_mistake():
                store.home(name)
            with refused_as_mistake():
                store.headers("flow", name, [0])


class LostRules(StoreHarness):
    """States that are gone beside their header."""

    @pytest.mark.parametrize("lost", [None, [b"a"]])
    def test_a_cell_that_has_lost_states_beside_its_header_raises(
        self, url: str, store: StateStore, flow: str, lost: list[bytes] | None
    ) -> None:
        """Else it would be counted on from nothing, in silence."""
        if self.notices_lost_states not in ("any", "any" if lost else "all"):
            pytest.skip(f"the store notices lost states: {self.notices_lost_states}")
        store.write(flow, "s", 0, None, BORN, [])
        store.write(flow, "s", 0, BORN, NEXT, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
        later = replace(NEXT, number=2, plan_id="plan-2")
        store.write(flow, "s", 0, NEXT, later, [(b"b", None), (b"c", b"4"), (b"d", b"5")])
        store.write(flow, "s", 1, None, BORN, [])
        self.lose_states(url, flow, lost)
        _check_lost(store, flow, later)
        # A write goes on from what there must have been: it hides nothing.
        claimed = replace(later, epoch=2, run_id="run-b")
        assert store.write(flow, "s", 0, later, claimed, []) == claimed
        _check_lost(store, flow, claimed)
        assert store.write(flow, "s", 0, claimed, claimed, [(b"z", b"9"), (b"y", None)]) == claimed
        if self.notices_after_writes:
            assert store.headers(flow, "s", [0])[0].lost  # type: ignore[union-attr]
        assert store.headers(flow, "s", [1])[0].lost == ""  # type: ignore[union-attr]

    def test_no_states_are_missed_where_none_ever_were_or_all_were_deleted(
        self, store: StateStore, flow: str
    ) -> None:
        store.write(flow, "s", 0, None, BORN, [])
        assert _nothing_lost(store, flow)
        assert store.read(flow, "s", 0, [b"a"]) == (BORN, [None], BORN)
        store.write(flow, "s", 0, BORN, NEXT, [(b"a", b"1")])
        assert _nothing_lost(store, flow)
        last = replace(NEXT, number=2, plan_id="plan-2")
        store.write(flow, "s", 0, NEXT, last, [(b"a", None), (b"never", None)])
        assert _nothing_lost(store, flow)
        assert store.headers(flow, "s", [0]) == [last]
        assert store.read(flow, "s", 0, [b"a"]) == (last, [None], last)
        assert store.forget_part(flow, "s", 0, last) is None
        assert store.headers(flow, "s", [0]) == [None]
        store.write(flow, "s", 0, None, BORN, [])
        assert _nothing_lost(store, flow)
        assert store.headers(flow, "s", [0]) == [BORN]


def _check_lost(store: StateStore, flow: str, wanted: Header) -> None:
    """Check that every way to a header reports what is gone."""
    headers = [store.headers(flow, "s", [1, 0])[1], *store.read(flow, "s", 0, [b"a"])[::2]]
    for header in (*headers, store.read(flow, "s", 0, [])[0]):
        assert header == wanted
        assert isinstance(header, Header)
        assert header.lost


def _nothing_lost(store: StateStore, flow: str) -> bool:
    headers = [*store.headers(flow, "s", [0]), *store.read(flow, "s", 0, [b"a"])[::2]]
    return all(header is None or (isinstance(header, Header) and not header.lost) for header in headers)
