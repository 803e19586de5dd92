"""What the simulator writes as malformed is refused, each kind for its own reason, with a right checksum."""

from __future__ import annotations

import pickle

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Coordinates, republish, wrap
from sqe_chain.envelope.head import parse_head
from sqe_chain.errors import EnvelopeError, NotAnEnvelope
from tests.lab.simulator import Violation
from tests.lab.simulator.malformed import KINDS, malformed_message

ORIGIN = wrap(StringValue(value="1 a a - g1 1"), key=b"a", timestamp_ms=5)
ROOT = Coordinates(topic="origin", topic_id=b"r" * 16, partition=0, offset=3, leader_epoch=1)
REPUBLISHED = republish(
    None, ROOT, StringValue(value="1 a a - g1 1"), output="hop/far", previous=b"", timestamp_ms=5, key=b"a"
)
COLLECTION = republish(
    None,
    ROOT,
    [StringValue(value="1 a a - g1 1"), StringValue(value="1 b a - g1 1")],
    output="hop/far",
    timestamp_ms=5,
    key=b"a",
)


@pytest.mark.parametrize(
    "like", [ORIGIN, REPUBLISHED, COLLECTION], ids=["origin", "republished", "collection"]
)
def test_every_kind_is_refused_for_what_it_is(like: bytes) -> None:
    parse_head(like)
    reasons = set()
    for kind in KINDS:
        with pytest.raises(EnvelopeError) as refused:
            parse_head(malformed_message(kind, like, 7))
        assert isinstance(refused.value, NotAnEnvelope) == (kind == "rubbish")
        reasons.add(str(refused.value))
    assert len(reasons) >= len(KINDS) - 1, "most of them say something of their own"


def test_two_of_one_kind_differ() -> None:
    for kind in set(KINDS) - {"twice", "no event id"}:
        assert malformed_message(kind, REPUBLISHED, 7) != malformed_message(kind, REPUBLISHED, 8), kind


def test_a_violation_is_the_same_in_another_process() -> None:
    violation = Violation("sum", "what was found")
    sent = pickle.loads(pickle.dumps(violation))  # noqa: S301 - our own
    assert (str(sent), sent.name) == (str(violation), violation.name)
