"""`--create-topics`: creates the topics that a flow needs and the broker does not have."""

from __future__ import annotations

from sqe_chain.flow import Flow
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.events import Notice


def create_missing(env: Environment, input_partitions: int) -> None:
    """Create missing topics: outputs and dead letters as declared, inputs as requested.

    An input that several flows share is best created by its writer, because its number of partitions is permanent for
    the lanes through it.

    Args:
        env: the flow and its ports.
        input_partitions: partitions of an input that is missing; 0: inputs are left missing.

    Raises:
        Unavailable: asked to stop while the broker was unavailable.
        ConfigurationError: the broker refuses.
    """
    needed = partitions_needed(env.flow, input_partitions)
    found = env.log.describe(needed)
    for topic in sorted(needed.keys() - found.keys()):
        partitions = needed[topic]
        env.log.create_topic(topic, partitions)
        env.emit(Notice(f"created topic {topic} with {partitions} partitions"))


def partitions_needed(flow: Flow, input_partitions: int) -> dict[str, int]:
    """Topic -> partitions to create it with; two outputs into one topic share the larger number."""
    needed: dict[str, int] = {}
    if input_partitions:
        needed.update(dict.fromkeys(flow.input_topics(), input_partitions))
    for output in flow.outputs():
        topic = output.topic
        needed[topic] = max(needed.get(topic, 0), output.partitions)
    if flow.dead_letters:
        topic = flow.dead_letter_topic
        needed[topic] = max(needed.get(topic, 0), flow.dead_letter_partitions)
    return needed
