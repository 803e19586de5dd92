"""The demo strikes at the right moments, counts only kills that prove something, and judges hard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from services.audit import StageAudit, WrongKey
from services.demo.kills import LIVES_FOR_EACH_KILL, Aim, Kills, Moment
from services.demo.life import Life, LogLine, parse_line
from services.demo.verdict import TotalsOutcome
from services.demo.victim import Victim, summary
from services.expected import expected
from services.naive import Naive
from services.reports import reports


def line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields}) + "\n"


def life_of(*events: LogLine) -> Life:
    """A life in which these events happened at seconds 1, 2, 3 …."""
    life = Life("totals", 1)
    for second, event in enumerate(events, start=1):
        life.apply(event, second)
    return life


@pytest.mark.parametrize(
    "text", ["", "25/11/20 WARN Utils: hello", "{broken", '{"no": "event"}', '{"event": 3}', '["event"]']
)
def test_lines_of_others_are_no_events(text: str) -> None:
    assert parse_line(text) is None


def test_a_json_line_becomes_an_event() -> None:
    assert parse_line(line("recovered", plan=7, redone=[6, 7])) == LogLine("recovered", 7, (6, 7))
    assert parse_line(line("committed", plan=7, inputs=10, replays=3, batch_ms=81.5)) == LogLine(
        "committed", 7, inputs=10, replays=3
    )
    assert parse_line(line("published", outputs=12)) == LogLine("published", outputs=12)


def test_only_publishing_and_persisting_prove_that_a_life_did_something() -> None:
    started = life_of(LogLine("claimed"), LogLine("recovered", 3), LogLine("sealed", 4))
    assert started.proved_s is None

    assert life_of(LogLine("published", 4, outputs=1), LogLine("published", 5, outputs=1)).proved_s == 1
    assert life_of(LogLine("sealed", 4), LogLine("persisted", 4, rows=1)).proved_s == 2
    nothing_left_to_do = life_of(LogLine("published", 4), LogLine("persisted", 4))
    assert nothing_left_to_do.proved_s is None


def test_a_plan_is_open_from_its_seal_to_its_commit() -> None:
    sealed, committed = LogLine("sealed", 4), LogLine("committed", 4, inputs=10, replays=2)

    assert life_of(sealed).open_plan == 4
    assert life_of(sealed, LogLine("published", 4, outputs=1), LogLine("persisted", 4, rows=1)).open_plan == 4
    closed = life_of(sealed, LogLine("published", 4, outputs=3), committed)
    assert (closed.open_plan, closed.batches, closed.inputs, closed.replays) == (None, 1, 10, 2)
    assert closed.outputs == 3


def test_nobody_is_killed_before_it_has_proved_anything() -> None:
    life = life_of(LogLine("sealed", 4))

    for moment in Moment:
        assert not Aim(moment, 0.0).is_due(life, now_s=100, unacknowledged=10_000, enough=1)


def test_between_seal_and_persist_means_just_that() -> None:
    aim = Aim(Moment.SEALED, 0.5)
    batch = (LogLine("sealed", 4), LogLine("published", 4, outputs=1), LogLine("persisted", 4, rows=1))  # 2 s

    assert not aim.is_due(life_of(*batch), 100, 0, 0), "nothing is left for the next life to finish"
    assert not aim.is_due(life_of(*batch, LogLine("committed", 4)), 100, 0, 0)
    second = life_of(*batch, LogLine("committed", 4), LogLine("sealed", 5))
    assert not aim.is_due(second, 5.9, 0, 0)
    assert aim.is_due(second, 6.0, 0, 0)


def test_a_plan_of_two_levels_is_not_persisted_before_both_are() -> None:
    life = Life("totals", 1, levels=2)
    for second, event in enumerate(("sealed", "persisted", "persisted", "committed"), start=1):
        life.apply(LogLine(event, 4, rows=1), second)
        assert life.persists == (second < 3)
    assert life.persist_s == 2


def test_after_publishing_means_more_published_than_committed() -> None:
    aim = Aim(Moment.PUBLISHING, 0.5, in_first_batch=False)
    life = life_of(LogLine("published", outputs=1))
    assert not aim.is_due(life, 1, unacknowledged=500, enough=1000), "it must come further in this life"
    assert replace(aim, in_first_batch=True).is_due(life, 1, unacknowledged=500, enough=1000)

    life.apply(LogLine("committed"), 2)
    assert not aim.is_due(life, 1, unacknowledged=499, enough=1000)
    assert aim.is_due(life, 1, unacknowledged=500, enough=1000)
    assert aim.is_due(life, 100, unacknowledged=1, enough=1000), "it takes less when it gets late"
    assert not aim.is_due(life, 100, unacknowledged=0, enough=1000)


def test_kills_of_starting_services_do_not_count() -> None:
    kills = Kills("standardize", 1, 0, Random(1))

    kills.record(life_of(LogLine("claimed")), 0)
    assert (kills.counted, kills.done) == (0, False)
    kills.record(life_of(LogLine("published", outputs=1)), 5)
    assert (kills.counted, kills.done, kills.said_twice) == (1, True, 5)


def test_an_open_plan_counts_only_when_the_next_life_reports_that_it_finished_it() -> None:
    kills = Kills("totals", 1, 1, Random(1))

    assert not kills.recovered(()), "nobody was killed before the first life"
    kills.record(life_of(LogLine("published", 3, outputs=1), LogLine("committed", 3)), 0)
    assert not kills.recovered((3,)), "no plan was open"
    kills.record(life_of(LogLine("published", 4, outputs=1), LogLine("sealed", 5)), 0)
    assert not kills.recovered(()), "its store had it already"
    assert not kills.done
    kills.record(life_of(LogLine("published", 5, outputs=1), LogLine("sealed", 6)), 0)
    assert kills.recovered((6,))
    assert (kills.counted, kills.finished_open, kills.done) == (3, 1, True)
    assert summary(kills.all) == (
        "killed 3 times, 3 of them after it had published or persisted; "
        "2 between seal and commit, 1 of these plans finished by the next life"
    )


def test_kills_that_never_count_are_given_up() -> None:
    kills = Kills("totals", 2, 1, Random(1))
    for _ in range(2 * LIVES_FOR_EACH_KILL):
        assert not kills.hopeless
        kills.record(life_of(LogLine("claimed")), 0)

    assert kills.hopeless


def test_the_same_seed_aims_the_same_and_wanted_moments_come_first() -> None:
    first, again = (Kills("totals", 5, 2, Random(7)) for _ in range(2))

    assert [first.next_aim() for _ in range(20)] == [again.next_aim() for _ in range(20)]
    late = Kills("totals", 2, 2, Random(7))
    assert {late.next_aim().moment for _ in range(20)} == {Moment.SEALED}
    republisher = Kills("standardize", 5, 0, Random(7))
    assert {republisher.next_aim().moment for _ in range(50)} == {Moment.PUBLISHING, Moment.ANY}


def test_two_lives_running_are_never_killed_before_they_have_committed() -> None:
    kills = Kills("standardize", 0, 0, Random(7))
    assert kills.next_aim().in_first_batch

    kills.record(life_of(LogLine("published", outputs=1)), 1)
    assert not kills.next_aim().in_first_batch
    kills.record(life_of(LogLine("published", outputs=1), LogLine("committed")), 1)
    assert kills.next_aim().in_first_batch


def test_a_victim_remembers_its_lives_and_counts_what_is_published_and_not_committed(tmp_path: Path) -> None:
    def begin() -> Any:
        return None

    victim = Victim("standardize", begin, Kills("standardize", 1, 0, Random(1)), tmp_path / "log")
    victim.start(0)
    victim.hear("not for us\n", 1)
    victim.hear(line("published", outputs=10), 2)
    victim.hear(line("committed", inputs=8, replays=0), 3)
    victim.said = 14
    assert victim.unacknowledged == 4

    assert victim.bury(done=8).said_twice == 4
    victim.start(8)
    assert (victim.life.number, victim.unacknowledged) == (2, 0)
    victim.hear(line("committed", inputs=8, replays=5), 4)
    assert victim.replays == 5
    assert victim.row.kills == "1/1"
    victim.said = 20
    assert victim.bury(done=24).said_twice == 0, "its last commit arrived, it only could not report it"


def test_a_commit_that_arrives_after_the_kill_is_none_of_the_next_life(tmp_path: Path) -> None:
    """A broker that is slow takes it when the process is dead and measured."""
    victim = Victim("standardize", lambda: cast("Any", None), Kills("standardize", 1, 0, Random(1)), tmp_path)
    victim.start(0)
    victim.hear(line("published", outputs=10), 1)
    victim.said = 10
    assert victim.bury(done=0).said_twice == 10
    victim.start(8)
    assert victim.kills.said_twice == 0, "nothing was published twice"
    victim.hear(line("committed", inputs=5, outputs=6), 2)
    assert not victim.has_committed_more(13)


def test_what_a_recovery_has_published_and_committed_is_the_lifes_own(tmp_path: Path) -> None:
    """Otherwise no kill of a life that has finished a batch of the one before would ever count."""
    victim = Victim("standardize", lambda: cast("Any", None), Kills("standardize", 1, 0, Random(1)), tmp_path)
    victim.start(0)
    victim.hear(line("published", outputs=10), 1)
    victim.hear(line("recovered", inputs=8), 2)
    victim.said = 10
    assert (victim.unacknowledged, victim.has_committed_more(8)) == (0, False)
    victim.hear(line("committed", inputs=5), 3)
    assert not victim.has_committed_more(13)
    assert victim.has_committed_more(14)


def outcome(**changed: Any) -> TotalsOutcome:
    """An outcome with which nothing is wrong, but for what is changed."""
    truth = expected(reports(7, 100))
    kills = Kills("totals", 1, 1, Random(1))
    kills.record(life_of(LogLine("published", 4, outputs=1), LogLine("sealed", 5)), 0)
    kills.recovered((5,))
    right = TotalsOutcome(
        truth=truth,
        stages=[
            StageAudit("per-robot", keys=len(truth.robots), events=truth.events),
            StageAudit("per-line", keys=len(truth.lines), events=truth.events),
        ],
        records=truth.messages + 40,
        reported_replays=30,
        naive=Naive(truth.messages + 40, truth.events + 70, 70, 5, 90, "robot-0001", 9),
        kills=[kills],
    )
    return replace(right, **changed)


def test_the_last_line_sums_up_what_was_proved() -> None:
    right = outcome()

    assert right.failures == []
    keys, events = right.truth.keys, right.truth.events
    assert right.last_line == f"exact: {keys} keys, {events} events, 40 replays ignored, 0 missing, 0 doubled"


def wrong_stage() -> StageAudit:
    stage = StageAudit("per-robot", keys=90, events=200, missing=3, doubled=1)
    stage.findings.append(WrongKey("per-robot", "robot-0001", "missing events", ""))
    return stage


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"stages": [wrong_stage()]}, "1 findings"),
        ({"records": outcome().truth.messages + 3, "reported_replays": 0}, "proves nothing"),
        ({"reported_replays": 41}, "but there are 40"),
        ({"naive": replace(outcome().naive, too_many=0)}, "counted right"),
        ({"kills": [Kills("standardize", 5, 0, Random(1))]}, "only 0 of 5 kills count"),
        ({"kills": [Kills("totals", 0, 2, Random(1))]}, "only 0 of 2 kills between seal and commit"),
    ],
    ids=["audit", "few replays", "replays from nowhere", "naive is right", "few kills", "few open plans"],
)
def test_every_deviation_is_a_failure_with_its_reason(changed: dict[str, Any], why: str) -> None:
    off = outcome(**changed)

    assert len(off.failures) == 1
    assert why in off.failures[0]
    assert off.last_line.startswith("not exact: ")
