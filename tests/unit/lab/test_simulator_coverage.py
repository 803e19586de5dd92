"""Goal: a campaign reports what it has reached, and fails where it has never reached what it must.

Method: names of steps and faults are compared with the code that makes them, so that none is forgotten.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.lab.simulator import Simulation, World, drawn, replay
from tests.lab.simulator import coverage as coverage_module
from tests.lab.simulator.__main__ import main
from tests.lab.simulator.campaign import Campaign, run_seed
from tests.lab.simulator.coverage import EXPECTED, FAULTS, STEPS, features_of, missing, reached_by
from tests.lab.simulator.schedule import Step


def test_every_step_that_there_is_must_be_reached() -> None:
    known = {
        name.removeprefix("_do_").replace("_", " ") for name in dir(Simulation) if name.startswith("_do_")
    }
    assert known == set(STEPS)


def test_whatever_happens_has_a_name_that_must_be_reached() -> None:
    fired = Counter[str]()
    for seed in range(80):
        fired += run_seed(seed).fired
    assert not fired.keys() - set(FAULTS)
    assert len(fired) > len(FAULTS) / 2


def test_every_feature_of_drawn_worlds_must_be_reached() -> None:
    found = {name for seed in range(3_000) for name in features_of(drawn(seed).world)}
    assert found == {name for name in EXPECTED if name.startswith("world: ")}


def test_steps_are_counted_with_the_facts_they_feed_and_those_within_faults() -> None:
    inner = ["meanwhile", 0, "before", False, [["elect", "origin", 0]]]
    steps: list[Step] = [["feed", "origin", [[0, "1 a a f g1 1"]]], ["run", "hop1", 1, [inner]]]
    reached = replay(World(poison="skip"), steps).reached
    assert reached["step: feed"] == reached["step: elect"] == reached["fact: first"] == 1
    assert "world: poison=skip" in reached
    assert [*reached_by(["rubbish", "far", 0, "twice"])] == ["step: rubbish", "malformed: twice"]


def test_a_large_campaign_that_never_reaches_something_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--schedules", "3", "--json", str(figures)]
    assert main(arguments) == 0
    monkeypatch.setattr("tests.lab.simulator.campaign.WHOLE", 3)
    assert main(arguments) == 1
    assert "never reached: world: " in capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert (found["tool"], found["violations"], found["seed"]) == ("simulator", 0, 0)
    assert found["counts"]["schedules"] == 3
    assert "world: " in found["never reached"]


def test_the_report_shows_what_was_reached() -> None:
    campaign = Campaign(range(2))
    list(campaign.run())
    text = campaign.coverage()
    assert re.search(r"[1-9]\d*  step: settle", text)
    assert all(f"never reached: {name}" in text for name in missing(campaign.reached))
    assert coverage_module.WHOLE == 20_000
