"""How much a batch reads: a number of records, or of bytes, estimated by the batch before."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word, words_by_first_letter


def counting(settings: Settings) -> Rehearsal:
    flow = Flow("notes", state_partitions=2, poison="skip")
    words_by_first_letter(flow)
    return Rehearsal(flow, settings=settings)


def passing_on(settings: Settings) -> Rehearsal:
    flow = Flow("pass-on")
    flow.source("words", StringValue).to("copies", partitions=1)
    return Rehearsal(flow, settings=settings)


def sizes(rehearsal: Rehearsal) -> list[int]:
    return [int(str(event["inputs"])) for event in rehearsal.events("committed")]


@pytest.mark.parametrize("rehearsed", [counting, passing_on])
def test_batches_are_cut_by_what_the_one_before_weighed(rehearsed: object) -> None:
    """Nobody knows the size of the first; each of the next takes as many records as the bytes allow."""
    rehearsal: Rehearsal = rehearsed(Settings(max_bytes=10_000, max_records=10))  # type: ignore[operator]
    for _ in range(30):
        rehearsal.feed("words", word("a" * 1_000))
    rehearsal.run_until_caught_up()
    first, *others = sizes(rehearsal)
    assert first == 10
    assert sum(others) == 20
    assert 4 <= max(others) <= 9, "1,000 bytes, and what is published of them, in each"


def test_a_plan_is_sealed_only_after_the_one_before() -> None:
    rehearsal = counting(Settings())
    rehearsal.feed("words", word("a"))
    rehearsal.run_until_caught_up()
    service = rehearsal.service
    assert isinstance(service, StagedService)
    with pytest.raises(AssertionError, match="after"):
        service.owned.seal(service.owned.last)
