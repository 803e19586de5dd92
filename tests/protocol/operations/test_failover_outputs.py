"""Goal: a flow with outputs goes on in another cluster only if that has all that was published, or the lanes that end earlier were named.

Method: what a reader of the other cluster counts, by lanes of its own reckoning, is compared with the words that were fed.
"""

from __future__ import annotations

import re

import pytest

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.errors import GapError
from sqe_chain.features.settings import settings_of
from sqe_chain.plans.published import MAX_ENDS, PublishedLanes
from tests.support.mirrored import INPUT, OUTPUT, Clusters, Mirror, published_totals, read_by_lanes

NAMED = re.compile("[0-9a-f]{16}(?=: letters)")


def counted(*words: str, state_partitions: int = 2) -> Clusters:
    """Each of these texts was counted in a batch of its own; inputs are mirrored, outputs are not."""
    clusters = Clusters(flow=published_totals(state_partitions=state_partitions))
    for text in words:
        clusters.feed(text)
        clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    return clusters


def outputs(clusters: Clusters) -> Mirror:
    assert clusters.outputs is not None
    return clusters.outputs


def go_on(clusters: Clusters) -> None:
    """More words come there."""
    clusters.feed("auk boa cod eel fly asp")
    clusters.mirror.copy(again=3)
    clusters.totals.run_until_caught_up()
    clusters.check()


def test_readers_there_get_each_output_once_and_in_order() -> None:
    clusters = counted("ant bee cow dog elk fox ape", "bat cat doe")
    outputs(clusters).copy()
    outputs(clusters).copy(again=4)
    clusters.fail_over()
    go_on(clusters)
    outputs(clusters).copy(again=20)  # the first cluster comes back for a moment
    assert read_by_lanes(clusters.second.records(outputs(clusters).name)) == clusters.expected()
    assert read_by_lanes(clusters.first.records(OUTPUT)) != clusters.expected()


def test_a_lane_that_ends_earlier_there_is_named_and_waited_for() -> None:
    clusters = counted("ant bee cow", "ape", "asp bat")
    home = clusters.store.home("notes")
    outputs(clusters).copy(1)
    with pytest.raises(GapError, match=r"letters\[\d\] ends there before position .* which was published"):
        clusters.fail_over()
    assert clusters.store.home("notes") == home
    outputs(clusters).copy()
    clusters.fail_over()
    go_on(clusters)
    assert read_by_lanes(clusters.second.records(outputs(clusters).name)) == clusters.expected()


@pytest.mark.parametrize("copied", range(7))
def test_a_mirror_that_lags_anywhere_is_refused_until_it_has_all(copied: int) -> None:
    clusters = counted("ant bee cow", "dog ape", "bat asp cat")
    mirror, whole = outputs(clusters), len(clusters.fed)
    mirror.copy(copied)
    refused = len(clusters.second.records(mirror.name)) < whole
    try:
        clusters.fail_over()
    except GapError:
        assert refused
        mirror.copy()
        clusters.fail_over()
    else:
        assert not refused
    go_on(clusters)
    assert read_by_lanes(clusters.second.records(mirror.name)) == clusters.expected()


def test_lanes_are_named_whose_last_outputs_are_of_older_plans() -> None:
    """The last plans have published to the other partition alone."""
    here, there = (
        next(
            text
            for text in ("ant", "bee", "cow", "dog", "elk")
            if partition_of(text[:1].encode(), 2) == partition
        )
        for partition in range(2)
    )
    clusters = counted(f"{here} {there}", *([there] * 30))
    (first, second) = (record for record in clusters.first.records(OUTPUT) if record.offset() == 0)
    assert {first.partition(), second.partition()} == {0, 1}
    for record in clusters.first.records(OUTPUT):
        if record.partition() == 1:
            clusters.second.append(outputs(clusters).name, 1, record.value(), record.key())
    with pytest.raises(GapError, match=r"letters\[0\] ends there") as error:
        clusters.fail_over()
    assert len(NAMED.findall(str(error.value))) == 1


