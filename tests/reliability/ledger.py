"""The ledger of recorded runs: a line of JSON for each, with what it ran on, so that figures can be added up and judged."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tests.support.commit import commit

TREE: Final = Path(__file__).resolve().parents[2]
LEDGER: Final = Path(__file__).with_name("ledger.jsonl")
_READ: Final = (
    "proto", "sqe_chain/chain.py", "sqe_chain/errors.py", "sqe_chain/envelope/partitioner.py", "sqe_chain/envelope", "sqe_chain/envelope/replays",
    "sqe_chain/codecs", "sqe_chain/task", "sqe_chain/safe_text.py", "sqe_chain/conversions",
)  # fmt: skip
_RUN: Final = (
    *_READ, "sqe_chain/stages", "sqe_chain/protocol", "sqe_chain/flow", "sqe_chain/ports", "sqe_chain/engines/ahead.py",
    "sqe_chain/engines/inprocess.py", "sqe_chain/engines/task.py", "sqe_chain/adapters/memory/store.py", "sqe_chain/adapters/limits.py", "sqe_chain/adapters/memory",
    "sqe_chain/testing/values.py", "sqe_chain/testing/clock.py", "sqe_chain/testing/fault_injection.py", "sqe_chain/testing/faults.py",
    "sqe_chain/testing/rehearsal.py",
)  # fmt: skip
_TABLES: Final = tuple(
    f"sqe_chain/ext/tables/{name}.py"
    for name in (
        "arrow", "chunk", "chunk_sets", "columns", "compacting", "contents", "describing", "files", "foreign", "memory",
        "memtable", "overwriting", "parquet_storage", "pruning", "reader_offsets", "reading", "schema", "sink", "storage",
    )
)  # fmt: skip
_FRAMES: Final = tuple(
    f"sqe_chain/ext/wal/{name}.py" for name in ("memory_files", "numbers", "record", "segment")
)
CODE: Final[Mapping[str, Sequence[str]]] = {
    "fuzz": (
        *_READ, *_FRAMES, "sqe_chain/protocol/plan.py", "sqe_chain/protocol/commit_metadata.py", "sqe_chain/protocol/layout.py",
        "tests/lab/fuzzing",
    ),
    "simulator": (*_RUN, *_TABLES, "sqe_chain/ext/files", "sqe_chain/testing/faulty_tables.py", "tests/lab/simulator"),
    "explorer": (*_RUN, "tests/lab/simulator/lanes.py", "tests/lab/explorer"),
    "pairs": (*_RUN, "tests/lab/simulator/lanes.py", "tests/lab/explorer"),
    "traces": (*_RUN, "sqe_chain/adapters", "tests/lab/simulator", "tests/traces"),
    "worlds": (*_RUN, "tests/lab/event_time_worlds"),
    "mutants": ("sqe_chain", "tests/lab/mutants"),
}  # fmt: skip
"""Files and directories on which the figures of a tool depend: with another text there, they are figures of other code."""
_PACKAGES: Final = ("sqe-chain", "protobuf", "msgspec", "numpy", "pyarrow")


@dataclass(frozen=True)
class Run:
    """One recorded run of a tool.

    Attributes:
        tool: its name.
        command: that was run.
        commit: that was checked out.
        clean: whether nothing was changed since that commit.
        code: digest of what the figures depend on; see `CODE`.
        date: when it ended, UTC.
        machine: processor, cores, memory.
        versions: of Python and packages.
        counts: what was counted; parts of one run are added up.
        seed: of all that was drawn.
        seconds: how long it took.
        violations: what it found.
        more: whatever else the tool says, such as a peak of memory: of several parts the largest counts; or
            `not_reached`, a list of texts.
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
    """What is checked out: commit, whether nothing was changed since, and digest of the code; see `Run`."""

    commit: str
    clean: bool
    code: str


def tree(tool: str) -> Tree:
    """What is checked out before a tool runs. The ledger itself may have changed."""
    changed = _git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{LEDGER.relative_to(TREE)}"
    )
    return Tree(head(), not changed, digest(tool))


def recorded(tool: str, command: str, ran: Tree, said: Mapping[str, Any]) -> Run:
    """What a tool has said, with what it ran on.

    Args:
        tool: its name.
        command: that was run.
        ran: what was checked out when it began.
        said: the JSON object that it wrote.
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
        dict(said.get("counts", {})),
        int(said.get("seed", 0)),
        float(said.get("seconds", 0)),
        int(said.get("violations", 0)),
        {name: one for name, one in said.items() if name not in known},
    )


def read_ledger(file: Path = LEDGER) -> list[Run]:
    """All recorded runs, in their order."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Run(**json.loads(line)) for line in lines]


def append(run: Run, file: Path = LEDGER) -> None:
    """Add a run to the ledger."""
    with file.open("a") as opened:
        opened.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")


def digest(tool: str, tree: Path = TREE) -> str:
    """Digest of the code on which the figures of a tool depend."""
    found = blake2b(digest_size=6)
    for place in CODE.get(tool, _RUN):
        path = tree / place
        for file in [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.proto")]):
            found.update(f"{file.relative_to(tree)}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()


def changed_since(commit: str, tool: str) -> list[str]:
    """Files on which the figures of a tool depend, and which are other ones in a commit; none where it is not known here."""
    return _git("diff", "--name-only", commit, "--", *CODE.get(tool, _RUN)).splitlines()


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
