"""What a flow's dead-letter topic knows."""

from __future__ import annotations

from sqe_chain.plans.environment import Environment
from sqe_chain.task.failed_log import FailedLog, read_failed_logs


def failed_logs(env: Environment) -> list[FailedLog]:
    """All partitions of the flow's dead-letter topic, whatever its policy is now; none if there is no such topic.

    Raises:
        ServiceStopped: a decision in it is one that this version does not understand.
        Unavailable: the broker does not answer.
    """
    flow = env.flow
    info = env.log.describe([flow.dead_letter_topic]).get(flow.dead_letter_topic)
    return [] if info is None else read_failed_logs(env.ports.log, flow.declared_name, info)
