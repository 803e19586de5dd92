"""Put a defect back, and see after how many seconds the simulator finds it.

    python -m tests.support.defect_injection --seed 0 --seconds 120 fix-one.patch fix-two.patch

Each patch is the diff of a fix, as `git show COMMIT -- sqe_chain` prints it. It is taken back in a copy of the package,
and the simulator runs there, so nothing of this tree changes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "sqe_chain"


@dataclass(frozen=True)
class Finding:
    """What came of it.

    Attributes:
        seconds: until a violation was found; None: none was.
        told: by the simulator.
    """

    seconds: float | None
    told: str


@dataclass(frozen=True)
class Replacement:
    """A defect as text.

    Attributes:
        file: below the package.
        new: what stands there now.
        old: the defect.
    """

    file: str
    new: str
    old: str


def found_after(
    defect: Path | tuple[Replacement, ...],
    *,
    seed: int = 0,
    seconds: float = 120.0,
    package: Path = PACKAGE,
    jobs: int = 1,
) -> Finding:
    """Put a defect back into a copy of the package and simulate there.

    Args:
        defect: the diff of its fix, or texts to be replaced.
        seed: of the first schedule.
        seconds: after which it is given up.
        package: what is copied.
        jobs: processes of the simulator.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(package, Path(folder, "sqe_chain"), ignore=shutil.ignore_patterns("__pycache__"))
        if isinstance(defect, Path):
            subprocess.run(["git", "apply", "--reverse", str(defect.resolve())], cwd=folder, check=True)
        else:
            for one in defect:
                replace(Path(folder, "sqe_chain", one.file), one)
        options = ["--schedules", "1000000", "--seed", str(seed), "--seconds", str(seconds)]
        options += ["--jobs", str(jobs)]
        command = [sys.executable, "-m", "sqe_chain.testing.simulator", *options]
        began = time.perf_counter()
        # Without shrinking: what is asked for is the time until it was noticed.
        done = subprocess.run(
            [*command, "--whole"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.perf_counter() - began
    return Finding(took if done.returncode == 1 else None, done.stdout + done.stderr)


def replace(file: Path, one: Replacement) -> None:
    text = file.read_text()
    assert text.count(one.new) == 1, f"{one.file}: {one.new!r} stands there {text.count(one.new)} times"
    file.write_text(text.replace(one.new, one.old))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patches", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    for patch in options.patches:
        finding = found_after(patch, seed=options.seed, seconds=options.seconds)
        after = "not found" if finding.seconds is None else f"{finding.seconds:6.1f} s"
        sys.stdout.write(f"{patch.name:40} {after}  {last_words(finding.told)}\n")


def last_words(told: str) -> str:
    lines = [line for line in told.splitlines() if "violations; seed" in line]
    return lines[0][:160] if lines else ""


if __name__ == "__main__":
    main()
