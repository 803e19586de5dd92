"""Two services at work for a long time, without faults: memory stays flat, and every total is right at the end.

```
python -m tests.reliability run soak --minutes 60 --rate 12000
```

    raw -standard-> mid -totals-> deltas, lines

Topics keep little, as in production, and the producer waits where services are behind. Totals are added up here, event by event.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka import Producer

from services._proto.fastening_pb2 import Fastening, LineTotal, RobotTotal
from services.demo.process import members_of_session
from sqe_chain import wrap
from sqe_chain.ext.dev import KafkaServer, RedisServer
from tests.lab.figures import report
from tests.support.brokers import Admin
from tests.support.chaos_flows import REFUSED_IN_FIRST
from tests.support.service_processes import ServiceProcess
from tests.support.totals_deployment import TOPICS, TotalsDeployment
from tests.support.waiting import PATIENCE_S

Sums = list[int]
"""Events, screws fastened, torque."""
ROBOTS, LINES, GATEWAYS = 1_000, 3, 4
_KEPT: Final = {"retention_bytes": str(128 << 20), "segment_bytes": str(32 << 20)}
_MOST_BEHIND: Final = 200_000
"""Records that a service may be behind before the producer waits: far fewer than its topic keeps."""
_SAMPLE_S: Final = 10
_GROWTH, _SLACK_MB = 1.15, 20


@dataclass
class Fed:
    """What was produced: sums for each robot and line, and nothing that grows with the number of events."""

    seed: int
    reports: int = 0
    events: int = 0
    robots: dict[str, Sums] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    lines: dict[str, Sums] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def next(self, count: int) -> Iterator[tuple[int, bytes, str]]:
        """Partition, bytes and key of the next reports, whose events are added up.

        A report with failed screws becomes further events of neighbouring robots; see `chaos_flows`.
        """
        for _ in range(count):
            self.reports += 1
            gateway, robot = self._draw.randrange(GATEWAYS), self._draw.randrange(ROBOTS)
            fastened, failed, torque = (
                self._draw.randrange(5),
                self._draw.randrange(3),
                self._draw.getrandbits(32),
            )
            assert failed < REFUSED_IN_FIRST
            name = f"robot-{gateway}-{robot}"
            report = Fastening(
                robot=name, line=f"line-{robot % LINES}", report=self.reports,
                fastened=fastened, failed=failed, torque_mnm=torque,
            )  # fmt: skip
            self._add(gateway, robot, fastened, torque)
            for extra in range(1, failed + 1):
                self._add(gateway, (robot + extra) % 4, extra, torque // (extra + 1))
            yield gateway % TOPICS["raw"], wrap(report, key=name, timestamp_ms=self.reports), name

    def _add(self, gateway: int, robot: int, fastened: int, torque: int) -> None:
        self.events += 1
        for sums in (self.robots[f"robot-{gateway}-{robot}"], self.lines[f"line-{robot % LINES}"]):
            sums[0] += 1
            sums[1] += fastened
            sums[2] += torque


class Soak:
    """Both services, and what is measured of them.

    Args:
        broker: with topics of its own.
        store: of the states.
        directory: for logs.
        more: options of the service with stages.
        seed: of the reports.
    """

    def __init__(
        self, broker: KafkaServer, store: RedisServer, directory: Path, more: Sequence[str], seed: int
    ) -> None:
        self.deployment = TotalsDeployment(broker.bootstrap, store.url, directory, topics={})
        admin = Admin(broker.bootstrap)
        for topic, partitions in TOPICS.items():
            admin.create(self.deployment.topic(topic), [[1]] * partitions, **_KEPT)
            self.deployment.log.create_topic(
                self.deployment.topic(topic), partitions
            )  # waits for its leaders
        self.fed, self._more = Fed(seed), more
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "max.in.flight": 1,
                "linger.ms": 5,
            }
        )
        self.memory: dict[str, list[float]] = {"standard": [], "totals": []}

    def run(self, minutes: float, rate: int) -> list[str]:
        """Feed for some minutes, at most at this rate; let both end, and compare.

        Returns:
            What is wrong: nothing, or why.
        """
        # The largest backlog comes first: a batch of it takes the most memory, and that is no growth.
        for _ in range(_MOST_BEHIND // 1_000):
            self._produce(1_000)
        options = ("--interval", "1s", "--create-topics", "0")
        standard = self.deployment.start("standard", *options)
        assert self._producer.flush(PATIENCE_S) == 0
        self.deployment.wait_for_no_lag(standard, "standard", "raw")
        lives = {
            "standard": standard,
            "totals": self.deployment.start("totals", *options, *self._more),
        }
        end, began, sampled = time.monotonic() + minutes * 60, time.monotonic(), 0.0
        while (now := time.monotonic()) < end:
            if self.fed.reports - _MOST_BEHIND <= (now - began) * rate and not (
                self.fed.reports % 50_000 == 0 and self._behind()
            ):
                self._produce(1_000)
            else:
                time.sleep(0.02)
            if now - sampled > _SAMPLE_S:
                sampled = now
                for name, life in lives.items():
                    assert life.status() is None, life.text[-3000:]
                    self.memory[name].append(resident_mb(life))
        assert self._producer.flush(PATIENCE_S) == 0
        self.deployment.wait_until_caught_up(lives["standard"], lives["totals"])
        wrong = [
            f"{name} ended with another status than 0" for name, life in lives.items() if life.terminate()
        ]
        return wrong + self._wrong_totals() + [text for name in lives if (text := self._grown(name))]

    def _behind(self) -> bool:
        lags = (self.deployment.lags(flow, topic) for flow, topic in (("standard", "raw"), ("totals", "mid")))
        return sum(end - max(at, 0) for lag in lags for at, end in lag.values()) > _MOST_BEHIND

    def _produce(self, count: int) -> None:
        for partition, value, key in self.fed.next(count):
            while True:
                try:
                    self._producer.produce(self.deployment.topic("raw"), value, key, partition)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def _wrong_totals(self) -> list[str]:
        robots = {k: RobotTotal.FromString(v) for k, v in self.deployment.states("per-robot").items()}
        lines = {k: LineTotal.FromString(v) for k, v in self.deployment.states("per-line").items()}
        wrong = []
        for what, stored, wanted in (("robot", robots, self.fed.robots), ("line", lines, self.fed.lines)):
            found = {k: [total.events, total.fastened, total.torque_mnm] for k, total in stored.items()}
            wrong += [
                f"{what} {key}: {found.get(key)} stored, {wanted.get(key)} produced"
                for key in found.keys() | wanted.keys()
                if found.get(key) != wanted.get(key)
            ][:5]
        return wrong

    def _grown(self, name: str) -> str:
        """Whether memory has grown between the second quarter of the time and the last one."""
        samples = self.memory[name]
        quarter = len(samples) // 4
        if not quarter:
            return ""
        before, after = median(samples[quarter : 2 * quarter]), median(samples[-quarter:])
        grown = after > before * _GROWTH + _SLACK_MB
        return f"{name} has grown from {before:.0f} to {after:.0f} MB" if grown else ""


def resident_mb(life: ServiceProcess) -> float:
    """Resident memory of a service with all its processes, in MB; shared pages count in each."""
    pages = 0
    for pid in members_of_session(life.identity.pid):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, IndexError):  # it has just ended
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run a soak, print its figures, and 1 as exit status if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    parser.add_argument("--rate", type=int, default=10_000, help="reports a second (default 10,000)")
    parser.add_argument("--workers", type=int, default=0, help="of the service with stages (default: none)")
    parser.add_argument("--seed", type=int, default=1, help="of the reports")
    parser.add_argument("--json", type=Path, help="write the figures there, as one JSON object")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as directory,
        KafkaServer() as broker,
        RedisServer() as store,
    ):
        more = ("--workers", str(options.workers)) if options.workers else ()
        soak = Soak(broker, store, Path(directory), more, options.seed)
        with closing(soak.deployment):
            wrong = soak.run(options.minutes, options.rate)
    figures = {
        "tool": "soak",
        "counts": {"reports": soak.fed.reports, "events": soak.fed.events, "minutes": options.minutes},
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "memory_mb": {name: [round(one) for one in samples] for name, samples in soak.memory.items()},
    }
    return report(figures, wrong, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
