"""Goal: a flow whose states were moved to other stores goes on exactly, and nothing half moved is ever used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError, ServiceStopped, StoreEmpty, StoreInconsistent, Superseded
from sqe_chain.features.closing import Closes
from sqe_chain.features.event_times import EventTime
from sqe_chain.features.file_inputs import LoadedFiles
from sqe_chain.features.ticking import Timers
from sqe_chain.task.event_times import EventTimes, Frontier
from sqe_chain.testing import Crash, Rehearsal
from tests.protocol.plans.test_plan_json import with_newer_members
from tests.support.moved import elsewhere, feed, run_before, states_of, stores
from tests.support.plans import last_plan
from tests.support.word_flows import stored_words, word


@pytest.fixture
def before() -> Rehearsal:
    return run_before()


def as_format_1(lines: list[str], **members: object) -> list[str]:
    """An export as the version before wrote it: each feature had members of its own in plans."""
    head = json.loads(lines[0])
    plan = json.loads(head["plan"])
    for name in ("format", "wakes", "sections"):
        del plan[name]
    del plan["layout"]["types"]
    head |= {"format": 1, "plan": json.dumps(plan | {"silent": False, "quiet": {}} | members)}
    rest = [json.dumps(head), *lines[1:-1]]
    digest = blake2b("".join(rest).encode(), digest_size=16).hexdigest()
    return [*rest, json.dumps({"lines": len(rest), "digest": digest})]


def test_a_moved_flow_goes_on(before: Rehearsal) -> None:
    expected = states_of(before)
    after = elsewhere(before)
    after.imported(before.exported())
    assert states_of(after) == expected
    feed(after, "auk bat")
    assert stored_words(after)["a"] == "ant ape auk"
    assert stored_words(after, "all")["all"].endswith("auk bat")


def test_an_export_of_a_newer_version_with_the_same_format_goes_on_here(before: Rehearsal) -> None:
    expected, lines = states_of(before), before.exported()
    head = json.loads(lines[0])
    head["plan"] = with_newer_members(head["plan"].encode()).decode()
    rest = [json.dumps(head), *lines[1:-1]]
    digest = blake2b("".join(rest).encode(), digest_size=16).hexdigest()
    newer = json.loads(head["plan"])["plan_id"]
    log = before.log
    # The newer version has committed that plan.
    for partition in range(2):
        tp = ("words", partition)
        commit = log.committed("notes", [tp])[tp]
        old = json.loads(json.loads(lines[0])["plan"])["plan_id"]
        assert commit is not None
        log.commit("notes", {tp: replace(commit, metadata=commit.metadata.replace(old, newer))})
    after = elsewhere(before)
    after.imported([*rest, json.dumps({"lines": len(rest), "digest": digest})])
    assert after.stores[""].home("notes")[0].plan_id == newer  # type: ignore[union-attr]
    feed(after, "")
    assert states_of(after) == expected
    feed(after, "auk bat")
    assert stored_words(after)["a"] == "ant ape auk"


def test_a_flow_goes_over_from_the_version_before_by_an_export_and_an_import(before: Rehearsal) -> None:
    expected, lines = states_of(before), before.exported()
    after = elsewhere(before)
    after.imported(as_format_1(lines))
    plan = last_plan(after.stores[""], "notes")
    assert (plan.empty, plan.number) == (True, json.loads(json.loads(lines[0])["plan"])["number"] + 1)
    assert states_of(after) == expected
    feed(after, "auk bat")
    assert stored_words(after)["a"] == "ant ape auk"
    assert stored_words(after, "all")["all"].endswith("auk bat")


def test_what_the_version_before_knew_of_its_features_goes_over_too(before: Rehearsal) -> None:
    members = {
        "times": {"words/0": {"since": 5}},
        "frontier": [7, "words", 0],
        "seen": [[1, 2]],
        "ticked_ms": 3,
        "timers": {"letters/1": 9},
        "closes": [[5], {"words/0": [1]}, 1, 1],
        "files": {"f.00": ["a.csv", 3]},
        "finished": {"f": "11"},
        "overwrite": {"mode": "table", "since": 2, "step": "done"},
    }
    after = elsewhere(before)
    after.imported(as_format_1(before.exported(), **members))
    plan = last_plan(after.stores[""], "notes")
    assert EventTime.of(plan) == EventTime({("words", 0): EventTimes(5)}, Frontier(7, "words", 0), ((1, 2),))
    assert Timers.of(plan) == Timers(3, {("letters", 1): 9})
    assert Closes.of(plan) == Closes((5,), {("words", 0): (1,)}, 1, 1)
    assert LoadedFiles.of(plan) == LoadedFiles({"f.00": ("a.csv", 3)}, {"f": "11"})
    assert "overwrite" not in plan.sections


@pytest.mark.parametrize(
    "members",
    [
        {"quiet": {"words/0": 3}},
        {"unfinished": {"clock_ms": 1, "ranges": [], "exclusions": []}},
        {"published_until": {"words/0": 3}},
        {"reached": [{}, None]},
        {"overwrite": {"mode": "table", "since": 2, "step": "staged"}},
    ],
)
def test_what_only_the_version_before_can_finish_is_refused(
    before: Rehearsal, members: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match=r"Run the version that has written it"):
        elsewhere(before).imported(as_format_1(before.exported(), **members))


def test_the_old_store_is_of_no_use_when_the_flow_has_gone_on(before: Rehearsal) -> None:
    after = elsewhere(before)
    after.imported(before.exported())
    feed(after, "auk")
    with pytest.raises(StoreInconsistent):
        before.start()


def test_an_export_that_is_old_is_refused(before: Rehearsal) -> None:
    lines = before.exported()
    feed(before, "auk")
    with pytest.raises(StoreInconsistent):
        elsewhere(before).imported(lines)


def test_a_run_that_is_alive_is_fenced_off_and_can_start_again(before: Rehearsal) -> None:
    alive = before.service
    assert alive is not None
    before.exported()
    before.feed("words", word("auk"), key="a")
    with pytest.raises(Superseded):
        alive.batch()
    before.run_until_caught_up()
    assert stored_words(before)["a"] == "ant ape auk"


def test_rubbish_of_an_interrupted_import_is_removed(before: Rehearsal) -> None:
    lines = before.exported()
    after = elsewhere(before)
    after.crash_at_write(9)
    with pytest.raises(Crash):
        after.imported(lines)
    fewer = [line for line in lines if '"letters"' not in line]
    with pytest.raises(ConfigurationError, match="not complete, or was changed"):
        after.imported(fewer)
    after.imported(lines)
    assert states_of(after) == states_of(before)


@pytest.mark.parametrize("change", ["cut", "middle", "state", "head", "other flow", "empty"])
def test_what_is_no_whole_export_is_refused(before: Rehearsal, change: str) -> None:
    lines = before.exported()
    lines = {
        "cut": lines[:-1],
        "middle": lines[:3] + lines[4:],
        "state": [line.replace('"cell": 1', '"cell": 0') for line in lines],
        "head": lines[1:],
        "other flow": [line.replace('"flow": "notes"', '"flow": "other"') for line in lines],
        "empty": [],
    }[change]
    after = elsewhere(before)
    with pytest.raises(ConfigurationError):
        after.imported(lines)
    with pytest.raises(StoreEmpty):
        after.start()


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (0, '"flow"', '"fl0w"'),
        (0, '"plan": "', '"plan": 7, "was": "'),
        (0, '"format": 2', '"format": 1'),
        (3, '"key"', '"kez"'),
        (3, "{", "["),
        (3, '"state": "', '"state": "A'),
        (3, '"cell": ', '"cell": "a", "was": '),
    ],
)
def test_a_line_with_changed_characters_is_named_as_such(
    before: Rehearsal, line: int, old: str, new: str
) -> None:
    lines = before.exported()
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new, 1)
    with pytest.raises(ConfigurationError, match=r"was changed|Expected one of 'notes'"):
        elsewhere(before).imported(lines)


def test_a_store_that_knows_the_flow_is_not_filled(before: Rehearsal) -> None:
    with pytest.raises(ConfigurationError, match="flow 'notes': the store has it already"):
        before.imported(before.exported())


def test_a_store_that_knows_a_flow_which_has_read_nothing_yet_is_not_filled_either(before: Rehearsal) -> None:
    """Its first plan holds where it begins, and it may be running already."""
    fresh = Rehearsal(before.flow, partitions={"words": 2}, store=stores())
    fresh.start()
    with pytest.raises(ConfigurationError, match="flow 'notes': the store has it already, at plan 0"):
        fresh.imported(before.exported())


def test_an_unfinished_plan_is_not_exported(before: Rehearsal) -> None:
    before.crash(step=6)
    before.feed("words", word("auk"), key="a")
    with pytest.raises(Crash):
        before.batch()
    with pytest.raises(ServiceStopped, match="unfinished"):
        before.exported()


def test_a_state_partition_that_has_begun_a_plan_is_not_exported(before: Rehearsal) -> None:
    """The metadata store went back to the plan before: what was sealed after it is not there, but has begun."""
    store = before.stores[""]
    (header,) = store.headers("notes", "letters", [1])
    assert header is not None
    begun = replace(header, begun_id="of a plan that is gone", cursor=b"b")
    assert store.write("notes", "letters", 1, header, begun, ()) == begun
    with pytest.raises(ServiceStopped, match="unfinished"):
        before.exported()


def test_an_export_during_which_a_run_writes_stops(
    before: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was superseded may still be on its way; its rows would be in the file, and its plan would not."""
    store, scan = before.stores[""], MemoryStore.scan

    def interrupted(self: MemoryStore, flow: str, stage: str, part: int) -> Iterator[tuple[bytes, bytes]]:
        yield from scan(self, flow, stage, part)
        if (self, stage, part) == (store, "letters", 1):
            (header,) = store.headers(flow, stage, [part])
            assert header is not None
            store.write(flow, stage, part, header, replace(header, number=header.number + 1), ())

    monkeypatch.setattr(MemoryStore, "scan", interrupted)
    with pytest.raises(Superseded, match="during the export"):
        before.exported()


def test_states_that_an_interrupted_import_has_left_and_the_export_does_not_have_are_removed(
    before: Rehearsal,
) -> None:
    """For example, the first one was of another export."""
    lines, left = before.exported(), StringValue(value="left").SerializeToString()
    after = elsewhere(before)
    after.crash_at_write(9)
    with pytest.raises(Crash):
        after.imported(lines)
    store, marked = after.stores[""], 0
    for cell in range(4):
        (header,) = store.headers("notes", "letters", [cell])
        if header is not None:
            marked += 1
            store.write("notes", "letters", cell, header, header, [(b"z", left)])
    assert marked > 0
    after.imported(lines)
    assert states_of(after) == states_of(before)
