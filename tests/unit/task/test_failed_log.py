"""Goal: of all decisions about dead-letter records the first in the topic holds, and retention makes none uncertain.

Method: dead-letter records and decisions are put into a topic by hand, in every order that two operators and retention can give.
"""

from __future__ import annotations

import json
from itertools import count

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.chain import root_position
from sqe_chain.errors import ServiceStopped
from sqe_chain.ports import Output
from sqe_chain.task.dead_letters import Identity
from sqe_chain.task.failed_log import DECISION, Decision, FailedLog, read_failed_logs

TOPIC = "clean.dead-letters"
_names = count()


def kept(offset: int, *, position: bytes | None = None, **headers: object) -> Output:
    """The record of the input raw[0]@offset, on lane 7."""
    known = root_position(1, offset) if position is None else position
    reasons = {"sqe-flow": "clean", "sqe-topic": "raw", "sqe-topic-id": bytes(16).hex(), "sqe-partition": 0}
    reasons |= {"sqe-offset": offset, "sqe-lane": f"{7:016x}", "sqe-position": known.hex()}
    reasons |= {"sqe-timestamp": 5, "sqe-error": "ValueError", "sqe-text": "no"}
    reasons |= {f"sqe-{name}": text for name, text in headers.items()}
    return TOPIC, 0, None, b"x", [(name, str(text).encode()) for name, text in reasons.items()], 0


def identity(offset: int) -> Identity:
    return 7, root_position(1, offset)


def decide(kind: str, by: str, *offsets: int, flow: str = "clean") -> Output:
    return Decision(flow, kind, tuple(map(identity, offsets)), "d", by, 3).output(TOPIC, 0)  # type: ignore[arg-type]


def folded(*records: Output, begin: int = 0) -> FailedLog:
    log = MemoryLog(f"failed-log-{next(_names)}")
    log.create_topic(TOPIC, 1)
    writer = log.writer()
    writer.write(records)
    writer.flush()
    if begin:
        log.truncate_before(TOPIC, 0, begin)
    return read_failed_logs(log, "clean", log.describe([TOPIC])[TOPIC])[0]


def test_the_first_of_two_decisions_holds_and_the_other_is_void_as_a_whole() -> None:
    known = folded(kept(0), kept(1), decide("release", "a", 0), decide("discard", "b", 1, 0))
    assert [known.status(identity(offset)) for offset in (0, 1)] == ["releasing", "open"]
    assert known.decisions == {"a": 2}


def test_a_void_decision_hinders_none_that_follows() -> None:
    known = folded(
        kept(0),
        kept(1),
        decide("discard", "a", 0),
        decide("release", "b", 0, 1),
        decide("release", "c", 1),
    )
    assert [known.status(identity(offset)) for offset in (0, 1)] == ["discarded", "releasing"]
    assert list(known.releasing) == ["c"]


def test_a_release_is_under_way_until_it_is_done() -> None:
    begun = kept(0), decide("release", "a", 0)
    assert folded(*begun).releasing["a"].clock_ms == 3
    known = folded(*begun, decide("done", "a", 0))
    assert known.status(identity(0)) == "released"
    assert not known.releasing


def test_decisions_of_another_flow_in_the_same_topic_decide_nothing() -> None:
    assert folded(kept(0), decide("discard", "a", 0, flow="other")).status(identity(0)) == "open"


def test_a_second_copy_is_the_same_record() -> None:
    known = folded(kept(0, number=0), decide("discard", "a", 0), kept(0, number=0))
    assert len(known.letters) == 1
    assert known.status(identity(0)) == "discarded"


def test_a_copy_that_may_have_outlived_its_decision_is_unsure() -> None:
    """The copy was written late: its batch was sealed when the topic ended at 0. Retention took the first and its decision."""
    records = kept(0, after=0), decide("discard", "a", 0), kept(0, after=0), kept(1, after=2)
    known = folded(*records, begin=2)
    assert [known.status(identity(offset)) for offset in (0, 1)] == ["unsure", "open"]


def test_what_is_unsure_or_unreadable_is_no_open_record() -> None:
    known = folded(kept(0, unsure=1), kept(1, position=b""))
    unreadable = next(known for known in known.letters if known[0] == 0)
    assert (known.status(identity(0)), known.status(unreadable)) == ("unsure", "unreadable")


def test_dead_letter_records_of_older_versions_are_read() -> None:
    (found,) = folded(kept(0)).letters.values()
    assert (found.dead.number, found.dead.after, found.unsure) == (None, None, False)


@pytest.mark.parametrize("value", [b"", b"{}", json.dumps({"format": 2}).encode()])
def test_a_decision_of_a_newer_version_stops_its_reader(value: bytes) -> None:
    with pytest.raises(ServiceStopped, match=r"clean.dead-letters\[0\]@0: a decision"):
        folded((TOPIC, 0, None, value, [(DECISION, b"release")], 0))
