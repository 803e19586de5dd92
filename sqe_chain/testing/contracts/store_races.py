"""A store used by several clients, threads and processes at once, and random calls compared with a model."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from sqe_chain.adapters import open_store
from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import Header, Home, StateStore
from sqe_chain.testing.contracts.compete import compete
from sqe_chain.testing.contracts.store_harness import CLAIM, StoreHarness

_PATIENCE_S: Final = 200
"""Longer than a race takes, even while other programs have most of the machine: what still lasts, hangs."""


class SharedRules(StoreHarness):
    """One store, many clients."""

    def test_a_pickled_store_finds_the_same_data(self, store: StateStore, flow: str) -> None:
        store.set_home(flow, None, CLAIM)
        copy: StateStore = pickle.loads(pickle.dumps(store))
        assert copy.home(flow)[0] == CLAIM
        assert (copy.max_rows, copy.max_bytes) == (store.max_rows, store.max_bytes)

    def test_a_store_is_shown_as_its_address_without_the_password(self, url: str, store: StateStore) -> None:
        """Errors show it, and by it stores share clients."""
        assert repr(store) == repr(open_store(url)) == repr(pickle.loads(pickle.dumps(store)))
        with suppress(ConfigurationError):  # an address may take no login
            assert "s3cr3t" not in repr(
                open_store(re.sub("//([^/@]*@)?", "//somebody:s3cr3t@", url, count=1))
            )

    def test_a_closed_store_opens_again(self, store: StateStore, flow: str) -> None:
        store.set_home(flow, None, CLAIM)
        store.close()
        store.close()
        assert store.home(flow)[0] == CLAIM

    def test_the_size_of_a_step_is_an_option_of_the_address(self, url: str) -> None:
        small = open_store(url, max_rows="3", max_bytes="100")
        assert (small.max_rows, small.max_bytes) == (3, 100)

    def test_competitors_never_win_together(self, url: str, store: StateStore, flow: str) -> None:
        """Each flow is claimed by exactly one; each success added one to the counter, and none was lost."""
        runs = _in_processes if self.between_processes else _in_threads
        _check_race(store, flow, runs(url, flow, 3, 60), 60)

    def test_threads_share_a_store(self, url: str, store: StateStore, flow: str) -> None:
        _check_race(store, flow, _in_threads(url, flow, 4, 25), 25)

    def test_random_calls_agree_with_a_model(self, store: StateStore) -> None:
        run_state_machine_as_test(
            type("AgainstThisStore", (_AgainstModel,), {"store": store}),
            settings=settings(
                max_examples=30,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.generate],  # shrinking against a server would take minutes
            ),
        )


def _check_race(store: StateStore, flow: str, won: list[tuple[int, int]], rounds: int) -> None:
    header, states, _ = store.read(flow, "race", 0, [b"counter"])
    assert header is not None
    assert sum(claims for claims, _ in won) == rounds
    assert sum(increments for _, increments in won) == header.number == int(states[0] or b"0") >= rounds


def _in_threads(url: str, flow: str, competitors: int, rounds: int) -> list[tuple[int, int]]:
    store = open_store(url)
    with ThreadPoolExecutor(competitors) as pool:
        return list(pool.map(lambda name: compete(store, flow, f"run-{name}", rounds), range(competitors)))


def _in_processes(url: str, flow: str, competitors: int, rounds: int) -> list[tuple[int, int]]:
    # As a file, so that it starts without pytest and hypothesis.
    program = [sys.executable, "-P", sys.modules[compete.__module__].__file__ or "", url, flow]
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # it finds what this process finds
    processes = [
        subprocess.Popen(
            [*program, f"run-{name}", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=there,
        )
        for name in range(competitors)
    ]
    try:
        assert [process.stdout.readline() for process in processes if process.stdout] == [
            "ready\n"
        ] * competitors
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        replies = [process.communicate(timeout=_PATIENCE_S)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [(int(claims), int(increments)) for claims, increments in replies]


_KEYS = st.sampled_from([b"", b"a", b"b", b"\xff\0"])
_HOMES = st.builds(
    Home, st.integers(1, 3), st.sampled_from(["", "r"]), st.just("o"), st.integers(0, 3), st.just("p")
)
_HEADERS = st.builds(
    Header, st.integers(1, 2), st.just("r"), st.integers(0, 2), st.just("p"), st.sampled_from(["", "b"]),
    st.none() | _KEYS,
)  # fmt: skip


class _AgainstModel(RuleBasedStateMachine):
    """Random calls to a store, each compared with a model in a dictionary."""

    store: StateStore

    def __init__(self) -> None:
        super().__init__()
        self.flow = f"model-{uuid.uuid4().hex}"
        self.home: Home | None = None
        self.beats = 0
        self.plans: dict[int, bytes] = {}
        self.header: Header | None = None
        self.states: dict[bytes, bytes] = {}

    @rule(right=st.booleans(), guess=st.none() | _HOMES, after=_HOMES, plan=st.none() | st.binary(max_size=3),
          drop_below=st.integers(0, 3))  # fmt: skip
    def set_home(
        self, *, right: bool, guess: Home | None, after: Home, plan: bytes | None, drop_below: int
    ) -> None:
        before = self.home if right else guess
        if before == self.home:
            self.home = after
            if plan is not None:
                self.plans[after.number] = plan
            self.plans = {number: kept for number, kept in self.plans.items() if number >= drop_below}
        assert self.store.set_home(self.flow, before, after, plan, drop_below) == self.home

    @rule(right=st.booleans(), guess=_HOMES)
    def forget(self, *, right: bool, guess: Home) -> None:
        before = self.home if right and self.home else guess
        if before == self.home:
            self.home, self.plans, self.beats = None, {}, 0
        assert self.store.forget(self.flow, before) == self.home

    @rule(right=st.booleans(), guess=_HEADERS)
    def forget_part(self, *, right: bool, guess: Header) -> None:
        before = self.header if right and self.header else guess
        if before == self.header:
            self.header, self.states = None, {}
        assert self.store.forget_part(self.flow, "s", 3, before) == self.header

    @rule(epoch=st.integers(1, 3), run_id=st.sampled_from(["", "r"]))
    def send_heartbeat(self, epoch: int, run_id: str) -> None:
        holds = (
            self.home is not None and run_id != "" and (self.home.epoch, self.home.run_id) == (epoch, run_id)
        )
        self.beats += holds
        assert self.store.beat(self.flow, epoch, run_id) == holds

    @rule(right=st.booleans(), guess=st.none() | _HEADERS, after=_HEADERS,
          rows=st.dictionaries(_KEYS, st.none() | st.binary(max_size=2)))  # fmt: skip
    def write(
        self, *, right: bool, guess: Header | None, after: Header, rows: dict[bytes, bytes | None]
    ) -> None:
        before = self.header if right else guess
        if before == self.header:
            self.header = after
            states = {**self.states, **rows}
            self.states = {key: state for key, state in states.items() if state is not None}
        assert self.store.write(self.flow, "s", 3, before, after, sorted(rows.items())) == self.header

    @rule(keys=st.lists(_KEYS))
    def read(self, keys: list[bytes]) -> None:
        states = [self.states.get(key) for key in keys]
        assert self.store.read(self.flow, "s", 3, keys) == (self.header, states, self.header)

    @rule()
    def look(self) -> None:
        assert self.store.home(self.flow) == (self.home, self.beats)
        assert [self.store.plan(self.flow, number) for number in range(4)] == [
            self.plans.get(number) for number in range(4)
        ]
        assert dict(self.store.scan(self.flow, "s", 3)) == self.states
        assert self.store.headers(self.flow, "s", [3, 4]) == [self.header, None]
