"""Writes into a broker in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqe_chain.errors import ConfigurationError
from sqe_chain.ports import NO_LIMIT, Writer
from sqe_chain.ports.accepting import window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqe_chain.adapters.memory._log import MemoryLog
    from sqe_chain.ports import Output


class MemoryWriter(Writer):
    """Writes into a `MemoryLog`; see `sqe_chain.ports.Writer`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def connect(self, topics: Sequence[str]) -> None:
        missing = sorted(set(topics) - set(self._log._up().topics))  # noqa: SLF001
        if missing:
            raise ConfigurationError(f"Output topics {', '.join(missing)} do not exist. Create them first.")

    def write(self, outputs: Sequence[Output]) -> None:
        topics = self._log._up().topics  # noqa: SLF001 - one package, one subject
        for topic, partition, key, value, headers, timestamp_ms in outputs:
            if topic not in topics:
                raise ConfigurationError(f"Output topic {topic} does not exist. Create it first.")
            info = topics[topic].info
            stamp = timestamp_ms
            if timestamp_ms <= 0 or (info.before_max_ms, info.after_max_ms) != (NO_LIMIT, NO_LIMIT):
                now_ms = self._log.now_ms()
                first, last = window(info, now_ms)
                first = max(first, 1)  # Kafka's client takes 0, too, for the time of sending
                stamp = timestamp_ms if first <= timestamp_ms <= last else now_ms
            self._log.append(topic, partition, value, key, headers, stamp)

    def flush(self) -> None:
        self._log._up()  # noqa: SLF001

    def close(self) -> None: ...
