"""Goal: the storm's oracle sees each fact that is lost or doubled, and only a whole storm gives a verdict.

Method: totals and strikes made by hand; the only processes are `sleep` and `sh`.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.storm import facts as facts_module
from benchmarks.storm import faults as faults_module
from benchmarks.storm import oracle as oracle_module
from benchmarks.storm.facts import PER_ROBOT, Fact, Facts, digits, fact_in
from benchmarks.storm.faults import DECK, MOMENTS_S, Kind, Strike, draw, lacking
from benchmarks.storm.ledger import LEDGER, Entry, append, read
from benchmarks.storm.oracle import Judgement, Reader, Verdict, at_stake, judge
from benchmarks.storm.outcome import Outcome
from benchmarks.storm.results import BEGIN, END, Results, report, write_between
from benchmarks.storm.roles import Role
from benchmarks.storm.system import Job, Stuck
from benchmarks.storm.systems import SYSTEMS
from benchmarks.storm.watching import CLOSER, CLOSERS, PARTITIONS
from sqe_chain.envelope.partitioner import partition_of

FACTS = Facts(seed=3, robots=20)
ONCE = Counter(FACTS.all())
RIGHT = {robot: (PER_ROBOT, sum(16**index for index in range(PER_ROBOT))) for robot in FACTS.names()}
ROBOT = "robot-00004"


def changed(events: int, amount: int) -> dict[str, tuple[int, int]]:
    """The right totals, but for one robot."""
    before = RIGHT[ROBOT]
    return {**RIGHT, ROBOT: (before[0] + events, before[1] + amount)}


def verdict(totals: dict[str, tuple[int, int]], published: Counter[Fact] = ONCE) -> Judgement:
    return judge(FACTS, totals, published)


def test_right_totals_are_exact_whatever_was_published_again() -> None:
    again = ONCE + Counter([Fact(ROBOT, 2)])
    assert verdict(RIGHT, again) == Judgement(20, 0, 0, 0, 0, 0, 1)
    assert verdict(RIGHT, again).verdict is Verdict.EXACT


def test_a_lost_and_a_doubled_fact_of_one_robot_do_not_hide_each_other() -> None:
    found = verdict(changed(0, 16**5 - 16**3))
    assert (found.wrong, found.lost, found.doubled, found.torn) == (1, 1, 1, 0)
    assert found.verdict is Verdict.MISCOUNTED


def test_a_fact_counted_twice_is_charged_to_the_one_that_repeated_it() -> None:
    twice = changed(1, 16**7)
    assert verdict(twice, ONCE + Counter([Fact(ROBOT, 7)])).verdict is Verdict.REPEATED
    assert verdict(twice, ONCE + Counter([Fact(ROBOT, 8)])).verdict is Verdict.MISCOUNTED
    assert verdict(changed(2, 2 * 16**7), ONCE + Counter([Fact(ROBOT, 7)])).doubled == 1


def test_a_missing_total_loses_all_its_facts() -> None:
    found = verdict({robot: total for robot, total in RIGHT.items() if robot != ROBOT})
    assert (found.wrong, found.lost) == (1, PER_ROBOT)
    assert found.verdict is Verdict.MISCOUNTED


def test_a_count_that_differs_from_its_sum_is_seen() -> None:
    assert verdict(changed(1, 0)).torn == 1
    assert verdict(changed(1, 0)).verdict is Verdict.MISCOUNTED


def test_a_reader_outside_sees_what_was_never_true_and_what_went_back() -> None:
    reader = Reader()
    for events, total in ((1, 0x1), (2, 0x11), (1, 0x10), (3, 0x111), (4, 0x121)):
        reader.take(ROBOT, events, total)
    assert (reader.seen, reader.too_high, reader.went_back) == (5, 1, 1)
    assert reader.latest == {ROBOT: (4, 0x121)}


def test_reports_hold_each_fact_once_and_their_order_depends_on_the_seed() -> None:
    def read(facts: Facts) -> list[Fact]:
        reports = (json.loads(value)["items"] for _, value in facts.messages())
        return [fact_in(item["robot"], item["amount"]) for items in reports for item in items]

    assert Counter(read(FACTS)) == ONCE
    assert read(FACTS) == FACTS.all()
    assert read(replace(FACTS, seed=4)) != FACTS.all()
    assert max(ONCE.values()) == 1
    assert digits(sum(fact.amount for fact in FACTS.all() if fact.robot == ROBOT)) == [1] * PER_ROBOT


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_one_storm_with_every_fault_in_turn(seed: int) -> None:
    faults = draw(seed, 4_000)
    assert faults == draw(seed, 4_000)
    assert sorted(fault.kind for fault in faults) == sorted(DECK)
    moments = [fault.at for fault in faults]
    assert moments == sorted(set(moments))
    assert 0 < moments[0] < moments[-1] < 4_000
    assert all((fault.back > 0) == (fault.kind is Kind.REWIND) for fault in faults)
    lives = {fault.kind: sorted(fault.moments_s) for fault in faults if fault.moments_s}
    assert lives == {Kind.CONSUMER: sorted(MOMENTS_S)}


def test_seeds_differ() -> None:
    assert len({tuple(draw(seed, 4_000)) for seed in range(10)}) == 10


@pytest.mark.parametrize("module", [facts_module, faults_module, oracle_module])
def test_the_oracle_shares_no_code_with_the_package(module: object) -> None:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")  # type: ignore[attr-defined]
    imported = {
        name
        for node in ast.walk(ast.parse(source))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not [name for name in imported if name.startswith(("sqe_chain", "services", "tests"))]
    assert {name for name in imported if name.startswith("benchmarks")} <= {"benchmarks.storm.facts"}


STRIKES = (
    *(Strike(kind) for kind in DECK if kind is not Kind.CONSUMER),
    *(Strike(Kind.CONSUMER, 7) for _ in MOMENTS_S),
)
AGAIN = ONCE + Counter([Fact(ROBOT, 1)])


def test_a_storm_with_all_faults_lacks_nothing() -> None:
    assert not list(lacking(STRIKES, again=1))


@pytest.mark.parametrize("strike", range(len(STRIKES)))
def test_a_storm_that_lacks_any_fault_gives_no_verdict(strike: int) -> None:
    strikes = STRIKES[:strike] + STRIKES[strike + 1 :]
    assert len(list(lacking(strikes, again=1))) == 1
    assert outcome(RIGHT, strikes).verdict is Verdict.NONE


def test_a_kill_of_a_consumer_that_had_counted_all_is_none() -> None:
    idle = (*STRIKES[:-1], Strike(Kind.CONSUMER, at_stake=0))
    assert list(lacking(idle, again=1)) == [f"{Kind.CONSUMER}: struck 2 of 3 times"]


def test_a_storm_in_which_nothing_came_again_gives_no_verdict() -> None:
    assert list(lacking(STRIKES, again=0)) == ["nothing was published again"]
    assert replace(outcome(RIGHT), judgement=verdict(RIGHT, ONCE)).verdict is Verdict.NONE


def test_what_is_at_stake_was_published_and_is_in_no_total() -> None:
    published = [Fact(ROBOT, 0), Fact(ROBOT, 2), Fact("robot-00001", 2)]
    assert at_stake(published, {}) == 3
    assert at_stake(published, {ROBOT: (2, 0x300)}) == 2
    assert at_stake(published, RIGHT) == 0


def outcome(totals: dict[str, tuple[int, int]], strikes: tuple[Strike, ...] = STRIKES) -> Outcome:
    return Outcome(verdict(totals, AGAIN), strikes, 9, 0, 0, seconds=20.0, calm_s=1.0, restarts=0)


def entry(system: int, seed: int, found: Outcome | None, stuck: str = "", commit: str = "abc") -> Entry:
    return Entry(commit, "2026-01-02", "4.4.0", SYSTEMS[system].name, "v1", seed, FACTS.count, found, stuck)


def test_a_verdict_that_depends_on_the_seed_is_reported_and_shown() -> None:
    first, second = SYSTEMS[:2]
    results = Results(
        [
            entry(0, 1, outcome(RIGHT)),
            entry(0, 2, outcome(changed(1, 256))),
            entry(1, 1, outcome(RIGHT)),
            entry(1, 2, outcome(RIGHT)),
        ]
    )
    assert list(results.faults(SYSTEMS)) == [f"{first.name}: its verdict depends on the seed"]
    rows = results.table(SYSTEMS).splitlines()[2:]
    assert rows[0].startswith(f"| {first.title} | **exact** / miscounts what came once | 0 · 1 | 0 | 0 · 1 |")
    assert rows[1].startswith(f"| {second.title} | **exact** | 0 | 0 | 0 |")
    assert ">exact<" in results.picture(SYSTEMS, FACTS.count)


def test_ours_has_to_be_exact() -> None:
    ours = next(number for number, system in enumerate(SYSTEMS) if system.ours)
    results = Results([entry(ours, 1, outcome(changed(1, 16)))])
    assert list(results.faults(SYSTEMS)) == [f"{SYSTEMS[ours].name} is not exact"]
    assert not list(Results([entry(0, 1, outcome(changed(1, 16)))]).faults(SYSTEMS))


def test_a_storm_without_an_end_is_shown_and_is_a_fault_until_it_was_repeated() -> None:
    first = SYSTEMS[0]
    entries = [entry(0, 1, outcome(RIGHT)), entry(0, 2, None, "it counts nothing")]
    assert list(Results(entries).faults(SYSTEMS)) == [f"{first.name}: no result of seed 2"]
    assert f"| {first.title} | **exact** / no verdict |" in report(entries, SYSTEMS, {})
    assert "Reason: it counts nothing. There is no result of it." in report(entries, SYSTEMS, {})
    entries.append(entry(0, 2, outcome(RIGHT), commit="def"))
    assert not list(Results(entries).faults(SYSTEMS))
    assert "Reason: it counts nothing. It was repeated." in report(entries, SYSTEMS, {})
    assert f"Commits: abc, def ({first.name})" in report(entries, SYSTEMS, {})


def test_a_storm_that_lacked_a_fault_is_named() -> None:
    results = Results([entry(0, 1, outcome(RIGHT, STRIKES[1:]))])
    assert list(results.faults(SYSTEMS)) == [
        (
            f"{SYSTEMS[0].name}: no verdict of seed 1: {STRIKES[0].kind}: struck "
            f"{DECK.count(STRIKES[0].kind) - 1} of {DECK.count(STRIKES[0].kind)} times"
        )
    ]


def test_a_ledger_returns_what_was_added(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    assert read(file) == []
    entries = [entry(0, 1, outcome(changed(1, 16))), entry(0, 2, None, "stuck")]
    for one in entries:
        append(file, one)
    assert read(file) == entries


def role(tmp_path: Path, *command: str) -> Role:
    return Role("consumer", command, Job("run", "", "", "", tmp_path))


def test_a_program_that_does_not_die_where_it_was_asked_to_ends_the_storm(tmp_path: Path) -> None:
    asked = role(tmp_path, "sleep", "60")
    asked.start()
    sent: list[int] = []
    try:
        with pytest.raises(Stuck, match="has published nothing for"):
            asked.die_where_it_aims(lambda: sent.append(1), patience_s=0.3)
    finally:
        asked.kill()
    assert sent


def test_a_program_that_ends_otherwise_has_not_died_where_it_was_asked_to(tmp_path: Path) -> None:
    program = "read line; [ -e died ] && kill -9 $$; touch died; exit 3"
    asked = role(tmp_path, "sh", "-c", program)
    asked.start()
    asked.die_where_it_aims(lambda: None, patience_s=30)
    assert asked.process is None
    assert asked.restarts == 1


def test_only_the_part_between_the_marks_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    write_between(page, "new")
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="0 places"):
        write_between(page, "new")


def test_closing_facts_come_into_every_partition() -> None:
    """They show that all before them was counted, so no partition may lack one."""
    partitions = {partition_of(f"{CLOSER}{number}".encode(), PARTITIONS) for number in range(CLOSERS)}
    assert partitions == set(range(PARTITIONS))


def test_the_page_is_what_the_ledger_has() -> None:
    entries = read(LEDGER)
    page = (LEDGER.parents[2] / "docs" / "storm.md").read_text(encoding="utf-8")
    assert report(entries, SYSTEMS, {}) in page
    faults = list(Results(entries).faults(SYSTEMS))
    assert not [fault for fault in faults if ": no result of seed" not in fault]
    picture = (LEDGER.parents[2] / "docs" / "images" / "storm.svg").read_text(encoding="utf-8")
    assert picture == Results(entries).picture(SYSTEMS, entries[-1].facts)
