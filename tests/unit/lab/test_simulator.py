"""The simulator replays byte for byte, finds what is broken on purpose, and makes failing schedules small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.engines.task import publish
from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.features import timing
from sqe_chain.features.decision import BatchDecision
from sqe_chain.features.event_times import EventTime, frontier_after
from sqe_chain.plans.plan import Plan
from sqe_chain.protocol import finish
from sqe_chain.protocol.finish import OwnedFlow
from sqe_chain.task.event_times import Frontier
from sqe_chain.task.operator_text import OperatorWriter
from tests.lab.reference.world import StageName
from tests.lab.simulator import Schedule, Simulation, Violation, World, drawn, flows, replay, simulate
from tests.lab.simulator.__main__ import main
from tests.lab.simulator.campaign import Campaign
from tests.lab.simulator.schedule import as_test, count_faults
from tests.lab.simulator.shrink import shrink_schedule, violation_of
from tests.support.broken_outputs import each_unit_is_taken_for_an_input_of_its_own

Patch = pytest.MonkeyPatch

FED: list[Any] = ["feed", "origin", [[0, "1 a a - g1 3"], [1, "2 b b - g2 1"], [0, "3 c c - g3 2"]]]
RUN: list[list[Any]] = [["run", name, 2, []] for name in ("hop1", "hop2", "totals")]


def digest_of(seed: int) -> str:
    simulation = Simulation(drawn(seed))
    try:
        simulation.run()
    except Violation as violation:
        return f"{violation}"
    return simulation.digest()


def test_a_seed_replays_byte_for_byte() -> None:
    digests = [digest_of(seed) for seed in range(15)]
    assert digests == [digest_of(seed) for seed in range(15)]
    assert len(set(digests)) > 10


def test_a_schedule_is_plain_data() -> None:
    for seed in range(300):
        schedule = drawn(seed)
        assert Schedule.from_json(schedule.to_json()) == schedule


def test_in_every_schedule_three_faults_happen_at_least() -> None:
    assert min(count_faults(simulate(drawn(seed)).fired) for seed in range(100)) >= 3


def test_undisturbed_everything_holds_and_everything_is_looked_at() -> None:
    simulation = replay(World(reader="aggregation"), [FED, *RUN, ["run", "reader", 2, []]])
    looked_at = simulation.invariants.checked
    assert {name for name, count in looked_at.items() if count} == {
        *(
            "sum",
            "prefix",
            "monotone",
            "order",
            "commit",
            "one writer",
            "redo",
            "whole",
            "once",
            "plans",
            "rest",
        ),
        "sound",
    }


def test_faults_happen_where_the_steps_ask_for_them() -> None:
    steps: list[list[Any]] = [
        FED,
        *RUN[:2],
        ["run", "totals", 2, [["crash", 3, "after", True], ["silence", 1, "before", False, 2]]],
        ["run", "totals", 2, [["meanwhile", 4, "before", False, [["run", "totals", 1, []]]]]],
    ]
    fired = replay(World(), steps).fired
    assert fired["crash after a write"] == 1
    assert fired["no answer before the effect"] == 2
    assert fired["others meanwhile"] == 1


def test_a_republisher_starts_while_another_run_of_it_goes_on() -> None:
    """The end of the log and the group's position are of two moments: whatever comes between, it is no truncation."""
    others = [["feed", "origin", [[0, "3 a a - g3 1"]]], ["run", "hop1", 1, []]]
    for number in range(8):
        for when in ("before", "after"):
            replay(World(), [["run", "hop1", 1, [["meanwhile", number, when, False, others]]]])


def test_two_stages_of_one_level_behind_a_shuffle_need_different_things_of_their_input() -> None:
    """The first publishes nothing, so its units carry less; those of the second are made of the same input."""
    world = World(state_partitions=1, poison="skip")
    replay(world, [["feed", "origin", [[0, "4 c c - g4 1"]]], ["change", "stages"]])


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_a_log_that_loses_what_was_read_of_it_stops_the_service(*, raw: bool, rewritten: bool) -> None:
    """Whether others are written at the same offsets or not; with the log as it was it goes on."""
    fed = ["feed", "far", [[0, "1 a a - g1 1"], [0, "2 a a - g2 1"]]]
    fired = replay(World(hops=0, raw=raw), [fed, ["settle"], ["cut", "far", 0, 1, rewritten]]).fired
    assert fired["log cut off"] == fired["TruncatedInput, handled"] == 1


