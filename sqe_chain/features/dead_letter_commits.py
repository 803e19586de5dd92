"""The group that remembers which dead letters were sent back. The command that commits there runs seldom, so services keep its commits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sqe_chain.errors import ChainError
from sqe_chain.ports import TopicInfo
from sqe_chain.protocol import inputs
from sqe_chain.protocol.commit_metadata import parse_metadata
from sqe_chain.protocol.environment import Environment

RENEW_MS: Final = 3_600_000
"""How often the commits are made again: Kafka forgets each of them a week after it was made (`offsets.retention.minutes`)."""


def replay_group(flow: str) -> str:
    """The Kafka group that remembers which dead letters of a flow were sent back."""
    return f"{flow}.dead-letters-replay"


@dataclass(slots=True)
class DeadLetterCommits:
    """Makes the commits of dead-letter replays again, as long as the flow's service runs.

    Args:
        env: the flow and its ports.
    """

    env: Environment
    _renewed_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self._renewed_ms = self.env.clock.now_ms()

    def renew(self, infos: Mapping[str, TopicInfo]) -> None:
        """Make them again, if the last time is `RENEW_MS` ago. A broker that does not answer or forbids it is not waited for.

        Args:
            infos: the flow's topics.
        """
        env, now_ms = self.env, self.env.clock.now_ms()
        if not env.flow.dead_letters or abs(now_ms - self._renewed_ms) <= RENEW_MS:
            return
        self._renewed_ms = now_ms
        group = replay_group(env.flow.declared_name)
        with suppress(ChainError):
            found = env.ports.log.committed(group, inputs.partitions_of([infos[env.flow.dead_letter_topic]]))
            # A command that is at work commits by itself, and must not be set back.
            still = {tp: one for tp, one in found.items() if not parse_metadata(one).get("sending")}
            if still:
                env.ports.log.commit(group, still)
