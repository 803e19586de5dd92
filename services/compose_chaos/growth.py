"""Waits until the republisher publishes something; runs inside the stack's network, where Kafka answers fast.

python -m services.compose_chaos.growth
"""

from __future__ import annotations

import sys
import time

from services.demo.positions import topic_end
from services.naive import TOPIC
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.errors import ChainError

_WITHIN_S = 30.0


def main() -> int:
    """Return when its output topic has grown, or after a timeout."""
    try:
        log = KafkaLog("kafka:9092")
        end, deadline = topic_end(log, TOPIC), time.monotonic() + _WITHIN_S
        while topic_end(log, TOPIC) == end and time.monotonic() < deadline:
            time.sleep(0.002)
    except ChainError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
