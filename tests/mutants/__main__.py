"""Judge mutants: put each into a copy of the tree, and see what kills it. `make mutants`.

    python -m tests.mutants                      all of them; writes the ledger and the tables of docs/reliability.md
    python -m tests.mutants --only marks         those whose name or subject has this text
    python -m tests.mutants --sample 6           a few, which change with the commit; writes nothing
    python -m tests.mutants --only marks --with tests/protocol    look for tests that kill them; writes nothing

It fails when a mutant survives, when a text that it replaces does not stand there once, and when what kills it fails
without it, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b

from tests.mutants.catalogue import ALL, CATALOGUE
from tests.mutants.injection import TREE, Copy, Finding, copied, misplaced
from tests.mutants.ledger import (
    BY_SIMULATOR,
    BY_TESTS,
    PAGE,
    Judgement,
    Known,
    page_with,
    read_ledger,
    table,
    write_ledger,
)
from tests.mutants.mutant import Mutant


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants.

    Returns:
        Exit status: 1 when one survives, or could not be judged.
    """
    options = _options(arguments)
    if options.tables:
        write(read_ledger())
        return 0
    chosen = _chosen(options)
    wrong = [text for one in chosen for text in misplaced(one)]
    if wrong:
        sys.stdout.write("\n".join([*wrong, ""]))
        return 1
    began = time.perf_counter()
    with copied() as copy:
        if not options.tests and not _is_green(copy, chosen):
            return 1
        fresh, seeds = _judge(copy, chosen, options)
    survivors = [f"{name} ({by})" for (name, by), one in fresh.items() if one.killed_by is None]
    unsound = [seed for seed in sorted(seeds) if not _is_sound(seed)]
    if not options.sample and not options.tests:
        write(read_ledger() | fresh)
    _tell(f"{len(chosen)} mutants in {time.perf_counter() - began:.0f} s, {len(survivors)} survived")
    for text in [*survivors, *(f"seed {seed} violates an invariant without any mutant" for seed in unsound)]:
        _tell(f"  {text}")
    return 1 if survivors or unsound else 0


def write(known: Known) -> None:
    """Write the ledger, and the tables of the page."""
    write_ledger(known, ALL)
    tables = {subject: table(own, known) for subject, own in CATALOGUE.items()}
    PAGE.write_text(page_with(PAGE.read_text(), tables))


def head() -> str:
    """The commit that is checked out; "unknown" where there is no repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=TREE, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def sample(count: int, seconds: float, commit: str, known: Known) -> list[Mutant]:
    """A few mutants, others for each commit, that are judged in so many seconds by the ledger. None of them needs servers."""
    found: list[Mutant] = []
    for one in sorted(ALL, key=lambda one: blake2b(f"{commit} {one.name}".encode()).digest()):
        judged = [known[one.name, by] for by in (BY_TESTS, BY_SIMULATOR) if (one.name, by) in known]
        took = sum(each.seconds for each in judged)
        if len(found) < count and judged and not one.servers and took <= seconds:
            found.append(one)
            seconds -= took
    return found


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--only", action="append", default=[], help="those whose name or subject has this text"
    )
    parser.add_argument("--sample", type=int, default=0, help="so many, chosen by the commit")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long a sample takes at most, by the ledger"
    )
    parser.add_argument(
        "--with", dest="tests", nargs="+", default=[], help="run these tests instead of those named"
    )
    parser.add_argument("--tables", action="store_true", help="only write the tables of the page again")
    parser.add_argument("--no-simulator", action="store_true", help="tests alone")
    parser.add_argument("--no-tests", action="store_true", help="the simulator alone")
    parser.add_argument(
        "--no-servers", action="store_true", help="leave out mutants whose tests need real servers"
    )
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    if options.sample:
        return sample(options.sample, options.seconds, head(), read_ledger())
    return [
        one
        for subject, own in CATALOGUE.items()
        for one in own
        if not (one.servers and options.no_servers)
        and (not options.only or any(text in one.name or text == subject for text in options.only))
    ]


def _is_green(copy: Copy, chosen: Sequence[Mutant]) -> bool:
    """Whether all tests that are named pass without any mutant."""
    tests = list(dict.fromkeys(test for one in chosen for test in one.tests))
    if not tests:
        return True
    finding = copy.tested(tests)
    _tell(f"{finding.seconds:6.1f} s  {len(tests)} tests without any mutant: {finding.killed_by or 'green'}")
    if not finding.green:
        sys.stdout.write(finding.output[-6_000:])
    return finding.green


def _judge(copy: Copy, chosen: Sequence[Mutant], options: argparse.Namespace) -> tuple[Known, set[int]]:
    """Judge mutants; returns what was found out, and the seeds by which the simulator has found some of them."""
    found, seeds, commit = Known(), set[int](), head()
    for one in chosen:
        for by, finding in _judged(copy, one, options):
            killed_by = finding.killed_by
            if killed_by is None and not finding.green:
                sys.stdout.write(finding.output[-4_000:])
            if finding.seed is not None:
                seeds.add(finding.seed)
                killed_by = f"{killed_by}, seed {finding.seed}"
            _tell(f"{finding.seconds:6.1f} s  {one.name}: {killed_by or 'SURVIVED'}")
            found[one.name, by] = Judgement(
                one.name, one.digest, by, killed_by, round(finding.seconds, 1), finding.command, commit
            )
    return found, seeds


def _judged(copy: Copy, one: Mutant, options: argparse.Namespace) -> list[tuple[str, Finding]]:
    found = []
    tests = options.tests or one.tests
    with copy.injected(one.replacements):
        if tests and not options.no_tests:
            found.append((BY_TESTS, copy.tested(tests)))
        if one.schedules and not options.no_simulator and not options.tests:
            found.append((BY_SIMULATOR, copy.simulated(schedules=one.schedules)))
    return found


def _is_sound(seed: int) -> bool:
    """Whether a schedule that has found a mutant violates nothing in this tree."""
    from sqe_chain.testing.simulator.campaign import run_seed  # noqa: PLC0415 - not needed for tests alone

    return run_seed(seed).violation is None


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
