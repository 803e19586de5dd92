"""The ledger of recorded runs: a line of JSON for each, with what it ran on, so that figures can be added up and judged."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tests.support.commit import commit

TREE: Final = Path(__file__).resolve().parents[2]
LEDGER: Final = Path(__file__).with_name("ledger.jsonl")
_PACKAGES: Final = ("sqe-chain", "protobuf", "msgspec", "numpy", "pyarrow")


@dataclass(frozen=True)
class Run:
    """One recorded run of a tool.

    Attributes:
        tool: its name.
        command: that was run.
        commit: that was checked out.
        clean: whether nothing was changed since that commit.
        code: what git calls the package's files at that commit: runs of the same are added up.
        date: when it ended, UTC.
        machine: processor, cores, memory.
        versions: of Python and packages.
        counts: what was counted; parts of one run are added up.
        seed: of all that was drawn.
        seconds: how long it took.
        violations: what it found.
        more: whatever else the tool reports, such as a peak of memory.
    """

    tool: str
    command: str
    commit: str
    clean: bool
    code: str
    date: str
    machine: str
    versions: dict[str, str]
    counts: dict[str, float]
    seed: int
    seconds: float
    violations: int
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tree:
    """What is checked out: commit, whether nothing was changed since, and the package's files; see `Run`."""

    commit: str
    clean: bool
    code: str


def tree(*written: Path) -> Tree:
    """What is checked out before a tool runs. The ledger, and what else a record is written to, may have changed."""
    others = [f":!{file.relative_to(TREE)}" for file in (LEDGER, *written)]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return Tree(head(), not changed, _git("rev-parse", "HEAD:sqe_chain")[:12])


def recorded(tool: str, command: str, ran: Tree, written: Mapping[str, Any]) -> Run:
    """The result of a tool, with what it ran on.

    Args:
        tool: its name.
        command: that was run.
        ran: what was checked out when it began.
        written: the JSON object that it wrote.
    """
    known = {"tool", "counts", "seed", "seconds", "violations"}
    return Run(
        tool,
        command,
        ran.commit,
        ran.clean,
        ran.code,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        machine(),
        {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        dict(written.get("counts", {})),
        int(written.get("seed", 0)),
        float(written.get("seconds", 0)),
        int(written.get("violations", 0)),
        {name: one for name, one in written.items() if name not in known},
    )


def read_ledger(file: Path = LEDGER) -> list[Run]:
    """All recorded runs, in their order."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Run(**json.loads(line)) for line in lines]


def append(run: Run, file: Path = LEDGER) -> None:
    """Add a run to the ledger."""
    with file.open("a") as opened:
        opened.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")


def head() -> str:
    """The commit that is checked out; "unknown" where there is no repository."""
    return commit()[:12]


def machine() -> str:
    """Processor, cores and memory of this machine."""
    cpu, memory = platform.machine(), ""
    try:
        cpu = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[0]
        kib = int(re.findall(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())[0])
        memory = f", {kib / 2**20:.0f} GiB"
    except (OSError, IndexError):  # another system than Linux
        pass
    return f"{cpu}, {os.cpu_count()} cores{memory}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=TREE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
