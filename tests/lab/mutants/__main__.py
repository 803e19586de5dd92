"""Judge mutants: put each into a copy of the tree, and see what kills it. `make mutants`.

    ```
    python -m tests.lab.mutants                      all that have changed; writes the ledger, and the table of docs/reliability.md
    python -m tests.lab.mutants --again              all of them, whatever is known
    python -m tests.lab.mutants --only marks         those whose name or subject has this text
    python -m tests.lab.mutants --quick              those that `make test` judges each time; writes nothing
    python -m tests.lab.mutants --jobs 2             two at once, each in a copy of its own
    python -m tests.lab.mutants --sweep --only marks --sample 20    20 of those made of each line of the core; writes nothing
    python -m tests.lab.mutants --only marks --with tests/protocol    look for tests that kill them; writes nothing
    ```

It fails when a mutant survives, when what it names is gone, and when what kills it fails without it, too. A judgement is
repeated when the mutant, a function that it changes, its tests, or the simulator have changed. The ledger is written after
each mutant, so a run that was interrupted goes on where it was. The simulator first tries the schedule that has found a
mutant before. When that one does not find it any more, it begins with seed 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from queue import SimpleQueue

from tests.lab.mutants import sweep
from tests.lab.mutants.catalogue import ALL, CATALOGUE, QUICK
from tests.lab.mutants.injection import Copy, Finding, code_of, copied, path_of, why_not_judged
from tests.lab.mutants.ledger import (
    BY_TESTS,
    PAGE,
    Judgement,
    Known,
    page_with,
    read_ledger,
    table,
    ways_of,
    write_ledger,
)
from tests.lab.mutants.mutant import Mutant
from tests.support.commit import commit


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutants.

    Returns:
        Exit status: 1 when one survives, or could not be judged.
    """
    options, began = _options(arguments), time.perf_counter()
    if options.sweep:
        return _sweep(options)
    chosen, known = _chosen(options), read_ledger()
    if options.tables:
        write(known)
        return 0
    if wrong := [text for one in chosen if (text := why_not_judged(one))]:
        _show("\n".join(wrong))
        return 1
    left = [(one, ways) for one in chosen if (ways := _ways(one, options, known))]
    keeps = not options.quick and not options.tests
    fresh = Known()
    with ExitStack() as stack:
        copies = SimpleQueue[Copy]()
        for _ in range(max(1, min(options.jobs, len(left)))):
            copies.put(stack.enter_context(copied()))
        if keeps and not _is_green(copies, [one for one, ways in left if BY_TESTS in ways]):
            return 1
        for judged in _judge(copies, left, options, known):
            fresh |= judged
            if keeps:
                write_ledger(known | fresh, ALL)
    if keeps:
        write(known | fresh)
    return _summary(chosen, left, fresh, time.perf_counter() - began)


def _sweep(options: argparse.Namespace) -> int:
    """Judge mutants that are made of the core; returns the exit status."""
    chosen, survivors = sweep.made(options.only, options.sample), []
    with copied() as copy:
        for one in chosen:
            finding = sweep.judged(copy, one)
            # What ends in another way than by a failed test, an import that fails for example, is noticed by all of them.
            _show(
                f"{finding.seconds:6.1f} s  {one.name}: {finding.killed_by or ('SURVIVED' if finding.green else 'killed')}"
            )
            if finding.green:
                survivors.append(one.name)
    _show("\n".join([f"{len(chosen)} mutants, {len(survivors)} survived", *survivors]))
    return 1 if survivors else 0


def write(known: Known) -> None:
    """Write the ledger, and the table of the page."""
    write_ledger(known, ALL)
    PAGE.write_text(page_with(PAGE.read_text(), {"mutants": table(CATALOGUE, known)}))


def is_known(mutant: Mutant, by: str, known: Known) -> bool:
    """Whether it was found out what kills a mutant in this way, and nothing has changed since that this depends on."""
    found = known.get((mutant.name, by))
    if found is None or found.killed_by is None or found.digest != mutant.digest:
        return False
    return found.code == code_of(mutant, by_tests=by == BY_TESTS)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--only", action="append", default=[], help="those whose name or subject has this text")
    add("--quick", action="store_true", help="those that `make test` judges each time")
    add("--with", dest="tests", nargs="+", default=[], help="run these tests instead of those named")
    add(
        "--sweep",
        action="store_true",
        help="those that are made of each line of the core, in place of those with names",
    )
    add("--sample", type=int, default=0, help="number of mutants of a sweep")
    add("--jobs", type=int, default=1, help="number of mutants at once, each in a copy of the tree")
    add("--again", action="store_true", help="also those that are known, with nothing changed")
    add("--tables", action="store_true", help="only write the table of the page again")
    add("--no-simulator", action="store_true", help="tests alone")
    add("--no-servers", action="store_true", help="skip mutants whose tests need real servers")
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    return [
        one
        for subject, own in CATALOGUE.items()
        for one in own
        if not (one.servers and options.no_servers)
        and not (options.quick and one.name not in QUICK)
        and (not options.only or any(text in one.name or text == subject for text in options.only))
    ]


