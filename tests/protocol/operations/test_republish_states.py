"""Goal: republishing states gives receivers the newest state of every key once, whatever crashes, and nothing older afterwards.

Method: a flow counts words with two stages, is rebuilt with code of another weight, and republishes its states. Receivers
append all that they read to a text, so a state counted twice, lost, or late shows. Faults happen at every call and write.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Literal

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.envelope.message import read
from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import (
    ConfigurationError,
    NotCaughtUp,
    OutputTooLarge,
    PlanMismatch,
    PoisonError,
    ServiceStopped,
    Superseded,
)
from sqe_chain.features import announcing as announcer
from sqe_chain.features.announcing import Announcing
from sqe_chain.features.events import AnnouncementResult
from sqe_chain.features.rebuilding import Rebuilding
from sqe_chain.flow import Flow
from sqe_chain.operations.announcement import Announcement
from sqe_chain.plans.plan import Plan
from sqe_chain.testing import Crash, Rehearsal
from tests.support.environments import environment_of
from tests.support.memory_pipeline import totals_pipeline
from tests.support.republished_states import NEW, OLD, World, check_published_once, names, upstream
from tests.support.word_flows import append_word, first_letter, word

When = Literal["before", "after"]
# ---------------------------------------------------------------------- what is republished


@pytest.mark.parametrize("carrier", ["value", "headers"])
@pytest.mark.parametrize("raw", [False, True])
def test_each_key_is_published_once_after_a_rebuild_with_other_results(carrier: str, *, raw: bool) -> None:
    world = World(carrier=carrier, raw=raw)
    before = world.heard()
    assert world.newest() == NEW != {key: numbers[-1] for key, numbers in before.items()}
    count, count_of_all = world.count("latest"), world.count("latest-all")
    result = world.up.announce()
    assert result.outputs == {"letters": len(OLD), "all": 1}
    assert (world.count("latest") - count, world.count("latest-all") - count_of_all) == (len(OLD), 1)
    assert world.heard() == {key: [*numbers, NEW[key]] for key, numbers in before.items()}


@pytest.mark.parametrize("carrier", ["value", "headers"])
def test_its_chain_begins_at_the_last_record_read_and_has_a_name_of_its_own(carrier: str) -> None:
    world = World(carrier=carrier)
    ordinary = world.up.log.records("latest")
    ends = Counter(message.partition() for message in ordinary)
    partitions = {message.key(): message.partition() for message in ordinary}
    world.up.announce()
    news = [m for m in world.up.log.records("latest") if m.offset() >= ends[m.partition()]]
    plan = world.last_plan()
    last = min((planned for planned in plan.ranges), key=lambda planned: planned.tp)
    by_shard: dict[int | None, list[tuple[bytes, int, int]]] = {}
    for message in news:
        envelope = read(message.value(), headers=message.headers(), strict=True)
        (link,) = envelope.chain.links
        assert (link.topic, link.partition, link.offset) == ("words", 0, last.last_offset)
        assert (link.topic_id.hex(), link.leader_epoch) == (last.topic_id, last.last_epoch)
        assert link.output == f"up/{world.up.flow.outputs[0].name}/announced.{plan.plan_id[:16]}"
        assert envelope.timestamp_ms == world.time_ms
        key = message.key()
        assert key is not None
        assert partitions[key] == message.partition()
        assert link.shard == partition_of(key, 2)
        by_shard.setdefault(link.shard, []).append((key, link.ordinal, link.of))
    assert len(by_shard) == 2
    for told_there in by_shard.values():
        of = len(told_there)
        assert sorted(told_there) == [
            (key, at, of) for at, key in enumerate(sorted(k for k, _, _ in told_there))
        ]


def test_states_that_an_output_gives_one_key_do_not_share_an_envelope() -> None:
    """Else all of a large stage could become one message."""
    world = World(to_key=lambda _: "same")
    before = world.heard()
    world.up.announce()
    assert [len(envelope.payloads) for envelope in world.up.published("latest")[-len(OLD) :]] == [1] * len(
        OLD
    )
    assert world.heard() == {key: [*numbers, NEW[key]] for key, numbers in before.items()}


def test_the_receiver_takes_what_comes_afterwards() -> None:
    world = World()
    world.up.announce()
    world.feed("ant", "emu")
    world.go_on()
    heard = world.heard()
    assert heard["a"][-2:] == [NEW["a"], NEW["a"] + 10]
    assert heard["e"] == [10]
    assert {key: numbers[-1] for key, numbers in heard.items()} == world.newest()


@pytest.mark.parametrize("in_place", [True, False])
def test_flows_whose_inputs_come_from_republishers_republish_states_too(*, in_place: bool) -> None:
    pipeline = totals_pipeline(2, in_place)
    pipeline.feed(30)
    pipeline.republish()
    pipeline.totals.run_until_caught_up()
    before = len(pipeline.log.records("line.totals"))
    result = pipeline.totals.announce()
    assert result.outputs == {"per-line": 3}
    pipeline.feed(10)
    pipeline.republish()
    pipeline.totals.run_until_caught_up()
    pipeline.check()
    news = [m for m in pipeline.log.records("line.totals") if m.offset() >= before]
    assert [read(m.value(), strict=True).chain.root.topic for m in news[:3]] == ["mid"] * 3  # type: ignore[union-attr]


def test_a_deleted_state_is_not_republished() -> None:
    flow = Flow("up", state_partitions=1)

    def fold(state: StringValue, value: StringValue, context: Any) -> None:
        append_word(state, value)
        if value.value == "fox":
            context.delete_state()

    flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=fold
    ).changes().to("latest", partitions=1)
    rehearsal = Rehearsal(flow)
    for text in ("ant", "fig", "fox"):
        rehearsal.feed("words", word(text))
    rehearsal.run_until_caught_up()
    assert rehearsal.announce().outputs == {"letters": 1}


def test_what_is_on_its_way_to_the_broker_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world, done = World(), list[str]()
    monkeypatch.setattr(announcer, "CHUNK", 2)
    world.up.script.watch = lambda call, _: done.append(call.name)
    world.up.announce()
    sizes = [len(list(group)) for name, group in itertools.groupby(done) if name == "publish"]
    assert set(sizes) == {1, 2}
    assert [name for name, _ in itertools.groupby(done) if name in {"publish", "flush"}] == [
        "publish",
        "flush",
    ] * len(sizes)
    check_published_once(world)


def test_one_stage_alone() -> None:
    world = World()
    before = world.heard()
    assert world.up.announce("all").outputs == {"all": 1}
    assert world.heard() == {**before, "all": [*before["all"], NEW["all"]]}
    assert world.up.announce().known == ("all",)
    check_published_once(world)


# ---------------------------------------------------------------------- repeated


def test_republishing_again_publishes_nothing_until_a_batch_has_been_processed() -> None:
    world = World()
    world.up.announce()
    count, plan = world.count("latest"), world.last_plan()
    assert world.up.announce() == AnnouncementResult(plan.number, {}, ("letters", "all"))
    assert (world.count("latest"), world.last_plan()) == (count, plan)
    world.feed("ant")
    world.go_on()
    assert world.up.announce().outputs == {"letters": len(OLD), "all": 1}
    assert world.heard()["f"][-2:] == [NEW["f"], NEW["f"]]
    world.up = world.of(0)
    world.feed("ant")  # a batch that changes nothing is one
    world.go_on()
    assert world.up.announce().outputs == {"letters": len(OLD), "all": 1}


def test_an_import_knows_that_its_states_were_republished() -> None:
    world = World()
    world.up.announce()
    lines = world.up.exported()
    world.stores = {name: MemoryStore(f"announce-{next(names)}") for name in ("", "other")}
    world.up = world.of()
    world.up.imported(lines)
    assert world.up.announce().known == ("letters", "all")
    check_published_once(world)
    world.feed("ant")
    world.go_on()
    assert world.up.announce().outputs == {"letters": len(OLD), "all": 1}


def test_with_corrected_steps_after_changes_all_states_are_republished_again() -> None:
    """Under one name, receivers would stop: other numbers of envelopes would come of one input."""
    world = World()
    world.up.announce()
    world.up = world.of(choose=lambda state: not state.value.startswith("f"))
    assert world.up.announce().outputs == {"letters": len(OLD) - 1}
    heard = world.heard()
    assert heard["a"][-2:] == [NEW["a"], NEW["a"]]
    world.up = world.of()
    assert world.up.announce().outputs == {"letters": len(OLD)}
    assert world.heard()["a"][-3:] == [NEW["a"]] * 3


def test_another_output_gets_the_states_that_the_first_one_got() -> None:
    world = World()
    world.up.announce()
    world.up = world.of(output="renamed")
    assert world.up.announce() == AnnouncementResult(
        world.last_plan().number, {"letters": len(OLD)}, ("all",)
    )


def test_states_of_a_second_rebuild_may_be_republished_as_well() -> None:
    world = World()
    world.up.announce()
    world.up = world.of(100)
    world.up.rebuild()
    world.up.announce()
    assert {key: numbers[-2:] for key, numbers in world.heard().items()} == {
        key: [number, 10 * number] for key, number in NEW.items()
    }


# ---------------------------------------------------------------------- crashes


@pytest.mark.few(1)
@pytest.mark.parametrize("known", [False, True])
def test_a_run_that_was_superseded_does_not_report_success(*, known: bool) -> None:
    """Also when there was nothing to publish."""
    world, done = World(), list[bool]()
    for at in itertools.count():
        if known:
            world.up.announce()
        else:
            world = World()
        sleeper = world.of()
        sleeper.meanwhile(world.of().start, at=at)
        try:
            assert bool(sleeper.announce().known) == known
        except Superseded:
            assert not sleeper.events("announced")
            done.append(False)
            continue
        done.append(True)
        if sleeper.script.injected:
            break
    begun, ended = done.index(False), len(done) - done[::-1].index(False)
    assert not any(done[begun:ended])
    assert len(done) - ended == 3, "it succeeds only if that happens while it gives the claim back, or never"


def test_a_rebuild_drops_a_republication_that_was_not_finished() -> None:
    world = World()
    world.up.crash(step=5, after_passes=0)
    with pytest.raises(Crash):
        world.up.announce()
    assert Announcing.of(world.last_plan()).digests
    world.up = world.of(100)
    world.up.rebuild()
    world.up.announce()
    assert {key: numbers[-1] for key, numbers in world.heard().items()} == {
        key: 10 * number for key, number in NEW.items()
    }
    assert all(NEW[key] not in numbers for key, numbers in world.heard().items())


def test_it_is_finished_although_the_input_was_created_again() -> None:
    """It needs states alone. The next republication begins its chain with a record of the new input."""
    world = World(raw=True)
    world.up.crash(step=5)
    with pytest.raises(Crash):
        world.up.announce()
    world.up.log.recreate("words")
    world.up.restart()
    check_published_once(world)
    with pytest.raises(NotCaughtUp, match="words was created again"):
        world.up.announce()
    world.feed("ant")
    world.go_on()
    assert world.up.announce().outputs == {"letters": len(OLD), "all": 1}
    assert {key: numbers[-1] for key, numbers in world.heard().items()} == world.newest()


def test_a_store_that_lost_acknowledged_writes_republishes_states_as_replays() -> None:
    world = World()
    copies = world.up.copy_stores()
    world.up.announce()
    count = world.count("latest")
    world.up.restart()
    for stage in ("letters", "all"):
        world.up.roll_back(copies, stage=stage)
    world.up.restart()
    assert world.count("latest") == count + len(OLD)
    check_published_once(world)


# ---------------------------------------------------------------------- refusals


def test_before_a_rewound_flow_has_caught_up_no_states_are_republished() -> None:
    world = World(rebuilt=False)
    world.up = world.of(10)
    world.up.rebuild({("words", 0): 1, ("words", 1): 1})
    plan = world.last_plan()
    with pytest.raises(
        NotCaughtUp,
        match=r"words\[0\] .* up to 1",
    ):
        world.up.announce()
    assert world.last_plan() == plan
    world.up.batch()  # one batch is not enough
    with pytest.raises(NotCaughtUp):
        world.up.announce()
    world.go_on()
    world.up.announce()
    check_published_once(world)


def test_a_flow_that_publishes_again_has_to_catch_up_first() -> None:
    """Its receivers ignore what it publishes again, so what they hear out of turn they would keep."""
    world = World(rebuilt=False)
    world.up.rebuild({("words", 0): 1, ("words", 1): 1}, republish=True)
    with pytest.raises(NotCaughtUp):
        world.up.announce()
    world.up.log.grow("words", 3)  # brings in a plan of its own
    with pytest.raises(NotCaughtUp):
        world.up.announce()
    world.up.rebuild()
    with pytest.raises(NotCaughtUp):
        world.up.announce()
    world.up.batch()
    with pytest.raises(NotCaughtUp):
        world.up.announce()
    assert Rebuilding.of(world.last_plan()).published_until
    world.go_on()
    assert not Rebuilding.of(world.last_plan()).published_until
    assert world.up.announce().outputs == {"letters": len(OLD), "all": 1}
    assert {key: numbers[-1] for key, numbers in world.heard().items()} == world.newest()


def test_a_batch_that_was_published_in_part_comes_first() -> None:
    world = World(rebuilt=False)
    world.feed("ant")
    world.up.crash(step=5, when="after")
    world.up.run_until_crash()
    world.up = world.of(10)
    world.up.rebuild()
    assert Rebuilding.of(world.last_plan()).unfinished is not None
    with pytest.raises(NotCaughtUp, match="published in part"):
        world.up.announce()
    world.go_on()
    world.up.announce()
    assert {key: numbers[-1] for key, numbers in world.heard().items()} == world.newest()


def with_context(flow: Flow, where: str) -> None:
    stage = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    if where == "nothing":
        stage.to("latest", partitions=1)
        return
    changes = stage.changes()
    if where == "map":
        changes.map(lambda state, context: word(f"{state} {context.offset}")).to("latest", partitions=1)
    elif where == "filter":
        changes.filter(lambda _, context: context.offset > 3).to("latest", partitions=1)
    elif where == "key":
        changes.to("latest", key=lambda _, context: context.topic, partitions=1)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("map", "map .*takes the context"),
        ("filter", "filter .*takes the context"),
        ("key", "output .*takes the context"),
        ("nothing", "no changes"),
    ],
)
def test_what_does_not_follow_from_states_alone_is_refused(where: str, text: str) -> None:
    flow = Flow("up", state_partitions=1)
    with_context(flow, where)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"))
    rehearsal.run_until_caught_up()
    home = rehearsal.stores[""].home("up")
    with pytest.raises(ConfigurationError, match=text):
        rehearsal.announce()
    assert rehearsal.stores[""].home("up") == home, "refused before it claims"


def test_a_stage_that_cannot_be_republished_does_not_block_another() -> None:
    flow = Flow("up", state_partitions=1)
    with_context(flow, "map")
    flow.source("more", StringValue).aggregate(
        "more", key=first_letter, state=StringValue, fold=append_word
    ).changes().to("latest-more", partitions=1)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("more", word("ant"))
    rehearsal.run_until_caught_up()
    assert rehearsal.announce("more").outputs == {"more": 1}
    with pytest.raises(ConfigurationError, match=r"stage 'mroe' has no changes.*: letters, more"):
        rehearsal.announce("mroe")


def test_a_flow_that_has_read_nothing_has_no_states_to_republish() -> None:
    rehearsal = Rehearsal(upstream(second=False))
    rehearsal.start()
    home = rehearsal.stores[""].home("up")[0]
    assert rehearsal.announce().outputs == {}
    after = rehearsal.stores[""].home("up")[0]
    assert home is not None
    assert after is not None
    assert home.number == after.number


@pytest.mark.parametrize("error", [ValueError, None])
def test_user_code_that_fails_stops_it_before_anything_is_sealed(error: type[Exception] | None) -> None:
    def changed(state: StringValue) -> StringValue:
        if state.value.startswith("g") and error is not None:
            raise error("cannot be shown")
        return word(state.value + (" " * 2_000_000 if state.value.startswith("g") else ""))

    world = World()
    count, plan = world.count("latest"), world.last_plan()
    failing = world.of(changed=changed)
    with pytest.raises(PoisonError if error else OutputTooLarge) as raised:
        failing.announce()
    assert "key b'g'" in str(raised.value)
    if error:
        assert "stage 'letters'" in str(raised.value)
        assert "ValueError: cannot be shown" in str(raised.value)
        assert "in test_user_code_that_fails_stops_it_before_anything_is_sealed.changed (map" in str(
            raised.value
        )
    assert (world.count("latest"), world.last_plan()) == (count, plan)
    world.up.announce()
    check_published_once(world)


def test_other_code_does_not_finish_what_was_sealed() -> None:
    world = World()
    world.up.crash_at_write(next(writes_before_outputs(world)), "before")
    with pytest.raises(Crash):
        world.up.announce()
    assert Announcing.of(world.last_plan()).digests
    count = world.count("latest")
    for other in (world.of(changed=lambda state: word(state.value + "0")), world.of(carrier="headers")):
        with pytest.raises(PlanMismatch, match="state partition 0"):
            other.start()
    with pytest.raises(PlanMismatch, match="declared otherwise"):
        world.of(output="renamed").start()
    assert world.count("latest") == count
    world.go_on()
    check_published_once(world)


def writes_before_outputs(world: World) -> Any:
    """How many writes of a republication come before its first record."""
    twin = World(**world.options)
    begin = len(twin.up.script.written)
    twin.up.announce()
    written = twin.up.script.written[begin:]
    yield next(at for at, text in enumerate(written) if "latest" in text)


def test_asked_to_stop_it_ends_before_anything_is_sealed() -> None:
    world = World()
    plan = world.last_plan()
    env = environment_of(world.up)
    with pytest.raises(ServiceStopped, match="Nothing was published"):
        Announcement(env, stopped=lambda: True).run()
    assert world.last_plan() == plan


def test_plans_that_republish_no_states_are_stored_as_before() -> None:
    world = World()
    assert b"announced" not in world.last_plan().to_bytes()
    world.up.announce()
    plan = world.last_plan()
    assert Plan.from_bytes(plan.to_bytes()) == plan == plan.with_id()