def test_a_message_that_the_next_one_names_is_missed() -> None:
    """Of three messages of one lane, published at once, the first is lost before anybody has read it."""
    fed = ["feed", "origin", [[0, f"{number} a a - g{number} 1"] for number in (1, 2, 3)]]
    fired = replay(World(hops=1), [fed, ["run", "hop1", 1, []], ["lose"]]).fired
    assert fired["record lost"] == fired["GapError, handled"] == 1


@pytest.mark.parametrize("replayed", [False, True])
def test_a_record_that_cannot_be_read_excuses_one_gap(*, replayed: bool) -> None:
    """It may have been what is missing. A replay after it proves nothing; an accepted message after it ends the excuse."""

    def three(first: int) -> list[list[Any]]:
        numbers = range(first, first + 3)
        fed = ["feed", "origin", [[0, f"{number} a a - g{number} 1"] for number in numbers]]
        return [fed, ["run", "hop1", 1, []]]

    replay_it: list[list[Any]] = [["rewind", "hop1", 3], ["run", "hop1", 1, []]] if replayed else []
    steps: list[list[Any]] = [
        *three(1),
        ["settle"],
        ["rubbish", "far", 0, "rubbish"],
        *replay_it,
        *three(4),
        ["lose"],
    ]
    world = World(hops=1, partitions=1, poison="skip")
    assert replay(world, steps).fired["record lost, excused"] == 1
    fired = replay(world, [*steps, ["settle"], *three(7), ["lose"]]).fired
    assert fired["record lost, excused"] == fired["record lost"] == fired["GapError, handled"] == 1


@pytest.mark.parametrize("makes", ["fewer", "more"])
@pytest.mark.parametrize("read", [False, True])
def test_a_republisher_that_repeats_an_input_by_other_code_is_noticed(makes: str, *, read: bool) -> None:
    """Whether its first attempt had been read already or not."""
    fed = ["feed", "origin", [[0, "1 a a - g1 3"]]]
    steps: list[list[Any]] = [
        fed,
        ["run", "hop1", 1, []],
        *([["run", "totals", 1, []]] if read else []),
        ["change mind", makes],
    ]
    assert replay(World(hops=1), steps).fired["ChangedRepublisher, handled"] == 1


@pytest.mark.parametrize("back", [1, 3])
def test_what_comes_back_through_a_topic_that_was_created_again_is_noticed(back: int) -> None:
    """All of what was counted, or its last root alone."""
    fired = replay(World(), [FED, *RUN, ["settle"], ["come back", back]]).fired
    assert fired["counted roots came back"] == fired["RecreatedTopic, handled"] == 1


def test_a_service_that_does_not_miss_a_message_violates_an_invariant(monkeypatch: Patch) -> None:
    fed = ["feed", "origin", [[0, f"{number} a a - g{number} 1"] for number in (1, 2, 3)]]
    monkeypatch.setattr(MemoryLog, "lose", lambda *_: None)  # nothing is lost, so nothing is noticed
    with pytest.raises(Violation, match="has not noticed"):
        replay(World(hops=1), [fed, ["run", "hop1", 1, []], ["lose"]])


@pytest.mark.parametrize("end", ["killed", "given back"])
@pytest.mark.parametrize("signs", [0, 1, 3])
def test_a_standby_waits_as_long_as_the_other_run_lives(signs: int, end: str) -> None:
    """A batch and heartbeats are signs of life; then it takes over after six seconds, or at once."""
    more = ["feed", "origin", [[0, "4 a a - g4 1"]]]
    fired = replay(World(), [FED, *RUN, more, *RUN[:2], ["standby", signs, 29, end]]).fired
    (what,) = (name for name in fired if name.startswith("standby"))
    assert what.endswith("killed" if end == "killed" else "back")


def test_a_standby_that_does_not_wait_violates_an_invariant(monkeypatch: Patch) -> None:
    monkeypatch.setattr("sqe_chain.protocol.claim._stand_by", lambda _env, home, _may_take: home)
    with pytest.raises(Violation, match="0 looks without a sign of life"):
        replay(World(), [FED, *RUN, ["standby", 1, 5, "killed"]])


def no_marks(patch: Patch) -> None:
    real = PartitionMarks.from_json.__func__  # type: ignore[attr-defined]

    def from_json(cls: type[Any], /, record: Any, **settings: Any) -> Any:
        return real(cls, {**record, "lanes": [], "roots": []}, **settings)

    patch.setattr(PartitionMarks, "from_json", classmethod(from_json))


