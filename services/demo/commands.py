"""The processes of the demo: options, command lines, environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that is killed soon: compile fast instead of well, which saves a third of its start."""


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options.

    Attributes:
        messages: raw reports to produce at least.
        seed: of the simulator and of the moments of killing.
        kills: kills of each service that must count.
        rate: reports per second while services are killed.
        interval: interval of the totals service, as `sqe-chain run` takes it.
        engine: ``spark``, or ``inprocess`` for a quick look.
        store: ``redis``, ``cassandra``, or ``mixed``: robots in Cassandra, lines and plans in Redis.
        timeout_s: the demo fails when it takes longer.
        directory: data and log files.
    """

    messages: int
    seed: int
    kills: int
    rate: float
    interval: str
    engine: str
    store: str
    timeout_s: float
    directory: Path


def run_service(options: Options, attribute: str, kafka: str, stores: Mapping[str, str]) -> list[str]:
    """The command that runs one of the flows in `services.fastening`."""
    return [
        str(Path(sys.executable).with_name("sqe-chain")),
        *("run", f"services.fastening:{attribute}"),
        *("--kafka", kafka),
        *(text for name, url in stores.items() for text in ("--store", f"{name}={url}" if name else url)),
        *("--interval", options.interval),
        *("--engine", options.engine),
        "--log-json",
    ]


def run_simulator(options: Options, kafka: str) -> list[str]:
    """The command that produces the reports."""
    return [
        *(sys.executable, "-m", "services.simulate", "--leash"),
        *("--kafka", kafka),
        *("--seed", str(options.seed)),
        *("--messages", str(options.messages)),
        *("--rate", str(options.rate)),
    ]


def environment(scratch: str) -> dict[str, str]:
    """Additions to the environment of every process.

    Args:
        scratch: directory for temporary files, because killed processes cannot clean up.
    """
    return {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": scratch,
        "SPARK_LOCAL_DIRS": scratch,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
        "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -Djava.io.tmpdir={scratch}",
    }
