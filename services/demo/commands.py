"""The processes of the demo: options, command lines, environment."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.entry import parser_of

ROOT = Path(__file__).resolve().parents[2]
STANDARD = "services.fastening:standard"
"""The republisher, as `sqe-chain run` takes it."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that is killed soon: compile fast instead of well, which saves a third of its start."""


class DemoOptions(argparse.Namespace):
    """The user's options, those that all demos have; `demo_parser` explains them.

    Attributes:
        republisher_engine: what runs the republisher; "" as the service that is judged.
    """

    messages: int
    seed: int
    kills: int
    rate: float
    interval: str
    engine: str
    republisher_engine: str = ""
    timeout: float
    web: int | None
    chosen_directory: str
    directory: Path


def demo_parser(module: str, doc: str | None, *, messages: int, rate: float) -> argparse.ArgumentParser:
    """A parser of the options that all demos have."""
    parser = parser_of(module, doc)
    parser.add_argument("--messages", type=int, default=messages, help="reports to produce at least")
    parser.add_argument("--seed", type=int, default=7, help="of the simulator and of the kills")
    parser.add_argument("--kills", type=int, default=5, help="kills of each service that must count")
    parser.add_argument("--rate", type=float, default=rate, help="reports a second while the killing goes on")
    parser.add_argument("--interval", default="1s", help="interval of the service that is judged")
    parser.add_argument(
        "--engine", choices=["spark", "inprocess"], default="spark", help="what runs the tasks"
    )
    parser.add_argument("--timeout", type=float, default=900, help="seconds after which the demo fails")
    parser.add_argument(
        "--web", type=int, metavar="PORT", help="serve a page that shows the services on this port"
    )
    parser.add_argument(
        "--directory",
        default="",
        dest="chosen_directory",
        help="data and logs; by default a temporary one, removed if all went well",
    )
    return parser


def parse_options(parser: argparse.ArgumentParser, arguments: list[str] | None) -> DemoOptions:
    """The options of the command line, with a directory."""
    options = parser.parse_args(arguments, namespace=DemoOptions())
    options.directory = Path(options.chosen_directory or tempfile.mkdtemp(prefix="sqe-chain-demo-"))
    return options


def run_service(
    options: DemoOptions, target: str, kafka: str, stores: Mapping[str, str], engine: str
) -> list[str]:
    """The command that runs a flow. Stores are name -> address, "" being that of every other stage."""
    return [
        *_command("run", [target], kafka, stores),
        *("--interval", options.interval),
        *("--engine", engine),
        "--log-json",
    ]


def run_page(
    options: DemoOptions, targets: Sequence[str], kafka: str, stores: Mapping[str, str]
) -> list[str]:
    """The command that serves the page about these flows; stores as for `run_service`."""
    return [*_command("web", targets, kafka, stores), "--port", str(options.web)]


def _command(name: str, targets: Sequence[str], kafka: str, stores: Mapping[str, str]) -> list[str]:
    return [
        str(Path(sys.executable).with_name("sqe-chain")),
        *(name, *targets, "--kafka", kafka),
        *(text for name, url in stores.items() for text in ("--store", f"{name}={url}" if name else url)),
    ]


def run_simulator(options: DemoOptions, kafka: str) -> list[str]:
    """The command that produces the reports."""
    return [
        *(sys.executable, "-m", "services.simulate", "--leash"),
        *("--kafka", kafka),
        *("--seed", str(options.seed)),
        *("--messages", str(options.messages)),
        *("--rate", str(options.rate)),
    ]


def environment(scratch: str) -> dict[str, str]:
    """Additions to the environment of every process; killed processes leave their temporary files in `scratch`."""
    return {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": scratch,
        "SPARK_LOCAL_DIRS": scratch,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
        "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -Djava.io.tmpdir={scratch}",
    }
