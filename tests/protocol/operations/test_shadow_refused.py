"""Goal: a flow that a shadow could not follow exactly is refused by name, before anything is done. Method: declarations, and a store that stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import ConfigurationError
from sqe_chain.features.parking import Parking
from sqe_chain.flow import Flow
from sqe_chain.operations.shadow import check_may_follow
from sqe_chain.plans.plan import Section
from sqe_chain.plans.revisions import Revisions
from sqe_chain.stages import Tumbling
from tests.support.plans import last_plan
from tests.support.shadows import flow_of, running
from tests.support.word_flows import first_letter, same_key, words_by_first_letter


def note_word(words: StringValue, value: StringValue) -> None:
    words.value += f"{value.value} "


def in_windows(flow: Flow) -> None:
    flow.source("words", StringValue).windowed(
        "letters", Tumbling(10), key=first_letter, state=StringValue, fold=note_word
    ).to("firsts", partitions=1)


def as_republisher(flow: Flow) -> None:
    flow.source("words", StringValue).to("firsts", key=first_letter, partitions=2)


def with_output(flow: Flow) -> None:
    words_by_first_letter(flow).to("firsts", key=same_key, partitions=2)


REFUSED: dict[str, tuple[Callable[[Flow], object], dict[str, object], str]] = {
    "no stages": (as_republisher, {}, "no stages, so it keeps nothing to compare|keeps no states"),
    "event time": (in_windows, {}, "stages by event time"),
    "skips": (words_by_first_letter, {"poison": "skip"}, "poison='skip': what it skips"),
    "parks": (words_by_first_letter, {"poison": "park"}, "poison='park': what it skips"),
    "transactional": (with_output, {"transactional": True}, "transactional outputs"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_by_name_and_nothing_is_done(kind: str) -> None:
    declare, options, named = REFUSED[kind]
    pipeline = running()
    pipeline.found.log.create_topic("notes.published", 1, compacted=True)
    before = pipeline.store.copy_all()
    flow = Flow("notes", **{"state_partitions": 2, **options})  # type: ignore[arg-type]
    declare(flow)
    for refused in (
        lambda: pipeline.found.shadow(flow).start(),
        lambda: pipeline.found.switch(flow),
        lambda: pipeline.found.switch_back(flow),
    ):
        with pytest.raises(ConfigurationError, match=named):
            refused()
    assert pipeline.store.copy_all() == before
    pipeline.feed(["zoo"])
    pipeline.check()


@pytest.mark.parametrize(
    ("section", "named"),
    [
        (Parking(discarded=(("words", "", 0, 0),)), "failed records that wait, or were decided about"),
        (Parking(counted=(("words", "", 0, 0),)), "failed records that wait, or were decided about"),
        (Revisions(own=2), "publishes revision 2 of its outputs, and the new code declares 1"),
    ],
)
def test_what_a_flow_has_decided_while_it_ran_is_refused(section: Section, named: str) -> None:
    live = last_plan(running().store, "notes")
    check_may_follow(flow_of().compile(), live)
    with pytest.raises(ConfigurationError, match=named):
        check_may_follow(flow_of().compile(), live.with_sections(section))
