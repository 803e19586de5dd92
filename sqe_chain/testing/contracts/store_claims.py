"""What a store must do with claims, plans, heartbeats and the locations of states."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sqe_chain.ports import Home, Location, Locations, StateStore
from sqe_chain.testing.contracts.store_harness import (
    BIG,
    BORN,
    CLAIM,
    NEXT,
    StoreHarness,
    refused_as_mistake,
)

HERE = Location("flow", 8, 2, "aggregate", "json:Totäl", "json", "")
THERE = Location("flow.again-7", 16, 1, "aggregate", "acme.v1.Total", None, "")
FILTER = Location("flow", 8, 1, "deduplicate", "", None, "elsewhere")


class ClaimRules(StoreHarness):
    """Claims, plans and heartbeats."""

    def test_a_flow_that_was_never_claimed_has_no_home(self, store: StateStore, flow: str) -> None:
        assert store.home(flow) == (None, 0)
        assert store.plan(flow, 0) is None

    def test_an_absent_home_is_made(self, store: StateStore, flow: str) -> None:
        assert store.set_home(flow, None, CLAIM) == CLAIM
        assert store.home(flow) == (CLAIM, 0)

    def test_a_home_is_replaced_if_the_expected_one_is_stored(self, store: StateStore, flow: str) -> None:
        store.set_home(flow, None, CLAIM)
        second = replace(CLAIM, epoch=2, run_id="run-b")
        assert store.set_home(flow, CLAIM, second) == second
        assert store.home(flow)[0] == second

    @pytest.mark.parametrize("field", ["epoch", "run_id", "owner", "number", "plan_id"])
    def test_a_home_that_differs_in_any_field_is_not_replaced(
        self, store: StateStore, flow: str, field: str
    ) -> None:
        store.set_home(flow, None, CLAIM)
        other: dict[str, int | str] = {"epoch": 7, "run_id": "x", "owner": "x", "number": 7, "plan_id": "x"}
        expected = replace(CLAIM, **{field: other[field]})  # type: ignore[arg-type]  # fields of two types
        sealed = replace(CLAIM, number=0, plan_id="p")
        assert store.set_home(flow, expected, sealed, b"plan") == CLAIM
        assert store.home(flow) == (CLAIM, 0)
        assert store.plan(flow, 0) is None

    def test_a_home_expected_to_be_absent_is_not_replaced_and_one_that_is_absent_is_not_made(
        self, store: StateStore, flow: str
    ) -> None:
        assert store.set_home(flow, CLAIM, replace(CLAIM, epoch=2)) is None
        assert store.home(flow) == (None, 0)
        store.set_home(flow, None, CLAIM)
        assert store.set_home(flow, None, replace(CLAIM, epoch=2)) == CLAIM
        assert store.home(flow)[0] == CLAIM

    def test_a_step_sent_again_after_a_lost_reply_finds_itself_done(
        self, store: StateStore, flow: str
    ) -> None:
        sealed = replace(CLAIM, number=0, plan_id="p0")
        store.set_home(flow, None, CLAIM)
        assert store.set_home(flow, CLAIM, sealed, b"plan") == sealed
        assert store.set_home(flow, CLAIM, sealed, b"plan") == sealed
        store.write(flow, "s", 0, None, BORN, [])
        assert store.write(flow, "s", 0, BORN, NEXT, [(b"k", b"1")]) == NEXT
        assert store.write(flow, "s", 0, BORN, NEXT, [(b"k", b"other")]) == NEXT
        assert store.read(flow, "s", 0, [b"k"])[1] == [b"1"]

    def test_a_plan_is_stored_with_its_home_and_dropped_on_demand(self, store: StateStore, flow: str) -> None:
        home = CLAIM
        store.set_home(flow, None, home)
        plans = {number: bytes([number]) * 10 + b"\xff\0" for number in range(12)}
        for number, plan in plans.items():
            sealed = replace(CLAIM, number=number, plan_id=f"p{number}")
            assert store.set_home(flow, home, sealed, plan, drop_below=number - 3) == sealed
            home = sealed
        assert [store.plan(flow, number) for number in range(-1, 13)] == [
            *[None] * 9, plans[8], plans[9], plans[10], plans[11], None,
        ]  # fmt: skip

    def test_a_refused_step_drops_no_plan(self, store: StateStore, flow: str) -> None:
        sealed = replace(CLAIM, number=0, plan_id="p0")
        store.set_home(flow, None, sealed, b"plan")
        store.set_home(flow, CLAIM, replace(CLAIM, number=9, plan_id="p9"), b"late", drop_below=9)
        assert store.plan(flow, 0) == b"plan"
        assert store.plan(flow, 9) is None

    def test_a_plan_below_its_own_limit_is_dropped_at_once(self, store: StateStore, flow: str) -> None:
        sealed = replace(CLAIM, number=2, plan_id="p2")
        assert store.set_home(flow, None, sealed, b"plan", drop_below=3) == sealed
        assert store.plan(flow, 2) is None

    def test_a_step_without_a_plan_keeps_the_plans(self, store: StateStore, flow: str) -> None:
        sealed = replace(CLAIM, number=0, plan_id="p0")
        store.set_home(flow, None, sealed, b"plan")
        store.set_home(flow, sealed, replace(sealed, epoch=2, run_id="run-b"))
        assert store.plan(flow, 0) == b"plan"

    def test_plans_are_dropped_by_number_and_not_by_text(self, store: StateStore, flow: str) -> None:
        numbers = [9, 10, 99, 100, BIG - 1, BIG]
        home: Home | None = None
        for number in numbers:
            sealed = replace(CLAIM, number=number)
            store.set_home(flow, home, sealed, b"%d" % number)
            home = sealed
        after = replace(CLAIM, number=BIG + 1)
        store.set_home(flow, home, after, b"last", drop_below=100)
        left = [None, None, None, b"100", b"%d" % (BIG - 1), b"%d" % BIG]
        assert [store.plan(flow, number) for number in numbers] == left
        store.set_home(flow, after, replace(after, number=BIG + 2), b"later", drop_below=BIG)
        assert [store.plan(flow, number) for number in numbers] == [*[None] * 5, b"%d" % BIG]

    def test_only_the_holder_of_the_claim_moves_the_heartbeat(self, store: StateStore, flow: str) -> None:
        assert not store.beat(flow, 1, "run-a")
        store.set_home(flow, None, CLAIM)
        assert store.beat(flow, 1, "run-a")
        assert store.beat(flow, 1, "run-a")
        assert not store.beat(flow, 2, "run-a")
        assert not store.beat(flow, 1, "run-b")
        assert store.home(flow) == (CLAIM, 2)

    def test_nobody_holds_a_released_claim(self, store: StateStore, flow: str) -> None:
        store.set_home(flow, None, replace(CLAIM, run_id=""))
        assert not store.beat(flow, 1, "")
        assert store.home(flow)[1] == 0

    def test_a_new_claim_keeps_the_heartbeat_counter(self, store: StateStore, flow: str) -> None:
        store.set_home(flow, None, CLAIM)
        store.beat(flow, 1, "run-a")
        store.set_home(flow, CLAIM, replace(CLAIM, epoch=2, run_id="run-b"))
        assert store.home(flow)[1] == 1


class LocationRules(StoreHarness):
    """Where readers find the states of a flow."""

    def test_a_flow_that_never_ran_has_no_locations(self, store: StateStore, flow: str) -> None:
        assert store.locations(flow) is None
        assert store.forget_locations(flow, Locations(1, 0, {"s": HERE})) is None

    def test_locations_are_replaced_as_a_whole(self, store: StateStore, flow: str) -> None:
        first = Locations(1, 0, {"s": HERE, "gone": FILTER})
        second = Locations(1, BIG, {"s": THERE, "epoch": FILTER, "a.b-c_d": HERE})
        assert store.set_locations(flow, first) == first
        assert store.set_locations(flow, first) == first  # sent again
        assert store.locations(flow) == first
        assert store.set_locations(flow, second) == second
        assert store.locations(flow) == second
        assert store.locations(f"{flow}-other") is None

    def test_locations_never_go_back(self, store: StateStore, flow: str) -> None:
        """A run that was superseded while it slept finds newer ones, and changes nothing."""
        newest = Locations(10, 5, {"s": THERE})
        assert store.set_locations(flow, newest) == newest
        for older in (
            Locations(9, BIG, {"s": HERE}),
            Locations(10, 4, {"s": HERE, "t": HERE}),
            Locations(10, 5, {"s": HERE}),
        ):
            assert store.set_locations(flow, older) == newest
        assert store.locations(flow) == newest
        # After a rollback that was accepted a later run is at an earlier plan.
        later = Locations(11, 2, {"s": HERE})
        assert store.set_locations(flow, later) == later

    def test_a_run_that_knows_the_locations_can_delete_them(self, store: StateStore, flow: str) -> None:
        first, second = Locations(1, 0, {"s": HERE, "t": FILTER}), Locations(2, 0, {"s": THERE, "t": FILTER})
        store.set_locations(flow, second)
        store.set_locations(f"{flow}-other", first)
        for known in (first, Locations(2, 1, second.stages), Locations(1, 0, second.stages)):
            assert store.forget_locations(flow, known) == second
        assert store.locations(flow) == second
        assert store.forget_locations(flow, second) is None
        assert store.locations(flow) is None
        assert store.forget_locations(flow, second) is None  # sent again
        assert store.locations(f"{flow}-other") == first
        begun_anew = Locations(1, 0, {"s": HERE})
        assert store.set_locations(flow, begun_anew) == begun_anew
        assert store.locations(flow) == begun_anew

    def test_locations_without_a_stage_or_a_plan_are_refused(self, store: StateStore, flow: str) -> None:
        for wrong in (Locations(1, 0, {}), Locations(1, -1, {"s": HERE}), Locations(1, 0, {"a:b": HERE})):
            with refused_as_mistake():
                store.set_locations(flow, wrong)
        assert store.locations(flow) is None

    def test_of_locations_set_at_once_the_newest_stays(self, store: StateStore, flow: str) -> None:
        wanted = [Locations(1 + number % 5, number, {"s": HERE, f"t{number}": HERE}) for number in range(40)]
        with ThreadPoolExecutor(8) as pool:
            left = list(pool.map(lambda given: store.set_locations(flow, given), wanted))
        assert all(
            stands is not None and stands.age >= given.age for stands, given in zip(left, wanted, strict=True)
        )
        assert store.locations(flow) == max(wanted, key=lambda given: given.age)
