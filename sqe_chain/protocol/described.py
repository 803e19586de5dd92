"""The topics of a flow as they were a moment ago: services look for new records far more often than topics change."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqe_chain.ports import TopicInfo
from sqe_chain.protocol import inputs
from sqe_chain.protocol.environment import Environment

DESCRIBE_MS: Final = 5_000
"""How old the description of a topic may be: new partitions enter that late, and changed limits hold from then on. It is looked
for new records up to hundreds of times a second, and the driver loses some memory with each description."""


@dataclass(slots=True)
class DescribedTopics:
    """Describes topics, at most every `DESCRIBE_MS`.

    Their ids need not be asked for before records are read: a topic that still has its id afterwards had it all the time.

    Args:
        env: the flow and its ports.
    """

    env: Environment
    _infos: dict[str, TopicInfo] = field(default_factory=dict)
    _described_ms: int = 0

    def look(self, *, anew: bool) -> dict[str, TopicInfo]:
        """The topics as they are now, or were at most `DESCRIBE_MS` ago.

        Args:
            anew: as they are now. Files always are: there may be new ones at any time.

        Raises:
            Unavailable: asked to stop while one of them is gone, or the broker does not answer.
        """
        env = self.env
        old = abs(env.clock.now_ms() - self._described_ms) > DESCRIBE_MS  # clocks may be set back
        if anew or old or not self._infos or env.flow.file_sources:
            look = partial(inputs.describe, env.flow, env.ports.log, running=True)
            self._infos = env.retry.call("look at the topics", look)
            self._described_ms = env.clock.now_ms()
        return self._infos

    def recreated(self) -> bool:
        """Whether an input was created again since the last look."""
        look = partial(inputs.is_recreated_since, self.env.flow, self.env.ports.log, self._infos)
        return self.env.retry.call("look at the topics", look)
