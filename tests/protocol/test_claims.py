"""Goal: an epoch is given out once, and a claim binds every header. Method: traces of older runs in one place each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest

from sqe_chain.errors import StoreInconsistent, Superseded
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Environment
from sqe_chain.ports import Commit, Header, Home, TopicPartition
from sqe_chain.protocol.claim import claim, release, stamp
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.task.states import Claim
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.word_flows import word, words_by_first_letter


def running() -> tuple[Rehearsal, StagedService]:
    """A run that has done a batch."""
    flow = Flow("notes", state_partitions=2)
    words_by_first_letter(flow)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"))
    run = cast("StagedService", rehearsal.start())
    run.batch()
    return rehearsal, run


def claimed(env: Environment, commits: Mapping[TopicPartition, Commit]) -> Claim:
    return claim(env, lambda: commits)[0]


@pytest.mark.parametrize("where", ["home", "header", "locations", "commit"])
def test_a_new_epoch_is_beyond_all_that_was_ever_stamped_anywhere(where: str) -> None:
    """A store that went back in time must not give out an epoch for the second time."""
    found, run = running()
    store, env = found.stores[""], run.env
    commits = dict[TopicPartition, Commit]()
    home, _ = store.home("notes")
    assert home is not None
    if where == "home":
        store.set_home("notes", home, replace(home, epoch=70))
    elif where == "header":
        header = found.headers("letters")[1]
        assert header is not None
        store.write("notes", "letters", 1, header, replace(header, epoch=70), ())
    elif where == "locations":
        known = store.locations("notes")
        assert known is not None
        store.set_locations("notes", replace(known, epoch=70))
    else:
        commits = {("words", 0): Commit(1, f'{{"plan": {home.number}, "id": "{home.plan_id}", "epoch": 70}}')}
    assert claimed(env, commits).epoch == 71


def test_commits_are_read_before_the_home_record() -> None:
    """A plan is in the store before it is committed. Read the other way round, a running service would look like a store that lost all."""
    flow = Flow("notes", state_partitions=2)
    words_by_first_letter(flow)
    rehearsal = Rehearsal(flow)
    env = environment_of(rehearsal)

    def another_run_begins() -> Mapping[TopicPartition, Commit]:
        rehearsal.feed("words", word("ant"))
        rehearsal.start()
        rehearsal.batch()
        return rehearsal.commits()

    mine, home = claim(env, another_run_begins)
    assert (mine.epoch, home.number) == (2, 1)


def test_a_header_of_another_run_with_the_same_epoch_is_not_stamped() -> None:
    found, run = running()
    header = found.headers("letters")[1]
    assert header is not None
    assert run.last is not None
    with pytest.raises(Superseded, match="has epoch"):
        stamp(run.env, Claim(header.epoch, "another"), run.last)
    assert found.headers("letters")[1] == header
    assert run.claimed is not None
    stage = found.flow.stages[0].index
    assert stamp(run.env, run.claimed, run.last)[stage, 1] == header, "a run may stamp its own again"


def test_a_run_that_has_another_ones_epoch_seals_nothing_and_raises_superseded() -> None:
    """A metadata store that went back may give an epoch out twice; the run id distinguishes the two."""
    found, run = running()
    store, (home, _) = found.stores[""], found.stores[""].home("notes")
    assert home is not None
    store.set_home("notes", home, replace(home, run_id="another"))
    found.feed("words", word("ape"))
    with pytest.raises(Superseded, match="another has claimed it"):
        run.batch()
    assert store.home("notes")[0] == replace(home, run_id="another")


def test_epochs_of_headers_count_where_a_rebuild_has_left_them_too() -> None:
    """There are the states now; under the flow's own name there is nothing any more."""
    found, _ = running()
    found.rebuild()
    store, (home, _) = found.stores[""], found.stores[""].home("notes")
    assert home is not None
    (again,) = {cast("dict[str, str]", event["stored_in"])["letters"] for event in found.events("rebuilt")}
    (header,) = store.headers(again, "letters", [1])
    assert header is not None
    store.write(again, "letters", 1, header, replace(header, epoch=70), ())
    env = environment_of(found)
    mine, _ = claim(env, dict)
    assert mine.epoch == 71


def test_a_header_is_created_for_a_stage_that_is_born_with_the_last_plan_only() -> None:
    found, run = running()
    assert run.last is not None
    found.stores[""].restore_part("notes", "letters", 1)  # type: ignore[attr-defined]
    with pytest.raises(StoreInconsistent, match="was lost"):
        stamp(run.env, Claim(9, "run"), run.last)
    layout = run.last.layout
    born = replace(layout, stages={"letters": replace(layout.stages["letters"], birth=run.last.number)})
    headers = stamp(run.env, Claim(9, "run"), replace(run.last, layout=born))
    before = run.last.number - 1, run.last.previous_id
    assert headers[found.flow.stages[0].index, 1] == Header(9, "run", *before), (
        "the plan is redone for all alike"
    )


def test_a_run_that_was_taken_over_gives_nothing_back() -> None:
    found, old = running()
    new = cast("StagedService", found.start())
    stood = found.stores[""].home("notes")
    old.leave()
    assert found.stores[""].home("notes") == stood
    assert new.beat()


def test_a_claim_that_is_given_back_leaves_epoch_and_plan() -> None:
    found, run = running()
    home, _ = found.stores[""].home("notes")
    assert home is not None
    assert run.claimed is not None
    release(run.env, run.claimed)
    assert found.stores[""].home("notes")[0] == Home(home.epoch, "", "", home.number, home.plan_id)
