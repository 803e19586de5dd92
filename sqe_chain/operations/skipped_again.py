"""What stays skipped when a flow with stages is folded again: the inputs whose dead-letter records were not released."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sqe_chain.errors import ConfigurationError, DeadLettersLost
from sqe_chain.features.decided import Place
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.task.failed_log import FailedLog

MOST: Final = 10_000
"""Inputs that stay skipped: each plan lists where they were read."""


def find_released(logs: Iterable[FailedLog]) -> frozenset[Place]:
    """Where the inputs were read that failed first and count since they were released: a fold counts them at their place, before that.

    Args:
        logs: what the flow's dead-letter topic knows; see `failed_logs`.
    """
    return frozenset(place for place, counts in _places(logs) if counts)


def find_skipped(env: Environment, logs: Sequence[FailedLog]) -> tuple[Place, ...]:
    """Where the inputs were read that a fold must skip, whatever the code is now.

    A released one counts at its place. An open one may be released later.

    Args:
        env: the flow and its ports.
        logs: what its dead-letter topic knows; see `failed_logs`.

    Raises:
        DeadLettersLost: retention has deleted dead-letter records, so it is not known which inputs were released.
        ConfigurationError: there are more than plans can list.
    """
    flow = env.flow
    lost = sum(known.begin for known in logs)
    if lost:
        text = (
            f"flow {flow.name!r}: retention has deleted {lost} records of {flow.dead_letter_topic!r}, so it is not known which inputs were "
            "skipped and released. Expected all of them. Give the flow another name, or accept with --accept-lost-dead-letters that such "
            "an input counts again"
        )
        if not env.settings.once.accept_lost_dead_letters:
            raise DeadLettersLost(text).at(flow.dead_letter_topic)
        env.emit(Notice(text))
    places = {place for place, counts in _places(logs) if not counts and place[0] in flow.input_topics}
    if len(places) > MOST:
        raise ConfigurationError(
            f"flow {flow.name!r} has skipped {len(places)} inputs that were not released. Expected at most {MOST}, to fold it again: each "
            "plan lists where they were read. Release some of them with code that ignores them, or give the flow another name"
        )
    return tuple(sorted(places))


def _places(logs: Iterable[FailedLog]) -> Iterator[tuple[Place, bool]]:
    """Where inputs were read that have dead-letter records, and whether they are released."""
    for known in logs:
        for identity, letter in known.letters.items():
            dead = letter.dead
            place = dead.topic, dead.topic_id.hex(), dead.partition, dead.offset
            yield place, known.status(identity) in {"released", "releasing"}
