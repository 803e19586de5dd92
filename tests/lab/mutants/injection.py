"""A copy of the tree with a mutant, and what tests and the simulator find there. The tree itself never changes."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

from tests.lab.mutants.edits import Edit, MisplacedError, Package, digest_of
from tests.lab.mutants.mutant import Mutant

TREE: Final = Path(__file__).resolve().parents[3]
PACKAGE: Final = TREE / "sqe_chain"
SIMULATOR: Final = "tests.lab.simulator"
REFERENCE: Final = "tests.lab.reference"
LIMIT_S: Final = 600.0
"""A mutant that makes something wait without end is ended after this time."""
LIMIT_BYTES: Final = 6 << 30
"""Address space of a simulator: a mutant may gather without end."""
_NOT_COPIED: Final = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist")


@dataclass(frozen=True)
class Finding:
    """What was found out about a mutant.

    Attributes:
        seconds: how long that took, with starting Python.
        killed_by: the test that failed, or the invariant that did not hold and the seed; None: none was found.
        green: nothing failed; if nothing has killed it either, something else went wrong.
        output: of the command.
        seed: of the schedule, where the simulator has found it.
    """

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
        compile_dir(folder / PACKAGE.name, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    @contextmanager
    def injected(self, edits: Sequence[Edit]) -> Iterator[None]:
        """In this context the copy has a bug."""
        texts = package().mutated(edits)
        files = {self.folder / file.relative_to(TREE): text for file, text in texts.items()}
        sound = {file: file.read_text() for file in files}
        try:
            for file, text in files.items():
                file.write_text(text)
            yield
        finally:
            for file, text in sound.items():
                file.write_text(text)

    def tested(self, tests: Sequence[str]) -> Finding:
        """Run tests until one fails.

        Args:
            tests: as pytest names them.
        """
        done, seconds = self._run(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests])
        # What fails before a test has begun, such as an import, is no test that has noticed something.
        failed = re.search(r"^FAILED \S*?(\w+)\.py::([^\n]*?)(?: - |$)", done.stdout, re.MULTILINE)
        killed_by = f"{failed[1]}::{failed[2]}" if failed else None
        return Finding(seconds, killed_by, done.returncode == 0, done.stdout + done.stderr)

    def simulated(self, *, schedules: int, seed: int = 0, jobs: int = 1) -> Finding:
        """Run the simulator until an invariant does not hold.

        Args:
            schedules: how many at most.
            seed: of the first.
            jobs: processes.
        """
        numbers = {"--schedules": schedules, "--seed": seed, "--jobs": jobs, "--seconds": LIMIT_S}
        # No shrinking: only whether and when it was found matters.
        done, took = self._run(
            ["-m", SIMULATOR, *(str(part) for pair in numbers.items() for part in pair), "--whole"],
            limits=("prlimit", f"--as={LIMIT_BYTES}"),
        )
        violated = re.search(r"violations; seed (\d+): (\w[\w ]*):", done.stdout)
        output = done.stdout + done.stderr
        if not violated:
            return Finding(took, None, done.returncode == 0, output)
        invariant, seed = violated[2], int(violated[1])
        return Finding(took, f"{invariant}, seed {seed}", green=False, output=output, seed=seed)

    def _run(
        self, command: Sequence[str], limits: Sequence[str] = ()
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        began = time.perf_counter()
        # Bytecode is written, whatever the environment asks for: else compiling the tests takes most of the time.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        try:
            done = subprocess.run(
                [*limits, sys.executable, *command],
                cwd=self.folder,
                env=environment | {"PYTHONPATH": str(self.folder)},
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
        shutil.copytree(tree, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
        yield Copy(Path(folder))


@cache
def package() -> Package:
    """The package, as it is in this tree."""
    return Package(PACKAGE)


@cache
def tests() -> Package:
    """The tests."""
    return Package(TREE / "tests")


def found(test: str) -> tuple[Path, ast.stmt]:
    """A test: its file, and its tree.

    Args:
        test: as mutants name it; see `Mutant`.

    Raises:
        MisplacedError: it is not there, or twice.
    """
    stem, _, name = test.partition("[")[0].partition("::")
    try:
        return tests().find(f"{stem}:{name.replace('::', '.')}")
    except MisplacedError:
        of_class, _, rule = name.partition("::")
        rules = [node for node in _shipped_rules() if rule and node.name == rule]
        if len(rules) != 1:
            raise
        return tests().find(f"{stem}:{of_class}")[0], rules[0]


def _shipped_rules() -> Iterator[ast.FunctionDef]:
    """The rules of `sqe_chain.testing.contracts`, which classes of tests inherit."""
    for file in sorted((PACKAGE / "testing" / "contracts").glob("*.py")):
        for node in ast.walk(package().tree(file)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node


def path_of(test: str) -> str:
    """A test as pytest names it.

    Args:
        test: as mutants name it; see `Mutant`.
    """
    return f"{found(test)[0].relative_to(TREE)}::{test.partition('::')[2]}"


def why_not_judged(mutant: Mutant) -> str | None:
    """Why a mutant cannot be judged, and what to do; None if it can."""
    try:
        package().mutated(mutant.edits)
        for test in mutant.tests:
            found(test)
    except (MisplacedError, SyntaxError) as error:
        return (
            f"mutant {mutant.name!r}: {error}. Expected a function and an operation that breaks this rule, and a test that "
            "notices. Name where the rule is now, or delete the mutant if there is no such rule any more; then judge it: "
            f"python -m {__package__} --only {mutant.name!r}"
        )
    return None


def code_of(mutant: Mutant, *, by_tests: bool) -> str:
    """Digest of what a judgement depends on most: the functions that the mutant changes, and its tests, or the simulator."""
    trees = [package().find(place)[1] for place, _ in mutant.edits]
    if by_tests:
        return digest_of(*trees, *(found(test)[1] for test in mutant.tests))
    return digest_of(
        *trees, *(file.read_text() for name in (SIMULATOR, REFERENCE) for file in _files_of(name))
    )


def _files_of(name: str) -> list[Path]:
    """The modules of a package."""
    spec = find_spec(name)
    assert spec is not None, name
    assert spec.submodule_search_locations is not None, name
    return sorted(Path(spec.submodule_search_locations[0]).glob("*.py"))
