"""A user's first steps with what was built: an empty environment, the README's example, a short demo."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.release.building import Different, Installed, Tools

USUAL = "kafka,redis,json,cli"
BIG = ("pyspark", "pandas", "pyarrow", "numpy", "py4j")
"""Packages that the usual set does without."""

WITHOUT_EXTRAS = """
import sqe_chain
from google.protobuf.wrappers_pb2 import StringValue
assert sqe_chain.__file__.startswith({place!r}), sqe_chain.__file__
envelope = sqe_chain.read(sqe_chain.wrap(StringValue(value="3 screws"), key=b"robot-7", timestamp_ms=0))
assert envelope.payload_as(StringValue).value == "3 screws"
"""

IN_MEMORY = """
import shutil, sys
from sqe_chain import Flow
from sqe_chain.testing import Rehearsal
import sqe_chain.runtime.running, sqe_chain.cli.commands, sqe_chain.adapters.kafka, sqe_chain.adapters.redis

def count(state: dict, event: dict) -> None:
    state["screws"] = state.get("screws", 0) + event["screws"]

flow = Flow("screws")
flow.source("robot.raw", dict, raw=True).aggregate("per-robot", key=lambda event: event["robot"], state=dict, fold=count)
service = Rehearsal(flow)
for screws in (3, 4):
    service.feed("robot.raw", {"robot": "robot-7", "screws": screws})
service.run_until_caught_up()
assert service.states("per-robot") == {b"robot-7": {"screws": 7}}
assert not {"pyspark", "pandas", "pyarrow", "numpy"} & set(sys.modules)
"""


def check_sizes(tools: Tools, wheel: Path) -> Iterator[str]:
    """Install the wheel into empty environments and use it there without Java; gives a line with the size of each.

    Raises:
        Different: an environment has packages that it must do without.
    """
    for name, extras, text in (("bare", "", WITHOUT_EXTRAS), ("usual", USUAL, IN_MEMORY)):
        installed = tools.install(name, wheel, extras)
        program = text.replace("{place!r}", repr(str(installed.path)))
        tools.call(str(installed.python), "-W", "error", "-c", program, PATH="/nowhere", JAVA_HOME="/nowhere")
        names = {path.name.partition("-")[0] for path in installed.packages.glob("*.dist-info")}
        if big := names & set(BIG) or (not extras and names - {"protobuf", "sqe_chain"}):
            raise Different(f"pip install sqe-chain[{extras}] brings {sorted(big)}")
        yield f"pip install sqe-chain[{extras}]: {size_of(installed):.0f} MB, {len(names)} packages"


def size_of(installed: Installed) -> float:
    """Size of an environment's packages, in MB (10**6 bytes)."""
    return sum(path.stat().st_size for path in installed.packages.rglob("*") if path.is_file()) / 1e6


class Trial:
    """One archive in empty environments, beside a copy of what the repository alone has.

    Args:
        tools: what installs.
        archive: wheel or source archive.

    Attributes:
        full: the environment with all extras.
    """

    def __init__(self, tools: Tools, archive: Path) -> None:
        self._tools = tools
        self._kind = "wheel" if archive.suffix == ".whl" else "source"
        self._usual = tools.install(f"{self._kind}-usual", archive, USUAL)
        self.full = tools.install(f"{self._kind}-all", archive, "all")
        print(f"pip install sqe-chain[all] from the {self._kind}: {size_of(self.full):.0f} MB")
        self._beside = tools.directory / f"beside-{self._kind}"
        shutil.copytree(tools.first / "services", self._beside / "services")
        for name in ("README.md", "tests/support/docs_examples.py"):
            (self._beside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tools.first / name, self._beside / name)

    def run_readme(self) -> None:
        """Run the README's example with the usual set of extras."""
        version = self._tools.call(str(self._usual.path / "bin" / "sqe-chain"), "--version").strip()
        with tempfile.TemporaryDirectory() as directory:
            self._tools.call(
                *("env", f"--chdir={directory}", str(self._usual.python), "-W", "error"),
                *(str(self._beside / "tests/support/docs_examples.py"), str(self._beside / "README.md")),
            )
        print(f"{version} from the {self._kind}: README's example ran")

    def run_demo(self, engine: str) -> None:
        """Run the short form of the demo with all extras.

        Args:
            engine: what runs the tasks.
        """
        self._tools.call(str(self.full.python), "-m", "sqe_chain.ext.dev", "fetch", "kafka", "redis")
        shown = self._tools.call(
            *("env", f"--chdir={self._beside}", str(self.full.python), "-m", "services.demo"),
            *("--messages", "30000", "--kills", "1", "--timeout", "1800", "--engine", engine),
        )
        print(f"demo on {engine} from the {self._kind}: {shown.strip().splitlines()[-1]}")