def header_not_compared(patch: Patch) -> None:
    real = MemoryStore.write

    def write(self: MemoryStore, flow: str, stage: str, part: int, before: Any, *rest: Any) -> Any:
        return real(self, flow, stage, part, self.headers(flow, stage, [part])[0] if before else None, *rest)

    patch.setattr(MemoryStore, "write", write)


def first_stage_first(patch: Patch) -> None:
    def turned(*bounds: int) -> Any:
        return reversed(range(*bounds)) if bounds[2:] == (-1,) else range(*bounds)

    patch.setattr(finish, "range", turned, raising=False)


def publish_after_persist(patch: Patch) -> None:
    persist, publish = InProcessEngine.persist, InProcessEngine.publish
    patch.setattr(InProcessEngine, "publish", lambda _self: None)

    def both(self: InProcessEngine, *args: Any) -> int:
        rows = persist(self, *args)
        publish(self)
        return rows

    patch.setattr(InProcessEngine, "persist", both)


def commit_before_persist(patch: Patch) -> None:
    finish = OwnedFlow.finish

    def early(self: OwnedFlow, plan: Any, *args: Any, **options: Any) -> None:
        self.commit(plan)
        finish(self, plan, *args, **options)

    patch.setattr(OwnedFlow, "finish", early)


MUTANTS = [
    *(no_marks, header_not_compared, first_stage_first, publish_after_persist, commit_before_persist),
    each_unit_is_taken_for_an_input_of_its_own,
]


@pytest.mark.parametrize("kind", ["join", "windows"])
def test_outputs_of_one_input_at_one_position_are_noticed(monkeypatch: Patch, kind: StageName) -> None:
    world, fed = World(kind=kind, told=True, partitions=1), ["feed", "origin", [[0, "1 a b - g1 3"]]]
    replay(world, [fed])
    each_unit_is_taken_for_an_input_of_its_own(monkeypatch)
    with pytest.raises(Violation, match=r"redo: a lane and position names one content.* 1/1 on"):
        replay(world, [fed])


def test_a_stage_that_takes_the_very_object_of_a_function_is_noticed(monkeypatch: Patch) -> None:
    """Functions of these worlds change what they have returned."""
    world = World(hops=0, partitions=1, state_partitions=1, poison="dead_letter")
    fed = ["feed", "far", [[0, f"{number} a a - g{number} 1"] for number in (1, 2, 3)]]
    monkeypatch.setattr(flows, "_totals", flows._totals.__wrapped__)  # no flow that others have compiled
    replay(world, [fed])
    monkeypatch.setattr(OperatorWriter, "_read_back", staticmethod(lambda _, value: value))
    with pytest.raises(Violation, match="once: every input is counted"):
        replay(world, [fed])


def test_a_watermark_that_goes_back_is_noticed(monkeypatch: Patch) -> None:
    world = World(hops=0, kind="windows", partitions=1, stages=1)
    fed = [["feed", "far", [[0, f"{number} a a - g{number} 1"]]] for number in (1, 2, 3)]
    steps = [step for feeds in fed for step in (feeds, ["run", "totals", 4, []])]
    replay(world, steps)

    def forgets(last: Plan, decision: BatchDecision) -> Frontier | None:
        return None if EventTime.of(last).frontier else frontier_after(last, decision)

    monkeypatch.setattr(timing, "frontier_after", forgets)
    with pytest.raises(Violation, match=r"monotone: .*takes inputs up to None"):
        replay(world, steps)


def test_an_output_written_twice_in_a_batch_is_noticed_though_both_are_equal(monkeypatch: Patch) -> None:
    def twice(self: InProcessEngine) -> None:
        publish(self._log, [*self._outputs, *self._outputs])

    monkeypatch.setattr(InProcessEngine, "publish", twice)
    with pytest.raises(Violation, match="twice in a batch"):
        replay(World(), [FED])


