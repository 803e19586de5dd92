"""Causes a fault, and returns evidence that it had an effect."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from services.compose_chaos.docker import State, now
from services.compose_chaos.faults import SERVERS, SIMULATOR, ChaosFault, Kind
from services.compose_chaos.stack import Stack, wait_until_nothing

KILLED = 137
"""Exit code of a process that was killed by SIGKILL."""
REPUBLISHER = "standardize"
SUPERSEDED = 4
"""Exit status of a run that was superseded by a newer one."""

_DOWN_WITHIN_S = 30.0
_PILE_UP_S = 4.0
_TAKEN_OVER_WITHIN_S = 120.0


class NoEvidence(Exception):
    """Nothing shows that a fault had an effect, so it proves nothing."""


def strike(stack: Stack, fault: ChaosFault) -> str:
    """Cause the fault, wait, undo it; returns the evidence.

    Raises:
        NoEvidence: it did not take hold.
        DockerFailed: Docker could not do it.
    """
    if fault.kind is Kind.TAKEOVER:
        return _take_over(stack, fault)
    if fault.kind is Kind.DISCONNECT:
        return _disconnect(stack, fault)
    return _kill(stack, fault)


def _kill(stack: Stack, fault: ChaosFault) -> str:
    """Send SIGKILL to all victims at once; afterwards the same containers are started again."""
    victims = stack.containers(fault.victims)
    before = {name: stack.state(name) for name in fault.victims}
    if REPUBLISHER in fault.victims:
        _let_it_begin(stack)
    stack.docker.run("kill", "--signal", "KILL", *victims)
    _wait_until_down(stack, fault.victims)
    ended = {name: stack.state(name) for name in fault.victims}
    refused = {}
    if SIMULATOR not in fault.victims:
        refused = {name: _must_be_refused(stack, name) for name in fault.victims if name in SERVERS}
    time.sleep(fault.lasts_s)
    stack.docker.run("start", *victims)
    evidence = []
    for name in fault.victims:
        new_pid = _must_be_another(name, before[name], ended[name], stack.state(name))
        why = f" ({refused[name]})" if name in refused else ""
        evidence.append(f"{name} pid {before[name].pid} -> {new_pid}{why}")
    return ", ".join(evidence)


def _let_it_begin(stack: Stack) -> None:
    """Let messages pile up, and return when the republisher has begun to publish: killed now, it publishes some of them twice."""
    republisher = stack.container(REPUBLISHER)
    stack.docker.run("pause", republisher)
    wake = threading.Timer(_PILE_UP_S, stack.docker.run, ("unpause", republisher))
    wake.start()
    try:
        stack.docker.run("exec", stack.container(SIMULATOR), "python", "-m", "services.compose_chaos.growth")
    finally:
        wake.join()


def _disconnect(stack: Stack, fault: ChaosFault) -> str:
    """Disconnect the victim from its network, and connect it again under the same name."""
    (victim,) = fault.victims
    network, container = stack.compose.network, stack.container(victim)
    stack.docker.run("network", "disconnect", network, container)
    try:
        if victim in SERVERS:
            refused = _must_be_refused(stack, victim)
        else:
            refused = f"kafka: {_must_be_refused(stack, 'kafka', victim)}"
        time.sleep(fault.lasts_s)
    finally:
        stack.docker.run("network", "connect", "--alias", victim, network, container)
    return f"{victim} cut off for {fault.lasts_s:.1f} s ({refused})"


def _take_over(stack: Stack, fault: ChaosFault) -> str:
    """Start a second run as standby, pause the first until the second has claimed; the first must be superseded."""
    (victim,) = fault.victims
    first, second = stack.container(victim), f"{stack.compose.network}-standby"
    stack.compose.run("run", "--detach", "--no-deps", "--name", second, victim)
    try:
        _wait_for_event(stack, second, "standby", "")
        restarted_before = stack.state(victim).started_at
        stack.docker.run("pause", first)
        paused_s, woken = time.monotonic(), ""
        try:
            _wait_for_event(stack, second, "claimed", "")
            time.sleep(fault.lasts_s)
        finally:
            woken = now()
            stack.docker.run("unpause", first)
            paused_s = time.monotonic() - paused_s

        def not_superseded() -> str:
            statuses = [event.exit_status for event in stack.docker.events(first, woken)]
            return "" if SUPERSEDED in statuses else f"{victim} was paused and is not superseded"

        wait_until_nothing(not_superseded, _TAKEN_OVER_WITHIN_S)
        _wait_until_restarted(stack, victim, restarted_before)
        _wait_for_event(stack, second, "committed", "")
        _wait_for_event(stack, first, "standby", woken)
        stack.docker.run("stop", "--time", "60", second)
        status = stack.docker.state(second).exit_code
    finally:
        stack.docker.run("rm", "--force", second)
    if status:
        raise NoEvidence(f"the run that had taken over ended with status {status} after SIGTERM")
    return f"{victim} paused for {paused_s:.1f} s, another run claimed, the paused one ended with status {SUPERSEDED}"


# --- evidence -----------------------------------------------------------------------------------------


def _must_be_refused(stack: Stack, server: str, asked_from: str = SIMULATOR) -> str:
    refused = stack.refusal(server, asked_from)
    if not refused:
        raise NoEvidence(f"{server} still takes connections from {asked_from}")
    return refused


def _must_be_another(name: str, before: State, ended: State, after: State) -> int:
    """The new pid, if the service was killed and is another process now."""
    if ended.exit_code != KILLED:
        raise NoEvidence(f"{name} ended with {ended.exit_code}, not with {KILLED}")
    if after.pid == before.pid or after.started_at <= before.started_at:
        raise NoEvidence(f"{name} is still the process {before.pid} of {before.started_at}")
    return after.pid


def _wait_until_down(stack: Stack, services: Sequence[str]) -> None:
    def up() -> str:
        return ", ".join(f"{name} still runs" for name in services if stack.state(name).running)

    wait_until_nothing(up, _DOWN_WITHIN_S)


def _wait_until_restarted(stack: Stack, service: str, before: str) -> None:
    def not_yet() -> str:
        state = stack.state(service)
        return "" if state.running and state.started_at > before else f"{service} is not started again"

    wait_until_nothing(not_yet, _TAKEN_OVER_WITHIN_S)


def _wait_for_event(stack: Stack, container: str, name: str, since: str) -> None:
    def not_yet() -> str:
        reported = {event.event for event in stack.docker.events(container, since)}
        return "" if name in reported else f"{container[:40]} has not reported {name!r}"

    wait_until_nothing(not_yet, _TAKEN_OVER_WITHIN_S)
