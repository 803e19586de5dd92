"""Goal: a rebuilt flow has exactly the states that it had, has published nothing twice, and goes on.

Method: words are noted in order under their initials, and each change is published. A store loses
something. The flow is rebuilt, with crashes at every write; then more words come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import (
    ConfigurationError,
    LostOffsets,
    ServiceStopped,
    StoreEmpty,
    StoreInconsistent,
    Superseded,
)
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.operations.attempts import Attempts
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.plans.settings import Settings
from sqe_chain.task.states import Claim
from sqe_chain.testing import Crash, Rehearsal
from tests.support.environments import environment_of
from tests.support.number_flows import add
from tests.support.plans import last_plan, stored_in
from tests.support.rebuilding import (
    AFTER,
    BEFORE,
    Pipeline,
    SmallPipeline,
    flow_of,
    interrupted,
    lose_a_cell,
    lose_a_stage,
    lose_everything,
    roll_back_downstream,
)
from tests.support.word_flows import append_word, first_letter, stored_words, word

LOSSES: dict[Callable[[Pipeline], None], type[ServiceStopped]] = {
    lose_a_cell: StoreInconsistent,
    lose_a_stage: StoreInconsistent,
    lose_everything: StoreEmpty,
    roll_back_downstream: StoreInconsistent,
}


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_what_a_store_has_lost_is_folded_again(lose: Callable[[Pipeline], None]) -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    lose(pipeline)
    with pytest.raises(LOSSES[lose], match="sqe-chain rebuild"):
        pipeline.found.start()
    pipeline.found.rebuild()
    pipeline.check()
    pipeline.feed(AFTER)
    pipeline.check()
    assert (
        pipeline.found.commits()["words", 0].offset
        == pipeline.found.log.bounds([("words", 0)])["words", 0].stable_end
    )


def test_the_run_before_is_fenced_off() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    zombie = pipeline.found.service
    assert zombie is not None
    pipeline.found.rebuild()
    pipeline.found.feed("words", word("ash"), key="a")
    with pytest.raises(Superseded):
        zombie.batch()
    pipeline.check()


def test_an_overtaken_rebuild_does_not_take_the_newer_ones_epoch_to_delete_what_that_one_is_deleting() -> (
    None
):
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    store, env = pipeline.store, environment_of(pipeline.found)
    home, header = store.home("notes")[0], store.headers("notes", "letters", [0])[0]
    assert home is not None
    assert header is not None
    store.set_home("notes", home, replace(home, epoch=3, run_id="newer"))
    newer = replace(header, epoch=3, run_id="newer")
    store.write("notes", "letters", 0, header, newer, ())
    older = Claim(2, "older")
    tombstone = replace(header, epoch=2, run_id="older")
    with pytest.raises(Superseded, match="run newer has claimed it"):
        Attempts(env, older).clear("letters", "notes", range(1), tombstone)
    assert store.headers("notes", "letters", [0]) == [newer]


def test_a_state_partition_that_has_begun_a_plan_does_not_go_back_when_it_is_deleted() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    store, env = pipeline.store, environment_of(pipeline.found)
    home, header = store.home("notes")[0], store.headers("notes", "letters", [0])[0]
    assert home is not None
    assert header is not None
    store.set_home("notes", home, replace(home, epoch=2, run_id="newer"))
    begun = replace(header, begun_id="ab" * 16, cursor=b"a")
    store.write("notes", "letters", 0, header, begun, ())
    tombstone = replace(header, epoch=2, run_id="newer", number=header.number - 1)
    Attempts(env, Claim(2, "newer")).clear("letters", "notes", range(1), tombstone)
    assert store.headers("notes", "letters", [0]) == [replace(tombstone, number=header.number + 1)]
    assert not list(store.scan("notes", "letters", 0))


def test_outputs_sealed_but_not_published_are_published_after_it() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    pipeline.found.crash(step=5)
    pipeline.found.feed("words", word("ash"), key="a")
    pipeline.words.append("ash")
    with pytest.raises(Crash):
        pipeline.found.batch()
    pipeline.found.service = None
    lose_a_cell(pipeline)
    pipeline.found.rebuild()
    pipeline.feed(AFTER)
    pipeline.check()


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_rewound_flow_folds_again_but_publishes_nothing_twice(rebuilt: bool) -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    pipeline.found.rebuild({("words", 0): 1, ("words", 1): 1})
    assert sum(len(words.split()) for words in stored_words(pipeline.found).values()) == 2
    if rebuilt:
        pipeline.found.rebuild()
    pipeline.feed(AFTER)
    pipeline.check()


def test_a_rewound_flow_republishes_if_asked() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    pipeline.found.rebuild({("words", 0): 1, ("words", 1): 1}, republish=True)
    pipeline.feed(AFTER)
    twice = {text for text, count in pipeline.published().items() if count == 2}
    assert len(twice) == len(BEFORE) - 2
    unique = {(envelope.lane, envelope.position) for envelope in pipeline.found.published("firsts")}
    assert len(unique) == len(pipeline.words)


def test_a_flow_that_is_rewound_twice_remembers_all_that_receivers_have() -> None:
    """The second rewind begins where the first has ended, but what was published comes from before both."""
    pipeline = SmallPipeline()
    published = pipeline.last_plan().next_offsets()
    for back in (1, 2):
        to = {tp: max(0, offset - back) for tp, offset in published.items()}
        pipeline.found.rebuild(to, republish=True)
    known = {tp: offset for tp, offset in published.items() if offset}
    assert Rebuilding.of(pipeline.last_plan()).published_until == known


def test_code_and_layout_may_change_with_it() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    other = pipeline.same(flow_of(state_partitions=3, buckets=2))
    other.found.rebuild()
    other.feed(AFTER)
    other.check()


def test_a_rebuild_can_be_repeated() -> None:
    pipeline = Pipeline()
    for number in range(3):
        pipeline.feed(BEFORE[number * 2 : number * 2 + 2])
        pipeline.found.rebuild()
        pipeline.check()
    names = {name for name, _, _ in pipeline.store.copy_all().parts}
    left = sum(bool(list(pipeline.store.scan(name, "letters", part))) for name in names for part in range(2))
    assert left == 2, "old states are deleted"


def test_a_flow_that_began_in_the_middle_is_folded_from_there() -> None:
    pipeline = Pipeline(settings=Settings(max_records=3, start="latest"))
    for text in ("zap", "zip", "yak"):
        pipeline.found.feed("words", word(text), key=text[0])
    pipeline.found.run_until_caught_up()
    pipeline.feed(BEFORE)
    lose_everything(pipeline)
    pipeline.found.rebuild()
    pipeline.check()


def test_a_rewind_to_before_its_beginning_goes_to_its_beginning() -> None:
    """What is before it was never counted, and is not now."""
    pipeline = Pipeline(settings=Settings(max_records=3, start="latest"))
    for text in BEFORE:
        pipeline.found.feed("words", word(text), key=text[0])
    pipeline.found.run_until_caught_up()
    pipeline.feed(AFTER)
    pipeline.found.rebuild({("words", 0): 0, ("words", 1): 0})
    pipeline.found.run_until_caught_up()
    pipeline.check()


def test_what_came_before_the_beginning_of_a_flow_is_not_missed_when_it_is_folded_again() -> None:
    """A writer names what it wrote before; that was there no more when the flow began in the middle."""
    up = Flow("copies")
    up.source("numbers", Int64Value).to("copied", key=lambda _: "all", partitions=1)
    writer = Rehearsal(up)
    for number in (1, 2, 3):
        writer.feed("numbers", Int64Value(value=number))
    writer.run_until_caught_up()
    writer.log.truncate_before("copied", 0, 1)
    flow = Flow("sums", state_partitions=1)
    flow.source("copied", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    rehearsal = Rehearsal(
        flow, log=writer.log, settings=Settings(allow_weak_durability=True, start="earliest")
    )
    rehearsal.run_until_caught_up()
    rehearsal.rebuild()
    rehearsal.run_until_caught_up()
    assert rehearsal.states("sum")[b"all"].value == 2 + 3


def test_a_flow_whose_input_was_deleted_meanwhile_stops() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    pipeline.found.log.truncate_before("words", 0, 1)
    with pytest.raises(LostOffsets):
        pipeline.found.rebuild()
    pipeline.feed(AFTER)
    pipeline.check()


def test_offsets_beyond_what_was_counted_are_refused() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    with pytest.raises(ConfigurationError, match="does not move it forward"):
        pipeline.found.rebuild({("words", 0): 1_000})
    with pytest.raises(ConfigurationError, match="does not read"):
        pipeline.found.rebuild({("others", 0): 0})
    pipeline.feed(AFTER)
    pipeline.check()


def test_a_flow_that_never_ran_cannot_be_folded_again() -> None:
    with pytest.raises(ConfigurationError, match="has not run"):
        Pipeline().found.rebuild()


# --- interrupted attempts -----------------------------------------------------------------------------


def test_while_a_rebuild_folds_the_old_states_stay_and_what_was_interrupted_is_not_the_flow() -> None:
    """At every write before the switch all old states are there; and it is not switched before all is folded."""
    probe = SmallPipeline()
    begin = len(probe.found.script.written)
    probe.found.rebuild()
    writes = probe.found.script.written[begin:]
    switch = next(i for i, what in enumerate(writes) if i > 1 and what.startswith("home of notes:"))
    for at in range(switch + 1):
        pipeline = SmallPipeline()
        pipeline.found.crash_at_write(at)
        with pytest.raises(Crash):
            pipeline.found.rebuild()
        pipeline.found.script.writes.clear()
        assert pipeline.rows()["notes"] == len({text[0] for text in pipeline.words})
        assert pipeline.stored_in() == "notes"
        pipeline.check()


def test_a_rebuild_that_is_asked_to_stop_changes_nothing_and_can_be_resumed() -> None:
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    env = environment_of(pipeline.found)
    stopping = Rebuild(
        env, lambda flow: InProcessEngine(flow, env.ports.log, env.ports.store), stopped=lambda: True
    )
    with pytest.raises(ServiceStopped, match="Nothing has changed"):
        stopping.run()
    assert set(last_plan(pipeline.store, "notes").layout.stored_in().values()) == {"notes"}
    pipeline.check()
    pipeline.found.rebuild(resume=True)
    pipeline.check()


def switch_of(pipeline: SmallPipeline) -> int:
    """Which write of a rebuild from here on is the switch."""
    snapshot, content = pipeline.found.log.snapshot(), pipeline.store.copy_all()
    begin = len(pipeline.found.script.written)
    pipeline.found.rebuild()
    writes = pipeline.found.script.written[begin:]
    pipeline.found.log.restore(snapshot)
    pipeline.store.restore_all(content)
    return [i for i, what in enumerate(writes) if what.startswith("home of notes:")][1]


def attempt_of(pipeline: SmallPipeline, name: str) -> int:
    return Rebuilding.of(last_plan(pipeline.store, name)).attempt


def test_the_attempt_that_became_the_flow_is_closed_before_the_flow_leaves_it() -> None:
    pipeline = SmallPipeline()
    pipeline.found.crash_at_write(switch_of(pipeline), "after")
    with pytest.raises(Crash):
        pipeline.found.rebuild()
    first = pipeline.stored_in()
    assert attempt_of(pipeline, first) >= 0, "nobody came to close it"
    pipeline.found.crash_at_write(switch_of(pipeline), "before")
    with pytest.raises(Crash):
        pipeline.found.rebuild()
    assert pipeline.stored_in() == first
    assert attempt_of(pipeline, first) < 0
    pipeline.found.rebuild(resume=True)
    pipeline.check()


def test_an_attempt_whose_rows_are_about_to_be_deleted_is_none_any_more() -> None:
    pipeline = SmallPipeline()
    interrupted(pipeline)
    pipeline.found.crash_at_write(1, "after")
    with pytest.raises(Crash):
        pipeline.found.rebuild()
    with pytest.raises(ConfigurationError, match="no interrupted attempt"):
        pipeline.found.rebuild(resume=True)


def test_what_could_not_be_folded_to_the_end_does_not_become_the_flow() -> None:
    pipeline = SmallPipeline()
    end = pipeline.found.log.bounds([("words", 0)])["words", 0].stable_end
    pipeline.found.log.truncate_after("words", 0, end - 1)
    with pytest.raises(ServiceStopped, match=r"the log was truncated\. Restore it"):
        pipeline.found.rebuild()
    assert pipeline.stored_in() == "notes"
    pipeline.check()


def test_an_attempt_is_not_resumed_after_the_flow_has_gone_on() -> None:
    pipeline = SmallPipeline()
    interrupted(pipeline)
    pipeline.feed(AFTER)
    with pytest.raises(ConfigurationError, match="the flow is at plan 2 now"):
        pipeline.found.rebuild(resume=True)
    pipeline.check()
    assert pipeline.stored_in() == "notes"


def test_an_attempt_with_other_options_is_not_resumed_and_nothing_is_folded() -> None:
    pipeline = SmallPipeline()
    interrupted(pipeline)
    begin = len(pipeline.found.script.written)
    with pytest.raises(ConfigurationError, match="other options"):
        pipeline.found.rebuild(republish=True, resume=True)
    assert not [what for what in pipeline.found.script.written[begin:] if "again" in what]
    pipeline.check()


def test_an_attempt_that_has_folded_more_than_is_asked_for_is_not_resumed() -> None:
    """It cannot be moved back, and the flow would end beyond where it was to end."""
    pipeline = SmallPipeline()
    interrupted(pipeline)
    with pytest.raises(ConfigurationError, match="Expected at most 0"):
        pipeline.found.rebuild({("words", 0): 0, ("words", 1): 0}, resume=True)
    pipeline.check()


def test_a_metadata_store_that_went_back_to_before_the_switch_does_not_find_empty_states() -> None:
    """Where rows were deleted headers have gone on, so an older home record does not fit to them."""
    pipeline = SmallPipeline()
    before = pipeline.store.copy_home("notes")
    pipeline.found.rebuild()
    pipeline.store.restore_home("notes", before)
    with pytest.raises(StoreInconsistent):
        pipeline.found.start(settings_of(takeover=True, allow_weak_durability=True, accept_rollback=True))
    pipeline.found.rebuild()
    pipeline.check()


def test_a_run_of_an_attempt_that_was_deleted_changes_nothing_any_more() -> None:
    pipeline = SmallPipeline()
    interrupted(pipeline)
    name = next(name for name in pipeline.rows() if "again" in name)
    zombie = Rehearsal(
        pipeline.flow.compile().renamed(name),
        log=pipeline.found.log,
        store=pipeline.store,
        settings=pipeline.settings,
    )
    zombie.start()
    for text in AFTER:
        pipeline.found.feed("words", word(text), key=text[0])
        pipeline.words.append(text)
    pipeline.found.rebuild()
    with pytest.raises(ServiceStopped):
        zombie.batch()
    pipeline.found.run_until_caught_up()
    pipeline.check()
    assert set(pipeline.rows()) == {pipeline.stored_in()}


def test_a_name_under_which_a_store_holds_states_is_not_used_again() -> None:
    """The metadata store was emptied, and Kafka has forgotten all but an early commit: epochs are given out again."""
    states = MemoryStore(f"states-{id(object())}")
    flow = Flow("notes", state_partitions=2)
    flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, store="states"
    )
    home = MemoryStore(f"home-{id(object())}")
    rehearsal = Rehearsal(
        flow,
        partitions={"words": 2},
        store={"": home, "states": states},
        settings=Settings(allow_weak_durability=True),
    )
    for text in BEFORE:
        rehearsal.feed("words", word(text), key=text[0])
    rehearsal.run_until_caught_up()
    early = rehearsal.commits()
    rehearsal.rebuild()
    live = stored_in(rehearsal, "letters")
    home.restore_all()
    rehearsal.log.forget("notes")
    rehearsal.log.commit("notes", early)
    states.restore_part("notes", "letters", 0)
    states.restore_part("notes", "letters", 1)
    rehearsal.rebuild()
    assert stored_in(rehearsal, "letters") != live
    assert stored_words(rehearsal)["a"] == "ant ape auk"


def test_a_run_of_a_flow_rebuilt_twice_raises_superseded() -> None:
    """Its states lay where the first folding had left them; headers there go on, never back."""
    pipeline = Pipeline()
    pipeline.feed(BEFORE)
    pipeline.found.run_until_caught_up()
    pipeline.found.rebuild()
    pipeline.feed(AFTER)
    pipeline.found.run_until_caught_up()
    zombie = pipeline.found.service
    assert zombie is not None
    before = [header for header in pipeline.found.headers("letters") if header]
    at = stored_in(pipeline.found, "letters")
    pipeline.found.rebuild()
    after = pipeline.store.headers(at, "letters", range(len(before)))
    for old, new in zip(before, after, strict=True):
        assert new is not None
        assert (new.epoch, new.number) > (old.epoch, old.number - 1)
        assert new.number >= old.number
    pipeline.feed(["elk"])
    with pytest.raises(Superseded):
        zombie.batch()


def test_an_attempt_that_is_resumed_to_an_earlier_point_knows_what_receivers_have() -> None:
    """Begun to where the flow stood, nothing was ahead of it; resumed to an earlier offset, receivers have newer outputs."""
    flow = Flow("sums", state_partitions=1)
    stage = flow.source("numbers", Int64Value).aggregate(
        "sum", key=lambda _: "all", state=Int64Value, fold=add
    )
    stage.changes().to("totals", partitions=1)
    settings = Settings(allow_weak_durability=True, max_records=1)
    rehearsal = Rehearsal(flow, partitions={"numbers": 1}, settings=settings)
    for number in range(1, 7):
        rehearsal.feed("numbers", Int64Value(value=number))
    rehearsal.run_until_caught_up()
    rehearsal.crash_at_write(3, "after")
    with pytest.raises(Crash):
        rehearsal.rebuild({("numbers", 0): 6}, republish=True)
    rehearsal.script.writes.clear()
    try:
        rehearsal.rebuild({("numbers", 0): 3}, republish=True, resume=True)
    except ConfigurationError:
        return  # refused: it was begun with other options
    assert Rebuilding.of(last_plan(rehearsal.stores[""], "sums")).published_until == {("numbers", 0): 6}
