"""Goal: an audit reports each loss of a store, or that it cannot know. Method: twenty keys in memory, damaged in one way each; a sum of what was fed judges."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sqe_chain.adapters.memory.store import MemoryStore, PartCopy
from sqe_chain.envelope.partitioner import cell_of
from sqe_chain.errors import StoreInconsistent, Unavailable
from sqe_chain.ext.explain.audit import AuditedStage, audit
from sqe_chain.ext.explain.trace import trace
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of

FLOW, STAGE, CELLS = "lost", "per", 4
KEYS = [f"k{number}".encode() for number in range(20)]


def add(total: dict[str, int], value: dict[str, int]) -> None:
    total["n"] = total.get("n", 0) + value["n"]


@pytest.fixture
def counted() -> Rehearsal:
    flow = Flow(FLOW, state_partitions=CELLS)
    flow.source("in", dict, raw=True).aggregate(STAGE, key=lambda value: value["k"], state=dict, fold=add)
    rehearsal = Rehearsal(flow)
    for number in range(100):
        rehearsal.feed("in", {"k": KEYS[number % 20].decode(), "n": number})
    rehearsal.run_until_caught_up()
    return rehearsal


def store_of(rehearsal: Rehearsal) -> MemoryStore:
    store = rehearsal.stores[""]
    assert isinstance(store, MemoryStore)
    return store


def change(rehearsal: Rehearsal, cell: int, damage: Callable[[PartCopy], object]) -> None:
    copy = store_of(rehearsal).copy_part(FLOW, STAGE, cell)
    damage(copy)
    store_of(rehearsal).restore_part(FLOW, STAGE, cell, copy)


def audited(rehearsal: Rehearsal, sample: int = 200) -> AuditedStage:
    env = environment_of(rehearsal)
    return audit(env, env.flow.stages[0], sample, Random(1))


def home_of(key: bytes) -> int:
    return cell_of(key, CELLS, 1)


def test_nothing_is_lost(counted: Rehearsal) -> None:
    assert audited(counted).different == ()
    assert audited(counted).keys == 20


def test_a_state_that_is_gone_with_its_count(counted: Rehearsal) -> None:
    def lose(part: PartCopy) -> None:
        del part.states[KEYS[3]]
        part.count = None if part.count is None else part.count - 1

    change(counted, home_of(KEYS[3]), lose)
    result = audited(counted)
    assert result.different == (KEYS[3],)
    assert result.first == ("the store has no state; the first record is in[0]@3",)


def test_all_states_of_all_cells_are_gone_with_their_counts(counted: Rehearsal) -> None:
    def lose(part: PartCopy) -> None:
        part.states, part.count = {}, 0

    for cell in range(CELLS):
        change(counted, cell, lose)
    assert audited(counted).different == tuple(sorted(KEYS))


@pytest.mark.parametrize("what", ["states", "cell"])
def test_a_cell_that_is_gone(counted: Rehearsal, what: str) -> None:
    cell = home_of(KEYS[3])
    if what == "states":
        change(counted, cell, lambda part: part.states.clear())
    else:
        store_of(counted).restore_part(FLOW, STAGE, cell)
    with pytest.raises(StoreInconsistent):
        audited(counted)
    env = environment_of(counted)
    with pytest.raises(StoreInconsistent):
        trace(env, env.flow.stages[0], [KEYS[3]])


def test_a_state_in_a_cell_where_nobody_looks_for_it(counted: Rehearsal) -> None:
    own, other = home_of(KEYS[3]), (home_of(KEYS[3]) + 1) % CELLS
    moved = store_of(counted).copy_part(FLOW, STAGE, own).states[KEYS[3]]
    change(counted, own, lambda part: part.states.pop(KEYS[3]))
    change(counted, own, lambda part: setattr(part, "count", len(part.states)))
    change(counted, other, lambda part: part.states.update({KEYS[3]: moved}))
    change(counted, other, lambda part: setattr(part, "count", len(part.states)))
    assert audited(counted).different == (KEYS[3],)


def replaced(rehearsal: Rehearsal, key: bytes, state: bytes) -> None:
    change(rehearsal, home_of(key), lambda part: part.states.update({key: state}))


def test_a_number_that_python_takes_for_the_same_is_another_state(counted: Rehearsal) -> None:
    env = environment_of(counted)
    right = store_of(counted).copy_part(FLOW, STAGE, home_of(KEYS[3])).states[KEYS[3]]
    replaced(counted, KEYS[3], right.replace(b"}", b".0}"))
    assert audited(counted).different == (KEYS[3],)
    assert trace(env, env.flow.stages[0], [KEYS[3]]).equal is False
    replaced(counted, KEYS[3], b" " + right)
    assert audited(counted).different == ()


def test_a_state_that_cannot_be_read_is_named(counted: Rehearsal) -> None:
    env = environment_of(counted)
    replaced(counted, KEYS[3], b"{")
    with pytest.raises(StoreInconsistent, match="'k3' in stage 'per' of flow 'lost' cannot be decoded"):
        audited(counted)
    with pytest.raises(StoreInconsistent, match="'k3' in stage 'per' of flow 'lost' cannot be decoded"):
        trace(env, env.flow.stages[0], [KEYS[3]])


def test_a_record_beside_the_states_that_is_gone_is_no_flow_that_has_not_run(counted: Rehearsal) -> None:
    store = store_of(counted)
    locations = store.locations(FLOW)
    assert locations is not None
    store.forget_locations(FLOW, locations)
    with pytest.raises(Unavailable, match="has run with this store"):
        audited(counted)
    store.set_locations(FLOW, locations)
    store.restore_home(FLOW)
    with pytest.raises(StoreInconsistent, match="has lost that record"):
        audited(counted)


def test_a_key_whose_state_the_fold_has_deleted_is_no_loss() -> None:
    flow = Flow("ends", state_partitions=2)

    def fold(state: dict[str, int], value: dict[str, int], context: object) -> None:
        state["n"] = value["n"]
        if value["n"] < 0:
            context.delete_state()  # type: ignore[attr-defined]

    flow.source("in", dict, raw=True).aggregate("s", key=lambda value: value["k"], state=dict, fold=fold)
    rehearsal = Rehearsal(flow)
    for key, number in (("a", 1), ("b", 2), ("a", -1)):
        rehearsal.feed("in", {"k": key, "n": number})
    rehearsal.run_until_caught_up()
    result = audited(rehearsal)
    assert (result.different, result.keys) == ((), 2)
