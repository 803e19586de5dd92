"""Goal: an input created again within a batch is named so. Method: it happens between two questions to the log."""

from __future__ import annotations

from typing import cast

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain import wrap
from sqe_chain.errors import RecreatedTopic
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import count
from tests.support.typed_results import states_as


@pytest.fixture(params=[None, 1])
def partitions(request: pytest.FixtureRequest) -> int | None:
    """As many partitions as before, or fewer: a broker does not answer for those that are gone."""
    return cast("int | None", request.param)


def recreate_meanwhile(service: Rehearsal, partitions: int | None) -> None:
    """Its input is created again right before the service looks at its bounds."""
    service.meanwhile(lambda: service.log.recreate("words", partitions), method="bounds")


@pytest.mark.parametrize("stages", [0, 1])
def test_an_input_recreated_between_two_questions_is_named_so(stages: int, partitions: int | None) -> None:
    """Its bounds are another topic's: not the log was truncated, the topic was created again."""
    flow = Flow("counts")
    source = flow.source("words", StringValue)
    if stages:
        source.aggregate("per-word", key=lambda w: w.value, state=Int64Value, fold=count)
    else:
        source.to("copies", key=lambda w: w.value, partitions=1)
    service = Rehearsal(flow, partitions={"words": 2})
    service.log.append("words", 0, wrap(StringValue(value="a"), key="a", timestamp_ms=1))
    service.run_until_caught_up()
    recreate_meanwhile(service, partitions)
    with pytest.raises(RecreatedTopic, match="words"):
        service.batch()


def test_a_raw_input_recreated_between_two_questions_is_read_from_its_beginning(
    partitions: int | None,
) -> None:
    """It is another root, and no reason to stop."""
    flow = Flow("counts")
    source = flow.source("words", lambda value: StringValue(value=value.decode()), raw=True)
    source.aggregate("per-word", key=lambda w: w.value, state=Int64Value, fold=count)
    service = Rehearsal(flow, partitions={"words": 2})
    service.log.append("words", 0, b"a")
    service.run_until_caught_up()
    recreate_meanwhile(service, partitions)
    service.batch()
    service.log.append("words", 0, b"a")
    service.run_until_caught_up()
    assert states_as(Int64Value, service, "per-word")[b"a"].value == 2
