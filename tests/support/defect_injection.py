"""Inject a defect into a copy of the package, and measure how long the simulator takes to find it.

    python -m tests.support.defect_injection --seed 0 --seconds 120 fix-one.patch fix-two.patch

Each patch is the diff of a fix, as `git show COMMIT -- sqe_chain` prints it. It is reverted in a copy of the package and
the simulator runs there, so this tree does not change.
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
class Detection:
    """What the simulator found.

    Attributes:
        seconds: until it found a violation; None when it found none.
        output: of the simulator.
    """

    seconds: float | None
    output: str


@dataclass(frozen=True)
class Replacement:
    """A defect as a replacement of source text.

    Attributes:
        file: path inside the package.
        new: the present, correct text.
        old: the defective text.
    """

    file: str
    new: str
    old: str


def time_to_detect(
    defect: Path | tuple[Replacement, ...],
    *,
    seed: int = 0,
    seconds: float = 120.0,
    package: Path = PACKAGE,
    jobs: int = 1,
) -> Detection:
    """Inject a defect into a copy of the package and run the simulator there.

    Args:
        defect: the diff of its fix, or texts to replace.
        seed: of the first schedule.
        seconds: time limit.
        package: directory to copy.
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
        # No shrinking: only the time until the violation was found matters.
        done = subprocess.run(
            [*command, "--whole"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.perf_counter() - began
    return Detection(took if done.returncode == 1 else None, done.stdout + done.stderr)


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
        finding = time_to_detect(patch, seed=options.seed, seconds=options.seconds)
        after = "not found" if finding.seconds is None else f"{finding.seconds:6.1f} s"
        sys.stdout.write(f"{patch.name:40} {after}  {violation_line(finding.output)}\n")


def violation_line(output: str) -> str:
    lines = [line for line in output.splitlines() if "violations; seed" in line]
    return lines[0][:160] if lines else ""


if __name__ == "__main__":
    main()
