"""The contract of `sqe_chain.ports.StateStore`."""

from __future__ import annotations

from sqe_chain.testing.contracts.store_claims import ClaimRules, LocationRules
from sqe_chain.testing.contracts.store_races import SharedRules
from sqe_chain.testing.contracts.store_states import LostRules, StateRules
from sqe_chain.testing.contracts.store_views import ForgettingRules, ViewRules


class StoreContract(
    ClaimRules, LocationRules, StateRules, LostRules, ViewRules, ForgettingRules, SharedRules
):
    """Every rule of stores. A subclass gives the fixture `url`, and declares what its store can do; see `StoreHarness`."""
