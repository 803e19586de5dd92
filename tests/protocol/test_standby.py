"""Goal: of several live runs one works; the others wait, and take over exactly when it is gone.

Method: runs of one flow on one store in memory. While a standby waits, its clock lets the others act.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from sqe_chain.errors import ServiceStopped, StoreEmpty, Superseded
from sqe_chain.features.settings import settings_of
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Role
from sqe_chain.plans.events import Event, Observer, Standby
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Home
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.clock import SteppingClock
from tests.support.environments import environment_of
from tests.support.word_flows import stored_words, word, words_by_first_letter

TAKES = settings_of(allow_weak_durability=True, takeover=True)
WAITS = Settings(allow_weak_durability=True, standby_ms=1_000)


class Acting(SteppingClock):
    """While it waits for the n-th time, something happens."""

    def __init__(self, acts: dict[int, Callable[[], object]]) -> None:
        super().__init__(stop_after=200)
        self.acts = acts

    def wait(self, milliseconds: int) -> bool:
        stop = super().wait(milliseconds)
        self.acts.get(self.waits, lambda: None)()
        return stop


def running() -> tuple[Rehearsal, StagedService]:
    flow = Flow("notes", state_partitions=2)
    words_by_first_letter(flow)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"))
    service = rehearsal.start()
    service.batch()
    assert isinstance(service, StagedService)
    return rehearsal, service


def start_standby(rehearsal: Rehearsal, acts: dict[int, Callable[[], object]]) -> StagedService:
    rehearsal.clock = Acting(acts)
    service = rehearsal.start(WAITS)
    assert isinstance(service, StagedService)
    return service


def test_a_standby_waits_while_the_heartbeat_moves_and_takes_over_when_it_stops() -> None:
    found, active = running()
    found.feed("words", word("ape"))
    acts: dict[int, Callable[[], object]] = dict.fromkeys(range(1, 30, 3), active.beat)
    acts[20] = active.batch
    standby = start_standby(found, acts)
    assert found.clock.waits >= 28 + 5, "a second after the last beat"
    assert stored_words(found) == {"a": "ant ape"}
    found.feed("words", word("asp"))
    with pytest.raises(Superseded):
        active.batch()
    assert not active.beat()
    standby.batch()
    assert stored_words(found) == {"a": "ant ape asp"}


def test_a_standby_takes_over_at_once_when_the_claim_is_given_back() -> None:
    found, active = running()
    start_standby(found, {1: active.beat, 2: active.leave})
    assert found.clock.waits == 2


def test_a_run_whose_plans_move_is_alive_though_its_heartbeat_does_not() -> None:
    """Its batches go on; a takeover in the middle would only cost work."""
    found, active = running()
    acts: dict[int, Callable[[], object]] = {}
    for wait in range(2, 20, 3):
        acts[wait] = lambda: (found.feed("words", word("ape")), active.batch())
    start_standby(found, acts)
    assert found.clock.waits >= 20


def test_of_two_standbys_the_second_waits_for_the_first() -> None:
    """When the first one claims while the second decides, the second does not push it aside."""
    found, _ = running()
    store = found.stores[""]
    real_home = store.home

    def home_before_the_other_claims(flow: str) -> tuple[Home | None, int]:
        """The last look of the second standby; the first claims right after it."""
        seen = real_home(flow)
        store.home = real_home  # type: ignore[method-assign]
        first = Rehearsal(found.flow, log=found.log, store=found.stores).start(TAKES)
        clock.acts = dict.fromkeys(range(6, 40), first.beat)
        return seen

    found.clock = clock = Acting({5: lambda: setattr(store, "home", home_before_the_other_claims)})
    found.start(WAITS)
    assert found.clock.waits > 40, "it has waited for the first standby too"


def test_a_standby_asked_to_stop_has_done_nothing() -> None:
    found, active = running()
    stood = found.stores[""].copy_all()  # type: ignore[attr-defined]
    found.clock = SteppingClock(stop_after=2)
    with pytest.raises(ServiceStopped, match="nothing was done"):
        found.start(WAITS)
    assert found.stores[""].copy_all() == stood  # type: ignore[attr-defined]
    assert active.beat()


def test_a_store_emptied_while_a_standby_waits_is_no_birth() -> None:
    """Kafka has a commit since, so the flow is not new."""
    flow = Flow("notes", state_partitions=2)
    words_by_first_letter(flow)
    rehearsal = Rehearsal(flow)
    rehearsal.feed("words", word("ant"))
    active = rehearsal.start()
    acts = {1: active.batch, 2: rehearsal.stores[""].restore_all}  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(StoreEmpty):
            start_standby(rehearsal, acts)
        acts = {}
    assert stored_words(rehearsal) == {}


def test_a_takeover_does_not_wait() -> None:
    found, active = running()
    found.clock = Acting({})
    found.start(TAKES)
    assert found.clock.waits == 0
    assert not active.beat()


def test_a_standby_takes_over_when_it_learns_that_the_owner_is_dead() -> None:
    """The process died on this machine while the standby waited: there is nothing to wait for."""
    found, _ = running()
    dead = list[str]()
    found.clock = Acting({3: lambda: dead.append("")})
    env = replace(environment_of(found, WAITS), is_dead=lambda _: bool(dead))
    StagedService(env).start()
    assert found.clock.waits == 3


class Heard(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.events = list[Event]()

    def event(self, event: Event) -> None:
        self.events.append(event)


@pytest.mark.parametrize(
    ("owner", "where"),
    [('{"host": "vm", "pid": 6417}', " (host vm, process 6417)"), ("no JSON", ""), ("[]", ""), ("{}", "")],
)
def test_a_standby_names_the_process_that_it_waits_for(owner: str, where: str) -> None:
    found, heard = Rehearsal(running()[0].flow), Heard()
    StagedService(replace(environment_of(found, TAKES), role=Role(owner=owner))).start()
    found.clock = SteppingClock(stop_after=2)
    with pytest.raises(ServiceStopped):
        StagedService(replace(environment_of(found, WAITS), observer=heard)).start()
    (event,) = heard.events
    assert isinstance(event, Standby)
    assert re.fullmatch(rf"run \S+{re.escape(where)} has the flow: .* stop it and its standbys", event.holder)
