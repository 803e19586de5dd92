"""Which writers are idle: nothing of them can be on its way, and they have been silent for a while.

Stages that go by event time wait for the partition that is behind. A silent one would hold back all others without end.
So it counts as far as all others were `Settings.idle_ms` ago. What it brings is then appended at most that much later than
everything else of its time. A writer is idle in a partition if

* everything that is there has been read;
* nothing of it came for `Settings.idle_ms`;
* its republishers have passed on all that they had to read then. Each, from the root on, has committed
  what its topic held when the one before had done so;
* and after that there was still nothing to read.

What follows from it is sealed with the batch (`EventTime.frontier`), so that a redo repeats it whatever time it is then. A writer
that comes back with something older may be late: stages report and count it, and give it to `dropped()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqe_chain.features.decision import CaughtUp
from sqe_chain.features.event_times import KnownTimes, Seen, seen_by
from sqe_chain.plans import inputs
from sqe_chain.plans.environment import Environment
from sqe_chain.ports import Bounds, TopicPartition
from sqe_chain.task.event_times import ORIGIN, Hop


@dataclass(slots=True)
class _Passage:
    """How far it is known that what was there is passed on.

    Attributes:
        since_ms: since when the writer has been silent.
        began_ms: the clock when it was begun to look.
        hops: the republishers that have to pass it on, in their order.
        ends: what the first of them has to commit; empty: not looked at yet.
        passed_ms: all that there was by this clock has been passed on; None: that is not known.
    """

    since_ms: int
    began_ms: int
    hops: tuple[Hop, ...]
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    passed_ms: int | None = None


@dataclass(slots=True)
class IdleWriters:
    """Finds idle writers, batch after batch; what it has found out about republishers is kept in between."""

    env: Environment
    _passages: dict[tuple[TopicPartition, str], _Passage] = field(default_factory=dict)

    def find(
        self,
        known: KnownTimes,
        offsets: Mapping[TopicPartition, int],
        bounds: Mapping[TopicPartition, Bounds],
        clock_ms: int,
        seen: Seen,
        *,
        at_end: bool = False,
    ) -> CaughtUp:
        """Look which partitions are read to their end as a batch begins, and which of their writers are idle.

        Args:
            known: event time at the end of the batch before.
            offsets: where the batch begins in each partition.
            bounds: of the partitions.
            clock_ms: the batch's clock.
            seen: the latest event times that were known by some clocks.
            at_end: no more input is expected, so silence need not have lasted.
        """
        idle_ms = self.env.settings.idle_ms
        caught_up: dict[TopicPartition, dict[str, int | None]] = {}
        for tp, offset in offsets.items():
            if offset < bounds[tp].stable_end:
                continue
            here = known.at(tp, {tp: {}}, clock_ms)
            own = caught_up.setdefault(tp, {})
            for writer, silent_ms in sorted(here.silent_since().items()):
                if not (at_end or clock_ms - silent_ms >= idle_ms):
                    continue
                passed_ms = self._passed(tp, writer, silent_ms, here.hops_of(writer), clock_ms)
                if passed_ms is None:
                    continue
                latest_ms = seen_by(seen, passed_ms - idle_ms)
                if at_end or self._is_static(tp):
                    own[writer] = None
                elif latest_ms is not None:
                    own[writer] = latest_ms + 1
        return self._still_at_end(caught_up, offsets)

    def _is_static(self, tp: TopicPartition) -> bool:
        """Whether it has reference data without times: what comes there later is never late."""
        source = self.env.flow.source_of[tp[0]]
        return source is not None and source.static

    def _passed(
        self, tp: TopicPartition, name: str, since_ms: int, hops: tuple[Hop, ...], clock_ms: int
    ) -> int | None:
        """By which clock all that there was is known to have been passed on; None: by none."""
        if not hops:
            return clock_ms
        known = self._passages.get((tp, name))
        if known is None or known.since_ms != since_ms:
            known = self._passages[tp, name] = _Passage(since_ms, clock_ms, hops)
        while known.hops:
            group, topic = known.hops[0]
            infos = self.env.log.describe([topic])
            if topic in infos:
                tps = inputs.partitions_of(infos.values())
                known.ends = known.ends or {
                    tp: bounds.stable_end for tp, bounds in self.env.log.bounds(tps).items()
                }
                if self._is_behind(group, known.ends):
                    return known.passed_ms
            known.hops, known.ends = known.hops[1:], {}
        known.passed_ms = known.began_ms
        # Looked at again the next time: what was passed on then proves nothing of what has come since.
        known.began_ms, known.hops = clock_ms, hops
        return known.passed_ms

    def _is_behind(self, group: str, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether a republisher has not committed all of it. One that has no commit at all does not exist any more."""
        commits = self.env.log.committed(group, ends)
        return bool(commits) and any(
            end > (commits[tp].offset if tp in commits else 0) for tp, end in ends.items()
        )

    def _still_at_end(
        self, caught_up: dict[TopicPartition, dict[str, int | None]], offsets: Mapping[TopicPartition, int]
    ) -> CaughtUp:
        """Without partitions to which something was added meanwhile: it may be what was passed on last."""
        passed_on = [tp for tp, idle in caught_up.items() if idle.keys() - {ORIGIN}]
        if not passed_on:
            return caught_up
        bounds = self.env.log.bounds(passed_on)
        grown = {tp for tp in passed_on if bounds[tp].stable_end != offsets[tp]}
        return {tp: {} if tp in grown else idle for tp, idle in caught_up.items()}
