"""Goal: a plan that was left unfinished in one cluster is finished in its mirror as it was sealed, or not at all.

Method: the service dies in a batch. What each word counts, and what a reader gets, is known from what was published alone. The sweeps over
all writes are in `test_failover_sweeps.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from sqe_chain.cli.failover import _show
from sqe_chain.errors import ConfigurationError, GapError, PlanMismatch, ServiceStopped
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.operations.mirrored_inputs import end_of_inputs
from sqe_chain.operations.mirrored_outputs import MissingRecords
from sqe_chain.plans.mirrors import Mirrors
from tests.support.mirrored import (
    INPUT,
    OUTPUT,
    PARTITIONS,
    Clusters,
    changed_totals,
    published_totals,
    read_by_lanes,
    totals_of_words,
)
from tests.support.plans import last_plan
from tests.support.sweeping import Point
from tests.support.word_flows import words_by_first_letter

BEFORE, OPEN, AFTER = "ant bee cow dog elk fox ape", "bug cub auk boa ant eel fly", "bat cat doe"
SEALED, PUBLISHED, WRITTEN = 0, 3, 5
"""Writes of a batch after which the service dies."""


def die(clusters: Clusters, after: int) -> None:
    """The service dies in a batch that has read all that there is."""
    clusters.totals.restart()
    with Point(after).killed(clusters.totals):
        clusters.totals.batch()
    clusters.totals.service = None


def unfinished(flow: Flow | None = None, after: int = SEALED, *, mirrored: bool = True) -> Clusters:
    """A plan is unfinished, and more was published after it."""
    clusters = Clusters(flow=flow or published_totals())
    for partition in range(PARTITIONS):
        clusters.first.elect(INPUT, partition)
    clusters.feed(BEFORE)
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    if clusters.outputs is not None:
        clusters.outputs.copy()
    clusters.feed(OPEN)
    die(clusters, after)
    clusters.feed(AFTER)
    if mirrored:
        clusters.mirror.copy(again=3)
    return clusters


def go_on(clusters: Clusters) -> None:
    clusters.totals.run_until_caught_up()
    clusters.check()
    clusters.feed("asp")
    clusters.mirror.copy(again=2)
    clusters.totals.run_until_caught_up()
    clusters.check()
    if clusters.outputs is not None:
        assert read_by_lanes(clusters.second.records(clusters.outputs.name)) == clusters.expected()


@pytest.mark.parametrize("most", [1, 3, 1_000])
def test_it_is_finished_with_the_same_records_whatever_the_mirror_repeats(most: int) -> None:
    clusters = unfinished(mirrored=False)
    for _ in range(10):
        clusters.mirror.copy(most, again=2)
    done = clusters.fail_over()
    assert done.unfinished == done.plan - 1
    go_on(clusters)


@pytest.mark.parametrize("copied", range(8))
def test_a_mirror_that_lacks_any_of_its_inputs_is_waited_for(copied: int) -> None:
    clusters = unfinished(mirrored=False)
    home, ranges = clusters.store.home("notes"), last_plan(clusters.store, "notes").ranges
    clusters.mirror.copy(copied)
    if any(copied < planned.stop - planned.start for planned in ranges):
        expected = "plan 2 is unfinished, and the other cluster lacks inputs of it: Lane .* words"
        with pytest.raises(ServiceStopped, match=expected) as error:
            clusters.fail_over()
        assert clusters.store.home("notes") == home
        lanes = tuple(re.findall("[0-9a-f]{16}(?=: words)", str(error.value)))
        with pytest.raises(ServiceStopped, match=expected):  # nobody can accept that
            clusters.fail_over(accepted=lanes)
        clusters.mirror.copy(again=2)
    clusters.fail_over()
    clusters.mirror.copy(again=1)
    go_on(clusters)


def test_one_that_the_mirror_lacks_in_between_is_never_passed_over() -> None:
    clusters = unfinished(mirrored=False)
    clusters.mirror.skip(1)
    clusters.mirror.copy()
    with pytest.raises(ServiceStopped, match="is unfinished"):
        clusters.fail_over()
    clusters.totals.run_until_caught_up()
    clusters.check()


@pytest.mark.parametrize("lost", [3, 4])
def test_in_a_partition_that_was_entered_in_the_middle_the_record_before_is_needed(lost: int) -> None:
    """The first record of a lane could be missing there, and the excuse that each lane has would hide that."""
    clusters = Clusters(settings=settings_of(start="latest"))
    clusters.feed("ant bee")
    clusters.totals.run_until_caught_up()
    clusters.fed.clear()
    clusters.feed("asp boa")
    clusters.totals.run_until_caught_up()
    clusters.feed("auk bug")
    die(clusters, SEALED)
    clusters.mirror.skip(lost)
    clusters.mirror.copy()
    if lost == 4:
        with pytest.raises(ServiceStopped, match="is unfinished"):
            clusters.fail_over()
    else:
        clusters.fail_over()
        clusters.totals.run_until_caught_up()
        clusters.check()


@pytest.mark.parametrize("flow", [published_totals, changed_totals])
@pytest.mark.parametrize("after", [PUBLISHED, WRITTEN])
def test_outputs_that_may_be_out_are_published_again_or_waited_for(
    flow: Callable[[], Flow], after: int
) -> None:
    clusters = unfinished(flow(), after)
    assert clusters.outputs is not None
    headers = clusters.store.headers(clusters.flow.name, "letters", range(2))
    if any(header is not None and (header.begun_id or header.number == 2) for header in headers):
        with pytest.raises(GapError, match="which was published"):
            clusters.fail_over()
        clusters.outputs.copy()
    clusters.fail_over()
    clusters.totals.run_until_caught_up()
    clusters.check()
    clusters.outputs.copy()
    found = read_by_lanes(clusters.second.records(clusters.outputs.name))
    assert {key: " ".join(texts).split()[-1] for key, texts in found.items()} == {
        key: words[-1] for key, words in clusters.expected().items()
    }


def test_what_was_lost_of_the_outputs_before_is_looked_for_no_more_and_the_rest_is() -> None:
    clusters = Clusters(flow=published_totals())
    clusters.feed("ant dog")
    clusters.totals.run_until_caught_up()
    clusters.feed("ape")
    die(clusters, SEALED)
    clusters.mirror.copy()
    with pytest.raises(GapError) as error:
        clusters.fail_over()
    lost = tuple(re.findall("[0-9a-f]{16}(?=: letters)", str(error.value)))
    assert len(lost) == 2
    clusters.fail_over(accepted=lost)
    ends = last_plan(clusters.store, "notes").published
    assert ends is not None
    assert {tp: len(lanes) for tp, lanes in ends.ends.items()} == {(OUTPUT, 0): 1}
    clusters.totals.run_until_caught_up()
    found = read_by_lanes(clusters.second.records(f"first.{OUTPUT}"))
    assert found == {"a": ["ape"]}
    with pytest.raises(GapError, match="which was published"):
        clusters.fail_over(clusters.first, {})


def test_a_mirror_that_has_changed_a_record_is_noticed_before_anything_is_published() -> None:
    clusters = unfinished(mirrored=False)
    for record in clusters.first.records(INPUT):
        value = record.value() or b""
        clusters.second.append(clusters.name, record.partition(), value.replace(b"cub", b"cup"), record.key())
    try:
        clusters.fail_over()
    except (ServiceStopped, GapError):
        return  # its checksum did not fit
    with pytest.raises(PlanMismatch):
        clusters.totals.run_until_caught_up()
    assert len(clusters.second.records(f"first.{OUTPUT}")) == len(BEFORE.split())


def test_a_redo_that_misses_a_record_there_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_before(*given: object) -> tuple[int, list[MissingRecords]]:
        end, lacking = end_of_inputs(*given)  # type: ignore[arg-type]
        return end - 1, lacking

    clusters = unfinished()
    monkeypatch.setattr("sqe_chain.operations.failover.end_of_inputs", one_before)
    clusters.fail_over()
    with pytest.raises(PlanMismatch, match="ends at other marks"):
        clusters.totals.start()


def test_outputs_of_a_redo_there_end_where_they_were_sealed() -> None:
    clusters = unfinished()
    other = Flow("notes", state_partitions=2)
    words_by_first_letter(other, INPUT).to(OUTPUT, key=lambda value: value.value[-1], partitions=PARTITIONS)
    clusters.flow = other
    clusters.fail_over()
    with pytest.raises(PlanMismatch, match=f"something else than what was sealed, in {OUTPUT}/"):
        clusters.totals.start()


def test_code_that_is_declared_otherwise_cannot_finish_it() -> None:
    clusters = unfinished()
    clusters.flow = totals_of_words()  # it publishes nothing
    with pytest.raises(PlanMismatch, match="is not finished"):
        clusters.fail_over(names={INPUT: clusters.name})


def test_going_back_before_the_service_has_finished_it_is_refused() -> None:
    clusters = unfinished()
    clusters.fail_over()
    with pytest.raises(ServiceStopped, match="plans 2 to 3 are unfinished"):
        clusters.fail_over(clusters.first, {})
    with pytest.raises(ConfigurationError, match="Start its service there"):
        clusters.fail_over()
    go_on(clusters)
    assert Mirrors.of(last_plan(clusters.store, "notes")).unfinished is None


def test_a_flow_goes_back_before_its_service_has_started_when_nothing_was_unfinished() -> None:
    clusters = Clusters()
    clusters.feed(BEFORE)
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    clusters.fail_over()
    clusters.fail_over(clusters.first, {})
    clusters.feed(AFTER)
    clusters.totals.run_until_caught_up()
    clusters.check()


def test_a_dry_run_shows_what_a_failover_would_find_and_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clusters = unfinished(mirrored=False)
    home = clusters.store.home("notes")

    def dry_run() -> str:
        _show(clusters.work()[1])
        return capsys.readouterr().out

    clusters.mirror.copy(1)
    with pytest.raises(ServiceStopped, match="lacks inputs of it"):
        dry_run()
    shown = capsys.readouterr()
    assert "words/0" in shown.out
    assert "first.words/0" in shown.out
    assert "lacks inputs up to position" in shown.err
    clusters.mirror.copy()
    (row,) = (line for line in dry_run().splitlines() if "letters/0" in line)
    assert row.split("│")[-2].strip() == "0"
    assert clusters.store.home("notes") == home
    clusters.totals.run_until_caught_up()  # in the first cluster, as if nobody had looked
    clusters.check()
