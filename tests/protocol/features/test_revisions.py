"""Goal: a flow with stages counts of each root the revision that its first plan follows, and no other, until it is rebuilt.

Method: messages of several revisions are laid into a topic, some of them late, as a zombie writes them. A naive fold judges.
"""

from __future__ import annotations

import random

import pytest

from sqe_chain.errors import ConfigurationError, LostOffsets, UnknownRevision
from sqe_chain.operations.failed_in_plans import FailedInPlans
from sqe_chain.operations.parked import ParkedSelection, ParkedWork
from sqe_chain.plans.revisions import Revisions
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Crash, Rehearsal
from tests.support.environments import environment_of
from tests.support.plans import last_plan
from tests.support.revised import begin_revision, counted, counting, hop, message

FIRST, SECOND, THIRD = "clean/good", "clean/good@2", "clean/good@3"


def reader(**options: object) -> Rehearsal:
    return Rehearsal(counting(), **options)  # type: ignore[arg-type]


def feed(found: Rehearsal, *messages: tuple[str, int, str]) -> None:
    """Messages of one hop: text, root, output."""
    for text, root, output in messages:
        found.feed("good", message(text, root, hop(output)), key="k")


def test_what_is_newer_than_the_plan_follows_has_no_effect_and_is_reported_once_in_a_run() -> None:
    found = reader()
    feed(found, ("a", 0, FIRST), ("b", 1, FIRST))
    found.run_until_caught_up()
    feed(found, ("B", 1, SECOND), ("c", 2, FIRST), ("C", 2, SECOND))
    found.run_until_caught_up()
    feed(found, ("D", 3, SECOND))
    found.run_until_caught_up()
    assert counted(found) == ["a", "b", "c"]
    assert found.events("newer_revision") == [{"output": "clean/good", "revision": 2, "follows": 1}]
    assert sum(int(str(event["newer"])) for event in found.events("ignored")) == 3
    found.restart()
    found.run_until_caught_up()
    assert len(found.events("newer_revision")) == 2
    assert Revisions.of(last_plan(found.stores[""], "totals")).newer["clean/good"].number == 2


def test_a_flow_that_begins_follows_the_newest_revision() -> None:
    found = reader()
    feed(found, ("a", 0, FIRST), ("b", 1, FIRST), ("c", 2, FIRST), ("B", 1, SECOND), ("C", 2, SECOND))
    begin_revision(found, "clean/good", 2, {0: 1})
    found.run_until_caught_up()
    assert counted(found) == ["a", "B", "C"]
    assert sum(int(str(event["superseded"])) for event in found.events("ignored")) == 2
    assert not found.events("newer_revision")


def test_a_rebuild_takes_up_what_is_newer_as_a_whole() -> None:
    found = reader()
    feed(found, ("a", 0, FIRST), ("b", 1, FIRST))
    found.run_until_caught_up()
    begin_revision(found, "clean/good", 2, {0: 1})
    feed(found, ("B", 1, SECOND), ("C", 2, SECOND))
    found.run_until_caught_up()
    assert counted(found) == ["a", "b"]
    found.rebuild()
    assert counted(found) == ["a", "B", "C"]
    feed(found, ("b", 1, FIRST), ("z", 7, FIRST), ("D", 3, SECOND))  # a zombie of the old code among them
    found.run_until_caught_up()
    assert counted(found) == ["a", "B", "C", "D"]
    found.rebuild()
    assert counted(found) == ["a", "B", "C", "D"]


def test_any_newer_revision_supersedes_not_the_newest_alone() -> None:
    found = reader()
    begin_revision(found, "clean/good", 2, {0: 1})
    begin_revision(found, "clean/good", 3, {0: 4})
    feed(found, *[(f"a{root}", root, FIRST) for root in range(6)])
    feed(found, *[(f"b{root}", root, SECOND) for root in range(1, 6)])
    feed(found, *[(f"c{root}", root, THIRD) for root in range(4, 6)])
    found.run_until_caught_up()
    assert counted(found) == ["a0", "b1", "b2", "b3", "c4", "c5"]


