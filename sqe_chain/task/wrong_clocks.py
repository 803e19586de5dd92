"""Times of clocks that run ahead: which times of a lane are believed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.stage_kind import STANDARD
from sqe_chain.stages.stream_time import JumpGuard

Ahead = tuple[int, int, int]
"""Times in a row that are not believed yet: how many, the earliest, the latest."""
NONE_AHEAD: Final = (0, 0, 0)


def believe_times(
    known: tuple[int | None, Ahead], times_ms: Sequence[int], guard: JumpGuard | None, clock_ms: int | None
) -> tuple[int | None, Ahead]:
    """The latest time that is believed after some times, which come in the order of a lane.

    A time that is farther ahead than the guard allows waits for those that come after it, as many as it asks for. One that is
    not ahead of the clock needs no confirmation: a pause in the past is no clock that runs ahead.

    Args:
        known: the latest time that was believed before (None: none), and those that were not yet.
        times_ms: the times.
        guard: None: every time is believed.
        clock_ms: the service's; None: more is there to be read, which will show what is right, so it is not asked.
    """
    now_ms, (count, lowest_ms, highest_ms) = known
    if times_ms and not count and now_ms is not None:  # as a rule: none is far ahead
        latest_ms = max(times_ms)
        if guard is None or latest_ms - now_ms <= guard.max_jump_ms:
            return max(now_ms, latest_ms), NONE_AHEAD
    for at_ms in times_ms:
        if guard is not None and (now_ms is None or at_ms - now_ms > guard.max_jump_ms):
            allowed_ms = guard.max_jump_ms if now_ms is None else 0
            if clock_ms is None or at_ms > clock_ms + allowed_ms:
                near = count and max(highest_ms, at_ms) - min(lowest_ms, at_ms) <= guard.max_jump_ms
                count = count + 1 if near else 1
                lowest_ms = min(lowest_ms, at_ms) if near else at_ms
                highest_ms = max(highest_ms, at_ms) if near else at_ms
                if count < guard.confirmations:
                    continue
                at_ms = highest_ms  # noqa: PLW2901 - confirmed: all of the row are believed
        if guard is not None and count and highest_ms - at_ms <= guard.max_jump_ms:
            at_ms = max(at_ms, highest_ms)  # noqa: PLW2901 - it confirms those that wait
        count = lowest_ms = highest_ms = 0
        now_ms = at_ms if now_ms is None or at_ms > now_ms else now_ms
    return now_ms, (count, lowest_ms, highest_ms)


def right_times(times_ms: Sequence[int], guard: JumpGuard | None) -> Sequence[int]:
    """The times of a lane, with those of wrong clocks replaced by the next right one.

    A clock was wrong if a later record of the lane shows a time so much earlier as none may be ahead.

    >>> right_times([5, 900, 7, 8], JumpGuard(max_jump_ms=100))
    [5, 7, 7, 8]
    """
    if guard is None or not times_ms or max(times_ms) - min(times_ms) <= guard.max_jump_ms:
        return times_ms
    corrected = list(times_ms)
    least_ms = right_ms = corrected[-1]
    for index in range(len(corrected) - 1, -1, -1):
        if corrected[index] - least_ms > guard.max_jump_ms:
            corrected[index] = right_ms
        right_ms, least_ms = corrected[index], min(least_ms, corrected[index])
    return corrected


@lru_cache(maxsize=16)  # it is asked for in each batch and task
def guard_of(flow: CompiledFlow) -> JumpGuard | None:
    """The guard of the flow's event time: the widest that a stage has."""
    guards: list[Any] = [stage.traits.guard for stage in flow.stages if stage.traits.order == "times"]
    if any(guard is None for guard in guards):
        return None
    known = [JumpGuard() if guard == STANDARD else guard for guard in guards] or [JumpGuard()]
    return JumpGuard(
        max_jump_ms=max(guard.max_jump_ms for guard in known),
        confirmations=max(guard.confirmations for guard in known),
    )