@pytest.fixture(scope="module")
def whole() -> list[int]:
    """Seeds that violate nothing while the code is whole."""
    found = [seed for seed in range(40) if violation_of(drawn(seed)) is None]
    assert len(found) > 15
    return found


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_what_is_broken_on_purpose_is_found(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """By a schedule that violates nothing while the code is whole."""
    for seed in range(600):
        mutant(monkeypatch)
        found = violation_of(drawn(seed))
        monkeypatch.undo()
        if found and violation_of(drawn(seed)) is None:
            return
    pytest.fail("600 schedules have not noticed")


def test_a_failing_schedule_is_made_small_and_printed_as_a_test_that_fails(
    monkeypatch: Patch, whole: list[int]
) -> None:
    no_marks(monkeypatch)
    seed, violation = next((seed, seen) for seed in whole if (seen := violation_of(drawn(seed))))
    small = shrink_schedule(drawn(seed), violation)
    assert len(small.to_json()) < len(drawn(seed).to_json())
    found: dict[str, Any] = {}
    exec(as_test(small, str(violation), "it"), found)  # noqa: S102 - our own text
    with pytest.raises(Violation, match=violation.name):
        found["test_it"]()
    monkeypatch.undo()
    found["test_it"]()


def test_a_schedule_where_a_service_stops_is_made_small_as_long_as_it_stops_with_the_same_error() -> None:
    steps: list[list[Any]] = [["settle"], ["run", "hop1", 1, []]]

    def fails(candidate: Schedule) -> Violation:
        error = (
            "PoisonError: 7 inputs"
            if ["run", "hop1", 1, []] in candidate.steps
            else "StoreInconsistent: 7 rows"
        )
        return Violation("sound", f"totals stopped: {error}")

    violation = Violation("sound", "totals stopped: PoisonError: 9 inputs")
    assert shrink_schedule(Schedule(World(), tuple(steps)), violation, fails).steps == (
        ["run", "hop1", 1, []],
    )


def test_steps_within_pauses_become_fewer_at_tables_too() -> None:
    kept, left_out = ["compact", []], ["run", "hop1", 1, []]
    pauses = [[what, 2, "before", False, [left_out, kept]] for what in ("meanwhile", "table meanwhile")]
    world = World(table="beside")
    for pause in pauses:

        def fails(candidate: Schedule) -> Violation | None:
            return Violation("sum", candidate.to_json()) if "compact" in candidate.to_json() else None

        violation = Violation("sum", "as always")
        small = shrink_schedule(Schedule(world, (["run", "totals", 1, [pause]],)), violation, fails)
        assert small.steps == (["run", "totals", 1, [[*pause[:-1], [kept]]]],)


def test_a_campaign_counts_faults_and_invariants(
    capsys: pytest.CaptureFixture[str], whole: list[int]
) -> None:
    assert main(["--schedules", "1", "--seed", str(whole[0]), "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "1 schedules" in told
    assert "prefix: at every moment" in told
    assert "no violation" in told


def test_a_violation_gives_status_1_and_a_test(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str], whole: list[int]
) -> None:
    no_marks(monkeypatch)
    seed = next(seed for seed in whole if violation_of(drawn(seed)))
    assert main(["--schedules", "1", "--seed", str(seed), "--jobs", "1"]) == 1
    assert f"def test_seed_{seed}" in capsys.readouterr().out


def test_a_campaign_can_go_on_after_a_violation(monkeypatch: Patch, whole: list[int]) -> None:
    no_marks(monkeypatch)
    campaign = Campaign(whole)
    assert [*campaign.run()] == whole
    assert 1 < len(campaign.violations) < campaign.done == len(whole)


def test_the_reference_knows_that_a_skipped_input_failed_in_its_turn() -> None:
    """By its time it came before the other one with its id; once skipped, it moves no stream time."""
    world = World(hops=0, partitions=1, kind="deduplicate", poison="skip", table="after")
    steps: list[list[Any]] = [
        ["feed", "far", [[0, "4 a a q g4 1"]]],
        ["jump", -1000],
        ["feed", "far", [[0, "5 e e - g4 1"]]],
    ]
    replay(world, steps)


def test_a_run_that_was_superseded_is_started_again_before_it_must_notice_anything() -> None:
    """It lived on while the flow was rebuilt, and learns of that with the next input."""
    meanwhile = ["rebuild", False, [["meanwhile", 2, "before", False, [["run", "totals", 1, []]]]]]
    fed: list[list[Any]] = [["feed", "origin", [[0, "5 a a - g5 3"]]], ["run", "hop1", 1, []]]
    world = World(hops=1, partitions=1, state_partitions=1, block=1)
    fired = replay(world, [meanwhile, *fed, ["change mind", "more"]]).fired
    assert (fired["ended"], fired["ChangedRepublisher, handled"]) == (1, 1)


def test_a_republisher_that_has_nothing_to_repeat_has_not_changed() -> None:
    assert replay(World(hops=1), [["change mind", "more"]]).fired["republisher changed"] == 0