def test_a_revision_of_any_output_on_the_way_supersedes_but_none_before_a_flow_with_stages() -> None:
    found = reader()
    begin_revision(found, "up/mid", 2, {0: 1}, topic="mid")
    for text, root, output in (("a", 0, "up/mid"), ("b", 1, "up/mid"), ("B", 1, "up/mid@2")):
        found.feed("good", message(text, root, hop(output), hop("clean/good", "mid")), key="k")
    # The flow of the second link has stages: it has settled what lies before it.
    for text, root, output in (("s", 5, "up/mid"), ("t", 6, "up/mid@9")):
        found.feed("good", message(text, root, hop(output), hop("sums/good", "mid", 0, 1)), key="k")
    found.run_until_caught_up()
    assert counted(found) == ["a", "B", "s", "t"]


def test_what_is_released_belongs_to_the_revision_that_would_have_published_it() -> None:
    found = reader()
    begin_revision(found, "clean/good", 2, {0: 1})
    feed(found, ("a", 0, f"{FIRST}/released.1"), ("b", 1, f"{FIRST}/released.1"))
    feed(found, ("B", 1, f"{SECOND}/released.2"), ("c", 2, f"{THIRD}/released.3"))
    found.run_until_caught_up()
    assert counted(found) == ["a", "B"]
    assert found.events("newer_revision") == [{"output": "clean/good", "revision": 3, "follows": 2}]


@pytest.mark.parametrize("step", [4, 6, 7])
def test_a_redo_ignores_the_same_though_a_revision_begins_meanwhile(step: int) -> None:
    found = reader()
    feed(found, ("a", 0, FIRST))
    found.run_until_caught_up()
    feed(found, ("b", 1, FIRST), ("B", 1, SECOND))
    found.crash(step=step)
    with pytest.raises(Crash):
        found.batch()
    found.service = None
    begin_revision(found, "clean/good", 2, {0: 0})
    found.run_until_caught_up()
    assert counted(found) == ["a", "b"]


def test_a_rebuild_that_was_interrupted_goes_on_only_with_the_same_revisions() -> None:
    found = reader(settings=Settings(max_records=1))
    feed(found, *[(f"a{root}", root, FIRST) for root in range(4)])
    found.run_until_caught_up()
    found.crash(step=4, after_passes=2)
    with pytest.raises(Crash):
        found.rebuild()
    begin_revision(found, "clean/good", 2, {0: 2})
    with pytest.raises(ConfigurationError, match="began with other revisions of the inputs"):
        found.rebuild(resume=True)
    found.rebuild()
    assert counted(found) == ["a0", "a1"]


def test_retention_may_have_taken_what_a_whole_revision_has_replaced() -> None:
    found = reader()
    feed(found, ("a", 0, FIRST), ("b", 1, FIRST))
    found.run_until_caught_up()
    feed(found, ("A", 0, SECOND), ("B", 1, SECOND))
    found.run_until_caught_up()
    found.log.truncate_before("good", 0, 1)
    with pytest.raises(LostOffsets):
        found.rebuild()
    begin_revision(
        found, "clean/good", 2, {0: 0}, ends=[2]
    )  # a seam: roots of other topics may count in the first revision
    with pytest.raises(LostOffsets):
        found.rebuild()


@pytest.mark.parametrize(("begin", "kept"), [(1, True), (2, True), (3, False)])
def test_of_a_whole_revision_all_must_be_kept_since_it_begins(begin: int, kept: bool) -> None:
    found = reader()
    feed(found, ("a", 0, FIRST), ("b", 1, FIRST))
    found.run_until_caught_up()
    feed(found, ("A", 0, SECOND), ("B", 1, SECOND))
    found.run_until_caught_up()
    begin_revision(found, "clean/good", 2, None, ends=[2])
    found.log.truncate_before("good", 0, begin)
    if not kept:
        with pytest.raises(LostOffsets):
            found.rebuild()
        return
    found.rebuild()
    assert counted(found) == ["A", "B"]
    found.rebuild()
    assert counted(found) == ["A", "B"]


