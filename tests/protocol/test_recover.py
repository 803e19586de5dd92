"""Goal: recovery never takes for finished upstream what is not finished downstream.

Method: by hand, headers of two stages at every pair of places. Then a store whose second stage loses a plan while
the first one is part-way through a write in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore, PartCopy
from sqe_chain.errors import StoreInconsistent, Superseded
from sqe_chain.flow import Flow
from sqe_chain.plans.layout import Layout
from sqe_chain.plans.plan import Plan
from sqe_chain.ports import Header
from sqe_chain.protocol.redo import redo_of, to_redo
from sqe_chain.task.states import CellStates, Claim, Transition
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

LEVELS = {0: 1, 1: 2}


def plan(number: int) -> Plan:
    return Plan(number, f"plan-{number}", "", Claim(1, "run"), 0, Layout(1), (), {})


def header(number: int, *, begun: bool = False) -> Header:
    next_id = f"plan-{number + 1}" if begun else ""
    return Header(1, "run", number, f"plan-{number}", next_id, b"k" if begun else None)


@pytest.mark.parametrize("upstream", [(6, False), (6, True), (7, False), (7, True), (8, False)])
@pytest.mark.parametrize("downstream", [(6, False), (6, True), (7, False), (7, True), (8, False)])
def test_no_upstream_header_is_beyond_a_downstream_one(
    upstream: tuple[int, bool], downstream: tuple[int, bool]
) -> None:
    """Begun counts as reached upstream, for its keys are folded, and as not reached downstream."""
    headers = {
        (0, 0): header(upstream[0], begun=upstream[1]),
        (1, 0): header(downstream[0], begun=downstream[1]),
    }
    if upstream[0] + upstream[1] > downstream[0]:
        with pytest.raises(StoreInconsistent, match="the second has lost it"):
            to_redo(plan(8), headers, LEVELS, plan)
    else:
        assert to_redo(plan(8), headers, LEVELS, plan) == [*range(min(upstream[0], downstream[0]) + 1, 9)]


def test_every_level_is_compared_with_all_after_it() -> None:
    """Also the last two alone, where the first agrees with both."""
    levels = {0: 1, 1: 2, 2: 3}
    for numbers in ((7, 7, 6), (7, 6, 7), (6, 7, 6)):
        headers = {(stage, 0): header(number) for stage, number in enumerate(numbers)}
        with pytest.raises(StoreInconsistent, match="the second has lost it"):
            to_redo(plan(8), headers, levels, plan)
    for numbers in ((6, 7, 8), (6, 6, 7), (7, 7, 7)):
        headers = {(stage, 0): header(number) for stage, number in enumerate(numbers)}
        assert to_redo(plan(8), headers, levels, plan) == [*range(min(numbers) + 1, 9)]


def test_the_plan_before_the_first_that_is_redone_has_to_be_kept_too() -> None:
    """A redo begins with its marks and offsets."""
    headers = {(0, 0): header(6), (1, 0): header(6)}
    kept = {7: plan(7), 8: plan(8)}
    with pytest.raises(StoreInconsistent, match="plan 6 is no longer kept"):
        to_redo(plan(8), headers, LEVELS, kept.get)
    assert to_redo(plan(8), headers, LEVELS, ({6: plan(6)} | kept).get) == [7, 8]


@pytest.mark.parametrize("wrong", ["beyond", "another", "begun another"])
@pytest.mark.parametrize("cell", [(0, 0), (1, 0), (1, 1)])
def test_a_single_header_of_no_plan_or_of_another_history_stops(cell: tuple[int, int], wrong: str) -> None:
    """Whatever the others hold."""
    headers = {(stage, part): header(8) for stage in (0, 1) for part in (0, 1)}
    headers[cell] = {
        "beyond": header(9),
        "another": replace(header(8), plan_id="another"),
        "begun another": replace(header(7, begun=True), begun_id="another"),
    }[wrong]
    with pytest.raises(StoreInconsistent, match="went back in time"):
        to_redo(plan(8), headers, LEVELS, plan)


@pytest.mark.parametrize(
    ("numbers", "publish", "top"),
    [
        ((7, 7, 7), True, None),
        ((7, 7, 8), False, 2),
        ((7, 8, 8), False, 1),
        ((7, 7, "begun"), False, 3),
        ((7, "begun", 8), False, 2),
    ],
)
def test_how_far_a_plan_has_come_decides_what_is_still_to_do(
    numbers: tuple[int | str, ...], publish: bool, top: int | None
) -> None:
    """One header that has reached or begun it proves that it was published; above the last unfinished level nothing runs."""
    headers = {
        (stage, 0): header(7, begun=True) if number == "begun" else header(int(number))
        for stage, number in enumerate(numbers)
    }
    redo = redo_of(plan(8), plan(7), headers, {0: 1, 1: 2, 2: 3})
    assert redo.publish == publish
    assert redo.top_level == top if top is not None else redo.top_level >= 3


def test_a_header_that_has_begun_another_plan_proves_nothing() -> None:
    """A batch that was sealed twice after 7, the second time by a newer run: what was published of the first is not the second."""
    headers = {(0, 0): replace(header(7, begun=True), begun_id="another"), (1, 0): header(7)}
    assert redo_of(plan(8), plan(7), headers, LEVELS).publish
    assert not redo_of(plan(8), plan(7), headers | {(0, 0): header(7, begun=True)}, LEVELS).publish


def flow_of() -> Flow:
    flow = Flow("notes", state_partitions=1)
    first = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    return flow


def noted() -> tuple[Rehearsal, PartCopy]:
    """One word noted and three more to come; and the second stage as it is before these."""
    store = MemoryStore(f"recover-{object()!r}", max_rows=1)
    rehearsal = Rehearsal(flow_of(), partitions={"words": 1}, store=store)
    rehearsal.feed("words", word("first"))
    rehearsal.run_until_caught_up()
    for text in ("ant", "bee", "cow"):
        rehearsal.feed("words", word(text))
    return rehearsal, store.copy_part("notes", "all", 0)


def test_a_second_stage_that_lost_a_plan_which_the_first_has_begun_to_write_stops() -> None:
    """The keys before the cursor are not folded again, so what they emitted would be missing permanently."""
    probe, _ = noted()
    begin = len(probe.script.written)
    probe.batch()
    at = next(i for i, what in enumerate(probe.script.written[begin:]) if "letters/0" in what)
    found, before = noted()
    found.crash_at_write(at, "after")
    found.run_until_crash()
    assert found.headers("letters")[0].begun_id  # type: ignore[union-attr]
    assert stored_words(found, "all")["all"].split() == ["first", "ant", "bee", "cow"]
    store = found.stores[""]
    assert isinstance(store, MemoryStore)
    store.restore_part("notes", "all", 0, before)
    with pytest.raises(StoreInconsistent, match="the second has lost it"):
        found.start()


class OvertakenStore(MemoryStore):
    """Between the first header of a read and its rows, another run writes."""

    def read(
        self, flow: str, stage: str, part: int, keys: Sequence[bytes]
    ) -> tuple[Header | None, list[bytes | None], Header | None]:
        before = self.headers(flow, stage, [part])[0]
        assert before is not None
        newer = Header(2, "other", before.number + 1, "plan-1")
        self.write(flow, stage, part, before, newer, [(key, b"torn") for key in keys])
        _, rows, after = super().read(flow, stage, part, keys)
        return before, rows, after


def test_rows_that_another_run_wrote_meanwhile_are_seen_by_the_header_after_them() -> None:
    """The header before them is as it should be; what was read is not."""
    store = OvertakenStore(f"overtaken-{object()!r}")
    store.write("flow", "stage", 0, None, Header(1, "run", 0, "plan-0"), [(b"a", b"whole")])
    cell = CellStates(store, Transition("flow", Claim(1, "run"), 0, "plan-0"), "stage", 0)
    with pytest.raises(Superseded):
        cell.rows([b"a"])