def _is_green(copies: SimpleQueue[Copy], chosen: Sequence[Mutant]) -> bool:
    """Whether all tests that are named pass without any mutant."""
    tests = list(dict.fromkeys(path_of(test) for one in chosen for test in one.tests))
    if not tests:
        return True
    copy = copies.get()
    finding = copy.tested(tests)
    copies.put(copy)
    _show(f"{finding.seconds:6.1f} s  {len(tests)} tests without any mutant: {finding.killed_by or 'green'}")
    if not finding.green:
        _show(finding.output[-6_000:])
    return finding.green


def _ways(mutant: Mutant, options: argparse.Namespace, known: Known) -> list[str]:
    """In which ways a mutant is still to be judged; `make test` asks its tests alone."""
    if options.tests:
        return [BY_TESTS]
    wanted = [by for by in ways_of(mutant) if by == BY_TESTS or not (options.no_simulator or options.quick)]
    return [by for by in wanted if options.again or options.quick or not is_known(mutant, by, known)]


def _judge(
    copies: SimpleQueue[Copy],
    left: Sequence[tuple[Mutant, Sequence[str]]],
    options: argparse.Namespace,
    known: Known,
) -> Iterator[Known]:
    """Judge mutants, as many at once as there are copies; gives what was found out about each."""

    def judged(mutant: Mutant, ways: Sequence[str]) -> Known:
        copy, found = copies.get(), Known()
        try:
            with copy.injected(mutant.edits):
                for by in ways:
                    before = known.get((mutant.name, by))
                    finding = (
                        copy.tested(options.tests or [path_of(test) for test in mutant.tests])
                        if by == BY_TESTS
                        else _simulated(copy, mutant, before.seed if before is not None else None)
                    )
                    found[mutant.name, by] = _judgement(mutant, by, finding)
        finally:
            copies.put(copy)
        return found

    with ThreadPoolExecutor(copies.qsize()) as pool:
        for done in as_completed([pool.submit(judged, one, ways) for one, ways in left]):
            yield done.result()


def _simulated(copy: Copy, mutant: Mutant, hint: int | None) -> Finding:
    """Run the simulator: first the schedule that has found the mutant before, if one has, then from seed 0 on."""
    if hint is not None:
        finding = copy.simulated(schedules=1, seed=hint)
        if finding.killed_by is not None:
            return finding
    return copy.simulated(schedules=mutant.schedules)


def _judgement(mutant: Mutant, by: str, finding: Finding) -> Judgement:
    """What was found out, which is printed, too."""
    if finding.killed_by is None and not finding.green:
        _show(finding.output[-4_000:])
    _show(f"{finding.seconds:6.1f} s  {mutant.name}: {finding.killed_by or 'SURVIVED'}")
    code, seconds = code_of(mutant, by_tests=by == BY_TESTS), round(finding.seconds, 1)
    return Judgement(mutant.name, mutant.digest, by, finding.killed_by, seconds, commit()[:12], code)


def _summary(chosen: Sequence[Mutant], left: Sequence[object], fresh: Known, seconds: float) -> int:
    """Print what came of it; returns the exit status."""
    survivors = [f"{name} ({by})" for (name, by), one in fresh.items() if one.killed_by is None]
    seeds = {one.seed for one in fresh.values() if one.seed is not None}
    unsound = [seed for seed in sorted(seeds) if not _is_sound(seed)]
    _show(
        f"{len(chosen)} mutants, {len(chosen) - len(left)} of them unchanged since they were judged; {len(left)} in "
        f"{seconds:.0f} s, {len(survivors)} survived"
    )
    for text in [*survivors, *(f"seed {seed} violates an invariant without any mutant" for seed in unsound)]:
        _show(f"  {text}")
    return 1 if survivors or unsound else 0


def _is_sound(seed: int) -> bool:
    """Whether a schedule that has found a mutant violates nothing in this tree."""
    from tests.lab.simulator.campaign import run_seed  # noqa: PLC0415 - not needed for tests alone

    return run_seed(seed).violation is None


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
