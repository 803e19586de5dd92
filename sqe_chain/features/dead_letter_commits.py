"""The group that remembers which dead-letter records were sent back. The command that commits there runs seldom, so services keep its commits."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from sqe_chain.errors import ChainError
from sqe_chain.features.observing import BatchObserver
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.inputs import parse_metadata
from sqe_chain.plans.look import Infos
from sqe_chain.plans.plan import Plan

RENEW_MS: Final = 3_600_000
"""How often the commits are made again: Kafka forgets each of them a week after it was made (`offsets.retention.minutes`)."""


def replay_group(flow: str) -> str:
    """The Kafka group that remembers which dead-letter records of a flow were sent back."""
    return f"{flow}.dead-letters-replay"


class DeadLetterCommits(BatchObserver):
    """Makes the commits of dead-letter replays again, as long as the flow's service runs."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._renewed_ms = env.clock.now_ms()

    def looked(self, last: Plan | None, infos: Infos) -> None:  # noqa: ARG002 - see `BatchObserver`
        """Make them again, if the last time is `RENEW_MS` ago. A broker that does not answer or forbids it is not waited for."""
        env, now_ms = self.env, self.env.clock.now_ms()
        if abs(now_ms - self._renewed_ms) <= RENEW_MS:
            return
        self._renewed_ms = now_ms
        group = replay_group(env.flow.declared_name)
        with suppress(ChainError):
            known = env.ports.log.committed(group, inputs.partitions_of([infos[env.flow.dead_letter_topic]]))
            # A command that is at work commits by itself, and must not be set back.
            idle = {tp: commit for tp, commit in known.items() if not parse_metadata(commit).get("sending")}
            if idle:
                env.ports.log.commit(group, idle)