@pytest.mark.parametrize("copied", range(4))
def test_what_a_rebuild_gives_again_is_not_taken_for_what_was_published_last(copied: int) -> None:
    """It gives in other batches, hence in another order, what was published in one."""
    clusters = counted("ant bee cow dog elk fox gnu hen", state_partitions=3)
    clusters.settings = settings_of(max_records=1)
    clusters.totals = clusters.service(clusters.first)
    clusters.totals.rebuild(
        {(INPUT, partition): 0 for partition in range(2)}
    )  # the service folds it all, in silence
    clusters.feed(
        "ant"
    )  # else its outputs are awaited, and a failover is refused; the other partition gets nothing
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    for record in clusters.first.records(OUTPUT):
        if record.partition() == partition_of(b"a", 2) or record.offset() < copied:
            clusters.second.append(outputs(clusters).name, record.partition(), record.value(), record.key())
    with pytest.raises(GapError):
        clusters.fail_over()


def test_a_flow_that_was_rebuilt_goes_on_when_it_has_published_to_each_partition_again() -> None:
    clusters = counted("ant bee cow dog")
    clusters.totals.rebuild()
    clusters.feed("elk fly gnu hen")
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    outputs(clusters).copy()
    clusters.fail_over()
    go_on(clusters)
    assert read_by_lanes(clusters.second.records(outputs(clusters).name)) == clusters.expected()


def test_what_is_accepted_never_counts_there_and_all_else_does() -> None:
    clusters = counted("ant", "ape")
    outputs(clusters).copy(1)
    with pytest.raises(GapError) as error:
        clusters.fail_over()
    (lane,) = NAMED.findall(str(error.value))
    done = clusters.fail_over(accepted=(lane,))
    assert [records.lane for records in done.accepted] == [lane]
    go_on(clusters)
    outputs(clusters).copy()  # now it comes
    expected = clusters.expected()
    expected["a"].remove("ape")
    assert read_by_lanes(clusters.second.records(outputs(clusters).name)) == expected


def test_it_comes_back_when_what_was_published_there_is_mirrored_back() -> None:
    clusters = counted("ant bee")
    outputs(clusters).copy()
    clusters.fail_over()
    go_on(clusters)
    with pytest.raises(GapError, match="which was published"):
        clusters.fail_over(clusters.first, {})
    Mirror(clusters.second, clusters.first, OUTPUT, outputs(clusters).name).copy()
    clusters.fail_over(clusters.first, {})
    clusters.feed("elk cow")
    clusters.totals.run_until_caught_up()
    clusters.check()
    assert read_by_lanes(clusters.first.records(OUTPUT)) == clusters.expected()


def test_what_an_older_version_has_published_is_not_known_and_named_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as older:
        older.setattr("sqe_chain.protocol.decide._published_after", lambda *_: None)
        clusters = counted("ant")
    clusters.feed("ape")
    clusters.totals.restart()
    clusters.totals.run_until_caught_up()
    clusters.mirror.copy()
    outputs(clusters).copy()
    with pytest.raises(GapError, match=r"letters\[1\]: plans have not noted") as error:
        clusters.fail_over()
    (place,) = set(re.findall(r"letters\[\d\]", str(error.value)))
    clusters.fail_over(accepted=(place,))
    go_on(clusters)
    assert read_by_lanes(clusters.second.records(outputs(clusters).name)) == clusters.expected()


def test_too_many_lanes_are_not_noted() -> None:
    few = PublishedLanes().after({("t", 0): {1: b"1"}}, 3)
    many = {("t", 1): dict.fromkeys(range(MAX_ENDS), b"1")}
    assert few.after(many, 4) == PublishedLanes(4)
    assert PublishedLanes.from_json(few.to_json()) == few
