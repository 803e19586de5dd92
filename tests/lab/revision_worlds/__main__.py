"""Run random worlds in which code is corrected under its name.

```
python -m tests.lab.revision_worlds --worlds 20000 --seed 0 --jobs 2
python -m tests.lab.revision_worlds --worlds 2000 --mutants             after how many worlds each wrong rule is found
```
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.lab.revision_worlds.mutants import MUTANTS, mutated
from tests.lab.revision_worlds.world import verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run worlds.

    Returns:
        Exit status: 1 when one of them was wrong.
    """
    parser = argparse.ArgumentParser(prog="revision_worlds")
    parser.add_argument("--worlds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    parser.add_argument("--mutants", nargs="*", choices=MUTANTS)
    options = parser.parse_args(arguments)
    if options.mutants is not None:
        return _judge_mutants(
            options.mutants or list(MUTANTS), range(options.seed, options.seed + options.worlds)
        )
    began, wrong, names = time.perf_counter(), 0, Counter[str]()
    seeds = range(options.seed, options.seed + options.worlds)
    with ProcessPoolExecutor(options.jobs) as pool:
        for seed, (fault, happened) in zip(seeds, pool.map(verdict, seeds, chunksize=10), strict=True):
            names += happened
            wrong += bool(fault)
            if fault and wrong <= options.show:
                sys.stdout.write(f"seed {seed}: {fault}\n")
                sys.stdout.flush()
    seconds = time.perf_counter() - began
    happened_text = ", ".join(f"{number} {name}" for name, number in names.most_common())
    sys.stdout.write(
        f"{options.worlds} worlds from seed {options.seed}, {wrong} wrong, {seconds:.0f} s: {happened_text}\n"
    )
    return 1 if wrong else 0


def found_in(name: str, seeds: Iterable[int]) -> tuple[int, str]:
    """The first world in which a wrong rule shows, and how; -1: in none."""
    with mutated(name):
        for seed in seeds:
            fault = verdict(seed)[0]
            if fault:
                return seed, fault
    return -1, ""


def _judge_mutants(names: Iterable[str], seeds: range) -> int:
    survived = 0
    for name in names:
        began = time.perf_counter()
        seed, fault = found_in(name, seeds)
        survived += seed < 0
        text = f"world {seed - seeds.start + 1}: {fault[:100]}" if seed >= 0 else "SURVIVES"
        sys.stdout.write(f"{name}: {MUTANTS[name][0]}: {text} ({time.perf_counter() - began:.1f} s)\n")
        sys.stdout.flush()
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
