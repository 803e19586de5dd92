"""Simulates the plant's gateways: produces reports to `robot.raw`, each wrapped at its origin.

    python -m services.simulate --kafka HOST:PORT --seed 7 --messages 300000 --rate 5000

The last line on standard output is the number of reports produced, which `services.audit` needs. With `--resume`
it may be killed and started again: reports that are in the topic are not produced a second time.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from services._proto.fastening_pb2 import RawReport
from services.entry import parser_of, with_exit_status
from services.reports import reports
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.envelope.message import wrap
from sqe_chain.envelope.partitioner import Partitioner
from sqe_chain.ports import Log, Output, Writer

TOPIC = "robot.raw"
PARTITIONS = 3
MESSAGES_AT_MOST = 10_000_000
_BLOCK = 100


class Pace:
    """Limits the rate, from the moment it is created."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._begin = clock()

    def pause_s(self, produced: int) -> float:
        """Seconds to wait before the next message, after this many."""
        if not self._rate:
            return 0.0
        return max(0.0, self._begin + produced / self._rate - self._clock())


class Leash:
    """Limits how many reports are produced, and until when; another thread controls it.

    With `finish` it ends after `--messages` reports. If `obey` sets that, the rate is no longer limited.
    """

    def __init__(self, allowed: int = MESSAGES_AT_MOST, *, finish: bool = True) -> None:
        self.finish = finish
        self._hurry = False
        self._allowed = allowed
        self._changed = threading.Condition()

    def obey(self, lines: Iterable[str]) -> None:
        """Read commands until the input ends: a number of reports allowed so far, or `finish`."""
        for line in lines:
            number = int(line) if line.strip().isdigit() else None
            self._change(number or 0, finish=self._hurry or number is None)
        self._change(MESSAGES_AT_MOST, finish=True)

    def wait(self, produced: int, pause_s: float) -> None:
        """Return when the pause is over (or `finish` was commanded) and one more report is allowed."""
        with self._changed:
            self._changed.wait_for(lambda: self._hurry, pause_s)
            self._changed.wait_for(lambda: produced < self._allowed)

    def _change(self, allowed: int, *, finish: bool) -> None:
        with self._changed:
            self._allowed = max(self._allowed, allowed)
            self.finish = self._hurry = finish
            self._changed.notify_all()


def count_existing(log: Log) -> dict[int, int]:
    """Number of reports in each partition of the topic; nothing was ever deleted from it."""
    bounds = log.bounds([(TOPIC, partition) for partition in range(PARTITIONS)])
    return {partition: known.stable_end for (_, partition), known in bounds.items()}


def produce(
    writer: Writer,
    plant: Iterable[RawReport],
    leash: Leash,
    *,
    messages: int,
    rate: float = 0.0,
    already: Mapping[int, int] = MappingProxyType({}),
) -> int:
    """Produce reports in order, keyed by gateway; returns their total number when all are acknowledged.

    Args:
        writer: idempotent, so that no message is stored twice at two offsets.
        plant: the reports.
        leash: limits how many are produced; until its `finish` is set, it continues beyond `messages`.
        messages: produce at least this many.
        rate: messages per second, until the leash sets `finish`; 0 for no limit.
        already: how many of the first reports of each partition an earlier run has produced; they are skipped.
            That is exact, because each partition is written in order, by one writer at a time.

    Raises:
        Unavailable: the broker does not answer, or refused a message permanently.
    """
    pace = Pace(rate)
    partition = Partitioner(PARTITIONS)
    block: list[Output] = []
    left_out = dict(already)
    produced = written = 0
    for report in plant:
        if produced >= messages and leash.finish and not any(left_out.values()):
            break
        produced += 1
        key = report.gateway.encode()
        target = partition(key)
        if left_out.get(target):
            left_out[target] -= 1
            continue
        now_ms = time.time_ns() // 1_000_000
        value = wrap(report, key=key, timestamp_ms=now_ms)
        block.append((TOPIC, target, key, value, None, now_ms))
        if len(block) >= _BLOCK:
            writer.write(block)
            written += len(block)
            block.clear()
            leash.wait(produced, pace.pause_s(written))
    writer.write(block)
    writer.flush()
    return produced


@with_exit_status
def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args(arguments)
    leash = Leash()
    if options.leash:
        leash = Leash(0, finish=False)
        threading.Thread(target=leash.obey, args=(sys.stdin,), daemon=True).start()
    log = KafkaLog(options.kafka)
    log.create_topic(TOPIC, PARTITIONS)
    produced = produce(
        log.writer(),
        reports(options.seed, MESSAGES_AT_MOST, time.time_ns() // 1_000_000),
        leash,
        messages=options.messages,
        rate=options.rate,
        already=count_existing(log) if options.resume else {},
    )
    print(produced)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("services.simulate", __doc__)
    parser.add_argument("--kafka", required=True, help="HOST:PORT of a broker")
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same reports")
    parser.add_argument("--messages", type=int, default=300_000, help="how many reports")
    parser.add_argument("--rate", type=float, default=0.0, help="reports a second; 0 for no limit")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="the topic holds the first reports of this seed: go on from there",
    )
    parser.add_argument(
        "--leash",
        action="store_true",
        help="obey lines on standard input: a number of reports allowed so far; `finish`: end at --messages",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
