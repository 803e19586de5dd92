"""A copy of the tree in which a mutant stands, and what tests and the simulator say there.

    python -m tests.lab.mutants.injection --seed 0 --seconds 120 fix-one.patch fix-two.patch

reverts the diff of each fix, as `git show COMMIT -- sqe_chain` prints it, and measures how long the simulator takes to find
that. The tree itself never changes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

from tests.lab.mutants.mutant import Mutant, Replacement

TREE: Final = Path(__file__).resolve().parents[3]
PACKAGE: Final = TREE / "sqe_chain"
LIMIT_S: Final = 600.0
"""A mutant that makes something wait for ever is ended after so long."""
_LEFT_OUT: Final = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist")


@dataclass(frozen=True)
class Finding:
    """What was found out about a mutant.

    Attributes:
        command: that looked for it.
        seconds: how long that took, with starting Python.
        killed_by: the test that failed, or the invariant that did not hold; None: none was found.
        green: nothing failed; if nothing has killed it either, something else went wrong.
        output: of the command.
        seed: of the schedule, where the simulator has found it.
    """

    command: str
    seconds: float
    killed_by: str | None
    green: bool
    output: str
    seed: int | None = None


class Copy:
    """A copy of the tree.

    Args:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Compared by content: of two versions of a file within a second, the bytecode of one would be taken for that of the other.
        compile_dir(folder / "sqe_chain", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    @contextmanager
    def injected(self, replacements: Sequence[Replacement]) -> Iterator[None]:
        """In this context the copy has a bug."""
        files = {one.file: self.folder / "sqe_chain" / one.file for one in replacements}
        sound = {name: file.read_text() for name, file in files.items()}
        try:
            for one in replacements:
                replace(files[one.file], one)
            yield
        finally:
            for name, file in files.items():
                file.write_text(sound[name])

    def tested(self, tests: Sequence[str], *options: str) -> Finding:
        """Run tests until one fails.

        Args:
            tests: as pytest names them.
            options: more of pytest's.
        """
        command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--durations=0", *options, *tests]
        done, seconds = self._run(command)
        # What fails before a test has begun, such as an import, is no test that has noticed something.
        found = re.search(r"^FAILED (\S+?\.py::[^\n]*?)(?: - |$)", done.stdout, re.MULTILINE)
        return Finding(
            _told(command), seconds, found and found[1], done.returncode == 0, done.stdout + done.stderr
        )

    def simulated(
        self, *, schedules: int = 1_000_000, seed: int = 0, seconds: float = LIMIT_S, jobs: int = 1
    ) -> Finding:
        """Run the simulator until an invariant does not hold.

        Args:
            schedules: how many at most.
            seed: of the first.
            seconds: time limit.
            jobs: processes.
        """
        options = ["--schedules", str(schedules), "--seed", str(seed), "--jobs", str(jobs)]
        # No shrinking: only whether and when it was found matters.
        command = ["-m", "tests.lab.simulator", *options, "--seconds", str(seconds), "--whole"]
        done, took = self._run(command)
        line = violation_line(done.stdout)
        found = re.search(r"seed (\d+): (\w[\w ]*):", line)
        said = done.stdout + done.stderr
        if not found:
            return Finding(_told(command), took, None, done.returncode == 0, said)
        return Finding(_told(command), took, found[2], green=False, output=said, seed=int(found[1]))

    def _run(self, command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], float]:
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(self.folder)},
                capture_output=True,
                text=True,
                check=False,
                timeout=2 * LIMIT_S,
            )
        except subprocess.TimeoutExpired:  # pytest ends what hangs earlier; the simulator cannot
            done = subprocess.CompletedProcess(command, -1, "", f"it took longer than {2 * LIMIT_S:.0f} s")
        return done, time.perf_counter() - began


@contextmanager
def copied(tree: Path = TREE) -> Iterator[Copy]:
    """A copy of the tree, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="sqe-mutants-") as folder:
        shutil.copytree(tree, folder, ignore=_LEFT_OUT, dirs_exist_ok=True)
        yield Copy(Path(folder))


def time_to_detect(
    defect: Path | tuple[Replacement, ...],
    *,
    seed: int = 0,
    seconds: float = 120.0,
    jobs: int = 1,
) -> Finding:
    """Inject a bug into a copy and run the simulator there.

    Args:
        defect: the diff of its fix, or texts to replace.
        seed: of the first schedule.
        seconds: time limit.
        jobs: processes of the simulator.
    """
    with copied() as copy:
        if isinstance(defect, Path):
            subprocess.run(["git", "apply", "--reverse", str(defect.resolve())], cwd=copy.folder, check=True)
            return copy.simulated(seed=seed, seconds=seconds, jobs=jobs)
        with copy.injected(defect):
            return copy.simulated(seed=seed, seconds=seconds, jobs=jobs)


def replace(file: Path, one: Replacement) -> None:
    """Replace a text that stands once in a file."""
    text = file.read_text()
    assert text.count(one.new) == 1, f"{one.file}: {one.new!r} stands there {text.count(one.new)} times"
    file.write_text(text.replace(one.new, one.old))


def misplaced(mutant: Mutant) -> list[str]:
    """What of a mutant cannot be put into the package: texts that do not stand there once, and what does not compile then."""
    files: dict[str, str] = {}
    found = []
    for one in mutant.replacements:
        text = files.get(one.file) or (PACKAGE / one.file).read_text()
        if text.count(one.new) != 1 or one.new == one.old:
            found.append(f"{mutant.name}: {one.file}: {one.new!r} stands there {text.count(one.new)} times")
        files[one.file] = text.replace(one.new, one.old)
    for file, text in files.items():
        try:
            compile(text, file, "exec")
        except SyntaxError as error:
            found.append(f"{mutant.name}: {file}: {error}")
    return found


def violation_line(output: str) -> str:
    """The line of the simulator's report that tells of a violation; empty if it has none."""
    lines = [line for line in output.splitlines() if "violations; seed" in line]
    return lines[0][:160] if lines else ""


def _told(command: Sequence[str]) -> str:
    return shlex.join(["python", *command])


def main() -> None:
    """Judge the diffs of fixes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patches", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    for patch in options.patches:
        finding = time_to_detect(patch, seed=options.seed, seconds=options.seconds)
        after = "not found" if finding.killed_by is None else f"{finding.seconds:6.1f} s"
        sys.stdout.write(f"{patch.name:40} {after}  {violation_line(finding.output)}\n")


if __name__ == "__main__":
    main()
