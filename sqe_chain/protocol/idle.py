"""Which writers are idle: nothing of them can be on its way, and they have been silent for a while.

Stages that go by event time wait for the partition that is behind. One that is silent would hold back all others for
ever, so it is let go; but never one whose records are only late. A writer is idle in a partition if

* everything that is there has been read;
* nothing of it came for `Settings.idle_ms`;
* everything that its republishers had to read then has been passed on: each of them, from the root on, has committed
  what its topic held when the one before it had;
* and after that there was still nothing to read.

What is decided is sealed with the batch (`Plan.caught_up`), so that a redo repeats it whatever time it is then. Whoever
comes back after it was let go may be late: stages say so, count it, and give it to `dropped()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.protocol import inputs
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.event_times import CaughtUp, KnownTimes
from sqe_chain.protocol.plan import mark_name
from sqe_chain.segment.event_times import ORIGIN
from sqe_chain.segment.routes import Hop


@dataclass(slots=True)
class _Passage:
    """How far it is known that what was there is passed on.

    Attributes:
        since_ms: since when the writer has been silent.
        hops: the republishers that have to pass it on, in their order.
        ends: what the first of them has to commit; empty: not looked at yet.
    """

    since_ms: int
    hops: tuple[Hop, ...]
    ends: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class IdleWriters:
    """Finds idle writers, batch after batch; what it has found out about republishers is kept in between.

    Args:
        env: the flow and its ports.
    """

    env: Environment
    _passages: dict[tuple[TopicPartition, str], _Passage] = field(default_factory=dict)

    def find(
        self,
        known: KnownTimes,
        stops: Mapping[TopicPartition, int],
        bounds: Mapping[TopicPartition, Bounds],
        clock_ms: int,
        *,
        at_end: bool = False,
    ) -> CaughtUp:
        """Look which partitions a batch reads to their end, and which of their writers are idle.

        Args:
            known: event time at the end of the batch before.
            stops: where the batch ends in each partition.
            bounds: of the partitions.
            clock_ms: the batch's clock.
            at_end: no more input is expected, so silence need not have lasted.
        """
        idle_ms = self.env.settings.idle_ms
        found: CaughtUp = {}
        for tp, stop in stops.items():
            if stop < bounds[tp].stable_end:
                continue
            name = mark_name(*tp)
            here = known.at(tp, {name: ()}, clock_ms).believe()
            found[name] = tuple(
                writer
                for writer, silent_ms in sorted(here.silent_since().items())
                if (at_end or clock_ms - silent_ms >= idle_ms)
                and self._passed(tp, writer, silent_ms, here.hops_of(writer))
            )
        return self._still_at_end(found, stops)

    def _passed(self, tp: TopicPartition, name: str, since_ms: int, hops: tuple[Hop, ...]) -> bool:
        """Whether all that there was when silence had lasted long enough has been passed on."""
        known = self._passages.get((tp, name))
        if known is None or known.since_ms != since_ms:
            known = self._passages[tp, name] = _Passage(since_ms, hops)
        while known.hops:
            group, topic = known.hops[0]
            infos = self.env.log.describe([topic])
            if topic in infos:
                tps = inputs.partitions_of(infos.values())
                known.ends = known.ends or {
                    tp: one.stable_end for tp, one in self.env.log.bounds(tps).items()
                }
                if self._is_behind(group, known.ends):
                    return False
            known.hops, known.ends = known.hops[1:], {}
        return True

    def _is_behind(self, group: str, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether a republisher has not committed all of it. One that has no commit at all does not exist any more."""
        commits = self.env.log.committed(group, ends)
        return bool(commits) and any(
            end > (commits[tp].offset if tp in commits else 0) for tp, end in ends.items()
        )

    def _still_at_end(self, found: CaughtUp, stops: Mapping[TopicPartition, int]) -> CaughtUp:
        """Without partitions to which something was added meanwhile: it may be what was passed on last."""
        passed_on = [tp for tp in stops if set(found.get(mark_name(*tp), ())) - {ORIGIN}]
        if not passed_on:
            return found
        bounds = self.env.log.bounds(passed_on)
        grown = {mark_name(*tp) for tp in passed_on if bounds[tp].stable_end != stops[tp]}
        return {name: () if name in grown else idle for name, idle in found.items()}
