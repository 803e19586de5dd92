"""The command of a kind of random worlds: runs many, or finds after how many each wrong rule shows."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class WorldProgram:
    """A kind of worlds.

    Attributes:
        name: of the program.
        verdict: of a seed: what is wrong in its world, or nothing; and how often what happened.
        mutants: name of a wrong rule -> its text, and what else it is made of.
        mutated: puts a wrong rule into the package, as long as the context lasts.
    """

    name: str
    verdict: Callable[[int], tuple[str, Counter[str]]]
    mutants: Mapping[str, Sequence[Any]]
    mutated: Callable[[str], AbstractContextManager[None]]

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run worlds.

        Returns:
            Exit status: 1 when one of them was wrong.
        """
        parser = argparse.ArgumentParser(prog=self.name)
        parser.add_argument("--worlds", type=int, default=1_000)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--jobs", type=int, default=1)
        parser.add_argument("--show", type=int, default=5)
        parser.add_argument("--mutants", nargs="*", choices=self.mutants)
        parser.add_argument("--json", default="", help="write the counts into this file")
        options = parser.parse_args(arguments)
        if options.mutants is not None:
            return self._judge_mutants(
                options.mutants or list(self.mutants), range(options.seed, options.seed + options.worlds)
            )
        began, wrong, names = time.perf_counter(), 0, Counter[str]()
        seeds = range(options.seed, options.seed + options.worlds)
        with ProcessPoolExecutor(options.jobs) as pool:
            for seed, (fault, happened) in zip(
                seeds, pool.map(self.verdict, seeds, chunksize=10), strict=True
            ):
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
        if options.json:
            done = {
                "tool": self.name,
                "counts": {"worlds": options.worlds},
                "violations": wrong,
                "seed": options.seed,
                "seconds": round(seconds, 1),
                "happened": names,
            }
            Path(options.json).write_text(json.dumps(done) + "\n")
        return 1 if wrong else 0

    def found_in(self, name: str, seeds: Iterable[int]) -> tuple[int, str]:
        """The first world in which a wrong rule shows, and how; -1: in none."""
        with self.mutated(name):
            for seed in seeds:
                fault = self.verdict(seed)[0]
                if fault:
                    return seed, fault
        return -1, ""

    def _judge_mutants(self, names: Iterable[str], seeds: range) -> int:
        survived = 0
        for name in names:
            began = time.perf_counter()
            seed, fault = self.found_in(name, seeds)
            survived += seed < 0
            text = f"world {seed - seeds.start + 1}: {fault[:100]}" if seed >= 0 else "SURVIVES"
            sys.stdout.write(
                f"{name}: {self.mutants[name][0]}: {text} ({time.perf_counter() - began:.1f} s)\n"
            )
            sys.stdout.flush()
        return 1 if survived else 0
