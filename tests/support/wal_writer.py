"""A process that appends to a write-ahead log without end, prints what was acknowledged, and kills itself at a chosen call.

    python -m tests.support.wal_writer DIRECTORY BOOTSTRAP TOPIC FIRST AT

Records are numbered from FIRST on; each number is printed once it is acknowledged. AT is "files:N" or "broker:N": the
process gets SIGKILL at its Nth call to the directory or to the broker. The kill comes before the call, in the middle of
it, or after it, in turn. With "end:0" it appends a few records, waits until everything is published, and ends.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.wal import DurableProducer, Limits, LocalFiles
from sqe_chain.ports import Output

PARTITIONS = 3
KEYS = 5
LAST = 20
"""Records of a life that ends by itself."""
LIMITS = Limits(
    max_bytes=1 << 20, segment_bytes=4_096, max_record_bytes=1_024, group_records=50, group_bytes=4_096
)


def key_of(number: int) -> bytes:
    return b"robot-%d" % (number % KEYS)


class Calls:
    """Counts calls of all threads, and kills at the chosen one.

    Args:
        last: its number; 0: none.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._numbers = itertools.count(1)

    def call(self, effect: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        number = next(self._numbers)
        if number != self._last:
            return effect()
        if number % 3 == 1:
            half()
        if number % 3 == 2:
            effect()
        os.kill(os.getpid(), signal.SIGKILL)
        return signal.pause()


class DyingFiles(LocalFiles):
    """A directory that is the last one."""

    def __init__(self, directory: str, calls: Calls) -> None:
        super().__init__(directory)
        self._calls = calls

    def write(self, name: str, at: int, data: bytes, zeros: int = 0) -> None:
        whole, half = super().write, len(data) // 2
        self._calls.call(lambda: whole(name, at, data, zeros), lambda: whole(name, at, data[:half]))

    def overwrite(self, name: str, at: int, data: bytes) -> None:
        whole = super().overwrite
        self._calls.call(lambda: whole(name, at, data), lambda: whole(name, at, data[:9]))

    def create(self, name: str) -> None:
        whole = super().create
        self._calls.call(lambda: whole(name))

    def sync(self, name: str) -> None:
        whole = super().sync
        self._calls.call(lambda: whole(name))

    def rename(self, old: str, new: str) -> None:
        whole = super().rename
        self._calls.call(lambda: whole(old, new))

    def remove(self, name: str) -> None:
        whole = super().remove
        self._calls.call(lambda: whole(name))

    def sync_directory(self) -> None:
        whole = super().sync_directory
        self._calls.call(whole)


class DyingWriter:
    """A writer whose calls are counted."""

    def __init__(self, inner: Any, calls: Calls) -> None:
        self._inner, self._calls = inner, calls

    def write(self, outputs: Sequence[Output]) -> None:
        def half() -> None:
            self._inner.write(outputs[: len(outputs) // 2])
            self._inner.flush()

        self._calls.call(lambda: self._inner.write(outputs), half)

    def flush(self) -> None:
        self._calls.call(self._inner.flush)

    def close(self) -> None:
        self._inner.close()


class DyingLog:
    """Kafka, with such writers."""

    def __init__(self, inner: KafkaLog, calls: Calls) -> None:
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def writer(self) -> DyingWriter:
        return DyingWriter(self._inner.writer(), self._calls)


def main(directory: str, bootstrap: str, topic: str, first: int, at: str) -> None:
    kind, _, last = at.partition(":")
    kafka: Any = DyingLog(KafkaLog(bootstrap), Calls(int(last) if kind == "broker" else 0))
    files = DyingFiles(directory, Calls(int(last) if kind == "files" else 0))
    with DurableProducer(
        files, topic, partitions=PARTITIONS, kafka=kafka, limits=LIMITS, timeout_s=600
    ) as producer:

        def send(begin: int) -> None:
            # Each thread has keys of its own, so the order of a key is that of one thread.
            for number in range(begin, first + LAST if kind == "end" else sys.maxsize, KEYS):
                producer.append(b"%d" % number, key=key_of(number))
                os.write(1, b"%d\n" % number)

        threads = [threading.Thread(target=send, args=(first + index,)) for index in range(KEYS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(timeout_s=600)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
