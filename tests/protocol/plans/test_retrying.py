"""Goal: a service waits for servers that are away, and for nothing else. Method: ports that fail a number of times, a clock that does not wait."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError, Superseded, Unavailable
from sqe_chain.plans.events import Event, Waiting, When
from sqe_chain.plans.retrying import FIRST_WAIT_MS, Retry, RetryingLog, RetryingStore
from sqe_chain.ports import Header, Home, Log, Range, StateStore
from sqe_chain.testing import SteppingClock
from sqe_chain.testing.faults import FaultScript, InjectedFault
from sqe_chain.testing.faulty_ports import faulty_log, faulty_store


class Notes:
    """An observer that keeps what is waited for."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, str, int]] = []

    def step(self, number: int, when: When) -> None:
        pass

    def event(self, event: Event) -> None:
        assert isinstance(event, Waiting)
        self.waits.append((event.what, event.reason, event.wait_ms))


def failing(times: int, error: Exception) -> Callable[[], str]:
    """Fails so often, then answers."""
    left = [times]

    def action() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "answer"

    return action


def retry(notes: Notes, *, stop_after: int = 100, back_off_ms: int = 350) -> Retry:
    clock = SteppingClock(stop_after)

    def wait(what: str, reason: str, wait_ms: int) -> bool:
        notes.event(Waiting(what, reason, wait_ms))
        return clock.wait(wait_ms)

    return Retry(wait, back_off_ms)


def test_waits_double_up_to_the_longest_and_each_is_reported() -> None:
    notes = Notes()
    assert retry(notes).call("commit", failing(4, Unavailable("no broker"))) == "answer"
    assert notes.waits == [("commit", "no broker", ms) for ms in (FIRST_WAIT_MS, 200, 350, 350)]


def test_the_next_call_begins_with_the_first_wait() -> None:
    notes = Notes()
    one = retry(notes)
    for _ in range(2):
        one.call("commit", failing(1, Unavailable("no broker")))
    assert [wait_ms for _, _, wait_ms in notes.waits] == [FIRST_WAIT_MS, FIRST_WAIT_MS]


def test_a_request_to_stop_ends_the_wait_with_what_was_waited_for() -> None:
    with pytest.raises(Unavailable, match="no broker"):
        retry(Notes(), stop_after=3).call("commit", failing(99, Unavailable("no broker")))


@pytest.mark.parametrize("error", [Superseded("a newer run"), ConfigurationError("wrong login"), KeyError()])
def test_nothing_else_is_waited_for(error: Exception) -> None:
    notes = Notes()
    with pytest.raises(type(error)):
        retry(notes).call("commit", failing(1, error))
    assert notes.waits == []


def lose_replies(*, calls: int = 1) -> FaultScript:
    """The next replies of broker and store are lost, after the call has taken effect."""

    def lose() -> None:
        raise Unavailable("the reply was lost")

    return FaultScript(injected=[InjectedFault(lose, when="after", calls=calls)])


def test_a_write_whose_reply_was_lost_is_known_as_done() -> None:
    bare, notes = MemoryStore("retried"), Notes()
    home, header = Home(1, "run", "{}", 0, "id"), Header(1, "run", 0, "id")
    store = RetryingStore(faulty_store(bare, lose_replies()), retry(notes))
    assert store.set_home("f", None, home, b"plan") == home
    store = RetryingStore(faulty_store(bare, lose_replies()), retry(notes))
    assert store.write("f", "stage", 0, None, header, [(b"k", b"state")]) == header
    assert [what for what, _, _ in notes.waits] == ["seal plan 0", "write f/stage/0"]
    assert dict(bare.scan("f", "stage", 0)) == {b"k": b"state"}
    assert bare.plan("f", 0) == b"plan"


def test_a_range_is_read_again_from_its_beginning() -> None:
    bare, notes = MemoryLog("retried"), Notes()
    bare.clear()
    bare.set_block(1)
    bare.create_topic("t", 1)
    for number in range(3):
        bare.append("t", 0, bytes([number]))
    topic_id = bare.describe(["t"])["t"].topic_id
    fail = failing(1, Unavailable("no broker"))
    script = FaultScript(injected=[InjectedFault(fail, passes=2)])  # before the third block
    log = RetryingLog(faulty_log(bare, script), retry(notes))
    (found,) = log.read_all([Range("t", topic_id, 0, 0, 3)])
    assert [message.value() for message in found] == [b"\x00", b"\x01", b"\x02"]
    assert len(notes.waits) == 1


BARE: dict[type[object], set[str]] = {
    Log: {"read", "writer", "transactional_writer", "commit", "delete_topic", "delete_group"},
    StateStore: {
        *(
            "read",
            "scan",
            "beat",
            "close",
            "forget",
            "forget_part",
            "forget_locations",
            "flows",
            "check_view_table",
            "unlike_rows",
        ),
        *("max_rows", "max_bytes", "max_key_bytes", "max_state_bytes"),
    },
}
"""What is not repeated call by call; the module gives the reasons. `commit` is repeated together with what it may have to ask."""


@pytest.mark.parametrize(("port", "wrapper"), [(Log, RetryingLog), (StateStore, RetryingStore)])
def test_of_every_call_of_a_port_it_is_decided_whether_it_waits(
    port: type[object], wrapper: type[object]
) -> None:
    def names(of: type[object]) -> set[str]:
        return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}

    assert names(port) - BARE[port] == names(wrapper) - {"records"}
