"""Goal: what fails waits with all that follows it of its key, and counts exactly once, in order, when it is released.

Method: a chain of services in memory; republishers publish again, the service dies at drawn steps and at every single write,
folds again, moves. The oracle is a plain loop over the words of each key (`tests.support.parking_world`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import ConfigurationError, FlowError, PoisonError, TooManyParked
from sqe_chain.ext.explain.fate import find_fate
from sqe_chain.features import parking
from sqe_chain.flow import Flow, Stream
from sqe_chain.operations.parked import ParkedResult, ParkedSelection, ParkedWork, parked_in
from sqe_chain.stages import Tumbling
from sqe_chain.task.parking import ParkedRecord
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Port
from tests.support.environments import environment_of
from tests.support.parking_world import KEYS, World
from tests.support.word_flows import append_word, same_key, stored_words, word


@pytest.mark.parametrize("state_partitions", [2, 3])
@pytest.mark.parametrize("raw", [False, True])
def test_what_fails_waits_and_counts_in_order_when_it_is_released(state_partitions: int, raw: bool) -> None:
    world = World(1, state_partitions, raw=raw)
    for _ in range(3):
        world.feed(12)
        world.read()
        world.check()
    assert any(world.waits(key) for key in KEYS)
    world.fix()
    result = world.release()
    assert (result.again, result.waiting, result.stuck) == (0, 0, 0)
    assert result.done > 0
    world.check()
    world.feed(12, broken=0)
    world.read()
    world.check()


@pytest.mark.parametrize("seed", range(25))
def test_drawn_worlds_with_crashes(seed: int) -> None:
    world = World(seed, 2 + seed % 2, raw=seed % 4 == 3)
    draw = world.draw
    for _ in range(8):
        for _ in range(draw.randrange(3)):
            world.parks.crash(
                step=draw.randrange(1, 8),
                when=draw.choice(("before", "after")),
                after_passes=draw.randrange(3),
            )
        world.feed(draw.randrange(9), broken=0.3)
        world.read()
        world.check()
        what, key = draw.randrange(7), draw.choice([None, *KEYS])
        if what < 2:
            world.fix(0.5)
            world.release(key)
        elif what == 2:
            world.discard(key)
        elif what == 3:
            world.rebuild()
        elif what == 4:
            world.move()
        world.check()
    world.parks.cancel()
    world.read()
    world.fix()
    world.release()
    world.check()
    assert not any(world.waits(key) for key in KEYS)


def add_word(words: StringValue, value: StringValue) -> None:
    append_word(words, value)


def declare_flow(fails: set[str], **options: object) -> Flow:
    def check(value: StringValue) -> StringValue:
        if value.value in fails:
            raise ValueError(f"cannot take {value.value}")
        return value

    flow = Flow("letters", poison="park", state_partitions=2, **options)  # type: ignore[arg-type]
    source = flow.source("words", StringValue).map(check)
    source.aggregate("letters", key=same_key, state=StringValue, fold=append_word)
    return flow


def service_of(fails: set[str], **options: object) -> Rehearsal:
    return Rehearsal(declare_flow(fails, **options), partitions={"words": 2})


def work(service: Rehearsal, *, discards: bool = False, **selected: str) -> ParkedResult:
    service.service = None
    return ParkedWork(environment_of(service), ParkedSelection(**selected), discards).run()  # type: ignore[arg-type]


def waiting(service: Rehearsal) -> list[ParkedRecord]:
    return list(parked_in(service.stores[""], service.flow))


def test_a_record_without_a_key_waits_alone() -> None:
    fails = {"bad"}
    service = service_of(fails)
    for text in ("bad", "good", "fine"):
        service.feed("words", word(text), partition=0)
    service.run_until_caught_up()
    assert stored_words(service) == {"all": "good fine"}
    (parked,) = waiting(service)
    assert (str(parked), parked.error) == ("words[0]@0", "ValueError")
    fails.clear()
    assert work(service).done == 1
    assert stored_words(service) == {"all": "good fine bad"}


def test_the_same_key_of_another_partition_does_not_wait() -> None:
    service = service_of({"bad"})
    service.feed("words", word("bad"), partition=0, key="k")
    service.feed("words", word("one"), partition=1, key="k")
    service.feed("words", word("two"), partition=0, key="k")
    service.run_until_caught_up()
    assert stored_words(service) == {"all": "one"}
    assert [(str(one), one.error) for one in waiting(service)] == [
        ("words[0]@0", "ValueError"),
        ("words[0]@1", "Parked"),
    ]
    assert waiting(service)[1].text == "waits behind words[0]@0, key b'k'"


def test_an_envelope_that_cannot_be_read_never_counts_and_what_follows_it_counts_once_it_is_discarded() -> (
    None
):
    service = service_of(set())
    service.feed("words", b"no envelope", partition=0, key="k")
    service.feed("words", word("next"), partition=0, key="k")
    service.run_until_caught_up()
    result = work(service)
    assert (result.done, result.stuck, result.waiting) == (0, 2, 2)
    assert work(service, discards=True, error="NotAnEnvelope").done == 1
    assert work(service).done == 1
    assert stored_words(service) == {"all": "next"}
    service.rebuild()
    service.run_until_caught_up()
    assert stored_words(service) == {"all": "next"}
    assert not waiting(service)


def test_what_counted_before_and_fails_when_it_is_folded_again_stops_the_rebuild() -> None:
    fails = set[str]()
    service = service_of(fails)
    service.feed("words", word("one"), key="k")
    service.run_until_caught_up()
    fails.add("one")
    with pytest.raises(PoisonError, match="It was counted before"):
        service.rebuild()
    fails.clear()
    service.rebuild()
    service.run_until_caught_up()
    assert stored_words(service) == {"all": "one"}


@pytest.mark.parametrize("limit", ["MAX_RECORDS", "MAX_BYTES"])
def test_a_partition_with_too_many_parked_records_stops_and_goes_on_when_they_are_fewer(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, limit, 3 if limit == "MAX_RECORDS" else 250)
    fails = {"bad"}
    service = service_of(fails)
    for text in ("bad", "a", "b"):
        service.feed("words", word(text), partition=0, key="k")
    service.run_until_caught_up()
    assert len(waiting(service)) == 3
    service.feed("words", word("other"), partition=1, key="k")
    service.feed("words", word("d" * 40), partition=0, key="k")
    with pytest.raises(TooManyParked, match="sqe-chain failed release") as stopped:
        service.run_until_caught_up()
    assert (stopped.value.topic, stopped.value.partition, stopped.value.offset) == ("words", 0, 3)
    assert len(waiting(service)) == 3
    fails.clear()
    assert work(service).done == 3
    service.run_until_caught_up()
    assert sorted(stored_words(service)["all"].split()) == sorted(["a", "b", "bad", "other", "d" * 40])


def test_another_policy_is_refused_while_records_wait() -> None:
    fails = {"bad"}
    service = service_of(fails)
    service.feed("words", word("bad"), key="k")
    service.run_until_caught_up()
    flow = Flow("letters", state_partitions=2)
    flow.source("words", StringValue).aggregate("letters", key=same_key, state=StringValue, fold=append_word)
    other = Rehearsal(flow, log=service.log, store=service.stores[""])
    with pytest.raises(ConfigurationError, match=r"1 records are parked.*sqe-chain failed"):
        other.run_until_caught_up()
    with pytest.raises(ConfigurationError, match="Expected poison='park'"):
        work(other)
    fails.clear()
    work(service)
    other.run_until_caught_up()
    assert stored_words(other) == {"all": "bad"}


def test_a_topic_that_was_created_again_leaves_its_parked_records_behind() -> None:
    fails = {"bad"}

    def check(value: StringValue) -> StringValue:
        if value.value in fails:
            raise ValueError(value.value)
        return value

    flow = Flow("letters", poison="park", state_partitions=2)
    source = flow.source("words", StringValue, raw=True).map(check)
    source.aggregate("letters", key=same_key, state=StringValue, fold=append_word)
    service = Rehearsal(flow, partitions={"words": 2})
    service.feed("words", word("bad"), key="k")
    service.run_until_caught_up()
    service.log.recreate("words", 2)
    service.feed("words", word("new"), key="k")
    service.service = None
    service.run_until_caught_up()
    assert stored_words(service) == {"all": "new"}
    assert any("were parked" in str(event) for event in service.events("notice"))
    fails.clear()
    assert work(service).stuck == 1
    assert work(service, discards=True).done == 1
    assert not waiting(service)


def test_the_first_that_waits_is_reported_and_the_number_is_known() -> None:
    service = service_of({"bad"})
    for text in ("good", "bad", "more"):
        service.feed("words", word(text), partition=0, key="k")
    service.run_until_caught_up()
    (notice,) = [event for event in service.events("notice") if "parked" in str(event)]
    assert "words[0]@1 cannot be processed (ValueError: cannot take bad" in str(notice["text"])
    assert service.events("committed")[-1]["parked"] == 2


def test_parked_records_do_not_x() -> None:
    service = service_of({"bad"})
    for number in range(300):
        service.feed("words", word("bad" if number < 1 else f"w{number}"), partition=0, key="k")
    service.run_until_caught_up()
    assert len(waiting(service)) == 300


def refused(declare: Callable[[Flow], object]) -> str:
    flow = Flow("refused", poison="park")
    declare(flow)
    with pytest.raises(FlowError) as error:
        flow.compile()
    return str(error.value)


def test_flows_whose_inputs_cannot_wait_are_refused_when_they_are_declared() -> None:
    def words_in(flow: Flow) -> Stream[StringValue]:
        return flow.source("words", StringValue)

    assert "Expected a stage" in refused(lambda flow: words_in(flow).to("out", partitions=1))
    assert "does not take an input after later ones" in refused(
        lambda flow: words_in(flow).deduplicate("seen", same_key, 5).to("out", partitions=1)
    )
    assert "does not take an input after later ones" in refused(
        lambda flow: words_in(flow).windowed("w", Tumbling(5), state=StringValue, fold=add_word, key=same_key)
    )
    assert "reads files" in refused(
        lambda flow: flow.files("rows", StringValue, "*.csv").aggregate(
            "all", key=same_key, state=StringValue, fold=append_word
        )
    )

    def writes_for_sqe(flow: Flow) -> None:
        words = words_in(flow)
        words.to_sqe("out", partitions=1, process_id=7)
        words.aggregate("all", key=same_key, state=StringValue, fold=append_word)

    assert "readers of SQE's record keys" in refused(writes_for_sqe)


def test_why_not_names_what_waits_and_what_was_discarded() -> None:
    service = service_of({"bad"})
    for text in ("good", "bad", "more"):
        service.feed("words", word(text), partition=0, key="k")
    service.run_until_caught_up()
    env = environment_of(service)
    fates = [find_fate(env, ("words", 0, offset)) for offset in (1, 2)]
    assert [fate.verdict for fate in fates] == ["waiting", "waiting"]
    assert "ValueError: cannot take bad" in fates[0].reason
    assert "waits behind words[0]@1" in fates[1].reason
    with pytest.raises(ConfigurationError, match="parks records"):
        find_fate(env, ("words", 0, 0))
    work(service, discards=True, error="ValueError")
    fates = [find_fate(env, ("words", 0, offset)) for offset in (1, 2)]
    assert [fate.verdict for fate in fates] == ["skipped", "waiting"]


def test_what_was_released_is_not_published_again_under_its_first_name() -> None:
    world = World(1)
    world.feed(12)
    world.read()
    world.fix()
    world.release()
    world.check()
    with pytest.raises(ConfigurationError, match="failed and was released"):
        world.parks.rebuild({("words", 0): 0, ("words", 1): 0}, republish=True)
    world.check()
    world.parks.rebuild({("words", 0): 0, ("words", 1): 0})
    world.read()
    world.check()


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_service_that_sleeps_while_records_are_released_changes_nothing(at: int) -> None:
    world = World(5)
    world.feed(10)
    world.read()
    world.fix()
    world.feed(6, broken=0.3)
    world.parks.meanwhile(world.release_beside, at=at)
    world.read()
    assert world.parks.ended or at > 30
    world.parks.cancel()
    world.release()
    world.check()
    world.fix()
    world.release()
    world.check()


@pytest.mark.parametrize("of", ["broker", "store"])
def test_outages_while_records_are_parked_and_released(of: Port) -> None:
    for at in range(0, 60, 4):
        world = World(6)
        world.feed(8)
        world.parks.outage(of, at=at, calls=3)
        world.read()
        world.check()
        world.fix()
        world.parks.outage(of, at=at // 2, calls=2, when="after")
        world.release()
        world.check()
