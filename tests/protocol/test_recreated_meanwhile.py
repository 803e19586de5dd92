"""Goal: an input created again within a batch is named so. Method: a log that does it between two questions."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import wrap
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import RecreatedTopic
from sqe_chain.flow import Flow
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.testing import Rehearsal
from tests.support.typed_results import states_as


class RecreatingLog(MemoryLog):
    """Recreates a topic right before it tells its bounds, once when asked to."""

    topic = ""
    partitions: int | None = None

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        if RecreatingLog.topic:
            self.recreate(RecreatingLog.topic, RecreatingLog.partitions)
            RecreatingLog.topic = ""
        return super().bounds(partitions)


def count(total: Int64Value, word: StringValue) -> None:
    total.value += 1


@pytest.fixture(params=[None, 1], autouse=True)
def _partitions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many partitions as before, or fewer: a broker does not answer for those that are gone."""
    monkeypatch.setattr(RecreatingLog, "partitions", request.param)


@pytest.mark.parametrize("stages", [0, 1])
def test_an_input_recreated_between_two_questions_is_named_so(stages: int) -> None:
    """Its bounds are another topic's: not the log was truncated, the topic was created again."""
    flow = Flow("counts")
    source = flow.source("words", StringValue)
    if stages:
        source.aggregate("per-word", key=lambda w: w.value, state=Int64Value, fold=count)
    else:
        source.to("copies", key=lambda w: w.value, partitions=1)
    log = RecreatingLog(uuid4().hex)
    service = Rehearsal(flow, partitions={"words": 2}, log=log)
    log.append("words", 0, wrap(StringValue(value="a"), key="a", timestamp_ms=1))
    service.run_until_caught_up()
    RecreatingLog.topic = "words"
    with pytest.raises(RecreatedTopic, match="words"):
        service.batch()


def test_a_raw_input_recreated_between_two_questions_is_read_from_its_beginning() -> None:
    """It is another root, and no reason to stop."""
    flow = Flow("counts")
    source = flow.source("words", lambda value: StringValue(value=value.decode()), raw=True)
    source.aggregate("per-word", key=lambda w: w.value, state=Int64Value, fold=count)
    log = RecreatingLog(uuid4().hex)
    service = Rehearsal(flow, partitions={"words": 2}, log=log)
    log.append("words", 0, b"a")
    service.run_until_caught_up()
    RecreatingLog.topic = "words"
    service.batch()
    log.append("words", 0, b"a")
    service.run_until_caught_up()
    assert states_as(Int64Value, service, "per-word")[b"a"].value == 2
