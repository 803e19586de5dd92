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
from typing import Any

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.wal import DurableProducer, Limits, LocalFiles
from sqe_chain.testing.faults import PortCall, Scheduler
from sqe_chain.testing.faulty_ports import faulty_log
from tests.support.wal_faults import FaultyFiles, changes_something, make_half

PARTITIONS = 3
KEYS = 5
LAST = 20
"""Records of a life that ends by itself."""
LIMITS = Limits(
    max_bytes=1 << 20, segment_bytes=4_096, max_record_bytes=1_024, group_records=50, group_bytes=4_096
)


def key_of(number: int) -> bytes:
    return b"robot-%d" % (number % KEYS)


class Calls(Scheduler):
    """Counts calls of all threads, and kills at the chosen one.

    Args:
        last: its number; 0: none.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._numbers = itertools.count(1)

    def answer(self, call: PortCall) -> Any:
        if not changes_something(call):
            return call.make()
        number = next(self._numbers)
        if number != self._last:
            return call.make()
        if number % 3 == 1:
            make_half(call)
        if number % 3 == 2:
            call.make()
            if call.name == "publish":
                call.port.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        return signal.pause()


def main(directory: str, bootstrap: str, topic: str, first: int, at: str) -> None:
    kind, _, last = at.partition(":")
    kafka: Any = faulty_log(KafkaLog(bootstrap), Calls(int(last) if kind == "broker" else 0))
    files = FaultyFiles(LocalFiles(directory), Calls(int(last) if kind == "files" else 0))
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