@pytest.mark.parametrize("other", ["other/good", "clean/good/released.9f"])
def test_what_no_revision_has_replaced_must_be_kept(other: str) -> None:
    found = reader()
    feed(found, ("a", 0, FIRST), ("x", 5, other), ("b", 1, FIRST))
    found.run_until_caught_up()
    feed(found, ("A", 0, SECOND), ("B", 1, SECOND))
    found.run_until_caught_up()
    begin_revision(found, "clean/good", 2, None, ends=[3])
    found.log.truncate_before("good", 0, 3)
    with pytest.raises(LostOffsets):
        found.rebuild()


@pytest.mark.parametrize("poison", ["dead_letter", "park"])
def test_what_failed_and_is_superseded_since_counts_no_more_when_it_is_released(poison: str) -> None:
    fails = {"b", "C"}
    found = Rehearsal(counting(fails, poison=poison), settings=Settings(max_excluded_share=1.0))
    begin = [("a", 0, FIRST), ("b", 1, FIRST)]
    for text, root, output in begin:
        found.feed("good", message(text, root, hop(output)), key=text)
    found.run_until_caught_up()
    begin_revision(found, "clean/good", 2, {0: 1})
    for text, root, output in (("B", 1, SECOND), ("C", 2, SECOND)):
        found.feed("good", message(text, root, hop(output)), key=text)
    found.rebuild()
    found.run_until_caught_up()
    assert counted(found) == ["a", "B"]
    fails.clear()
    env = environment_of(found)
    found.service = None
    if poison == "park":
        ParkedWork(env, ParkedSelection()).run()
    else:
        FailedInPlans(env).release()
    found.run_until_caught_up()
    assert counted(found) == ["a", "B", "C"]
    found.rebuild()
    assert counted(found) == ["a", "B", "C"]


def test_a_record_of_a_revision_that_cannot_be_understood_stops() -> None:
    found = reader()
    begin_revision(found, "clean/good", 2)
    found.log.append("good.revisions", 0, b"{}", b"clean/good", None, 0)
    with pytest.raises(UnknownRevision, match=r"good\.revisions\[0\]@1"):
        found.start()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("block", [1, 7, 1_000])
def test_drawn_histories_are_counted_as_a_naive_reader_counts_them(seed: int, block: int) -> None:
    rng = random.Random(seed)
    families = ["up/mid", "clean/good"]
    seams = {
        family: {
            number: {0: rng.randint(0, 8), 1: rng.randint(0, 8)} for number in range(2, rng.randint(2, 4))
        }
        for family in families
    }
    found = reader(settings=Settings(max_records=rng.choice((5, 40, 10_000))), block_records=block)
    for family, own in seams.items():
        for number, since in own.items():
            begin_revision(found, family, number, since, topic=family.partition("/")[2])
    marks: dict[tuple[object, ...], int] = {}
    expected: list[str] = []
    for number in range(rng.choice((10, 200))):
        root, partition = rng.randint(0, 9), rng.randint(0, 1)
        labels = [rng.randint(1, 4) for _ in families]
        names = [
            family if own == 1 else f"{family}@{own}" for family, own in zip(families, labels, strict=True)
        ]
        text = f"{number}"
        found.feed(
            "good", message(text, root, hop(names[0]), hop(names[1], "mid"), partition=partition), key="k"
        )
        known = all(own in {1, *seams[family]} for family, own in zip(families, labels, strict=True))
        covered = any(
            newer > own and since[partition] <= root
            for family, own in zip(families, labels, strict=True)
            for newer, since in seams[family].items()
        )
        lane = (*names, partition)
        if known and not covered and root > marks.get(lane, -1):
            marks[lane] = root
            expected.append(text)
    found.run_until_caught_up()
    assert counted(found) == expected
