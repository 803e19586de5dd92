"""The lag that a committed batch reports: over all partitions, for each of them, and in event time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word, words_by_first_letter


def aggregating() -> Flow:
    flow = Flow("noting", state_partitions=1)
    words_by_first_letter(flow)
    return flow


def republishing() -> Flow:
    flow = Flow("noting")
    flow.source("words", StringValue).to("copies", partitions=1)
    return flow


@pytest.mark.parametrize("flow", [aggregating(), republishing()], ids=["aggregation", "republish"])
def test_lag_by_partition_and_the_newest_time(flow: Flow) -> None:
    rehearsal = Rehearsal(flow, partitions={"words": 2})
    rehearsal.settings = replace(rehearsal.settings, max_records=4)
    for number in range(6):
        rehearsal.feed("words", word("ant"), partition=0, timestamp_ms=1_000 + number)
    rehearsal.feed("words", word("ape"), partition=1, timestamp_ms=5_000)
    rehearsal.batch()
    (event,) = rehearsal.events("committed")
    assert event["lag_by_partition"] == {"words/0": 3, "words/1": 0}
    assert event["lag"] == 3
    assert event["event_time_ms"] == 5_000
    rehearsal.batch()
    event = rehearsal.events("committed")[-1]
    assert event["lag_by_partition"] == {"words/0": 0, "words/1": 0}
    assert event["event_time_ms"] == 1_005
