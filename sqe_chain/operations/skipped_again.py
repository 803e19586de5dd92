"""What stays skipped when a flow with stages is folded again: the inputs whose dead-letter records can be released."""

from __future__ import annotations

from typing import Final

from sqe_chain.errors import ConfigurationError, DeadLettersLost
from sqe_chain.features.parking import Place
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.events import Notice
from sqe_chain.task.failed_log import read_failed_logs

MOST: Final = 10_000
"""Inputs that stay skipped: each plan lists where they were read."""


def find_skipped(env: Environment, *, raw: bool = False) -> tuple[Place, ...]:
    """Where the inputs were read that a fold must skip, whatever the code is now.

    A released one comes back as another record, so its original must not count, too; an open one may be released later. Inputs
    without envelopes cannot be released: they count if the code of now can process them.

    Args:
        env: the flow and its ports.
        raw: also inputs without envelopes.

    Raises:
        DeadLettersLost: retention has deleted dead-letter records, so it is not known which inputs were released.
        ConfigurationError: there are more than plans can list.
    """
    flow = env.flow
    topic = flow.dead_letter_topic
    info = env.log.describe([topic]).get(topic) if flow.dead_letters else None
    wanted = {
        topic
        for topic in flow.input_topics
        if (node := flow.source_of[topic]) is not None and (raw or not node.raw)
    }
    if info is None or not wanted:
        return ()
    logs = read_failed_logs(env.ports.log, flow.declared_name, info)
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
    places = {
        (letter.dead.topic, letter.dead.topic_id.hex(), letter.dead.partition, letter.dead.offset)
        for known in logs
        for letter in known.letters.values()
        if letter.dead.topic in wanted
    }
    if len(places) > MOST:
        raise ConfigurationError(
            f"flow {flow.name!r} has skipped {len(places)} inputs whose dead-letter records can be released. Expected at most {MOST}, to "
            "fold it again: each plan lists where they were read. Give the flow another name"
        )
    return tuple(sorted(places))
