"""Explore all interleavings of a few runs: ``make explore-states ARGS="aggregation --directory DIR"``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from sqe_chain.testing.invariants import Violation
from tests.lab.explorer.configurations import CONFIGURATIONS
from tests.lab.explorer.coverage import Coverage, unexpected
from tests.lab.explorer.exploring import follow
from tests.lab.explorer.reporting import Result, explore


def main(arguments: list[str] | None = None) -> int:
    """Explore configurations, print counts and, where something is broken, the shortest path to it.

    Args:
        arguments: of the command line.

    Returns:
        Exit status: 1 on a violation.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.lab.explorer", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="configurations (default: small); `list` shows them"
    )
    parser.add_argument("--directory", type=Path, help="keeps all that is found, and goes on from there")
    parser.add_argument(
        "--jobs", type=int, default=1, help="configurations that are explored at the same time"
    )
    parser.add_argument("--states", type=int, help="end each after this number of states")
    parser.add_argument("--seconds", type=float, help="end each after so long")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts there at the end")
    parser.add_argument("--path", help="take these steps, and no others")
    parser.add_argument(
        "--faults",
        type=int,
        choices=[1, 2],
        help="one run at a time: count which faults were reached, alone, or in pairs",
    )
    options = parser.parse_args(arguments)
    names = options.names or ["small"]
    if names == ["list"]:
        sys.stdout.writelines(
            f"{configuration.name:20}{configuration.text}\n" for configuration in CONFIGURATIONS.values()
        )
        return 0
    unknown = [name for name in names if name not in CONFIGURATIONS]
    if unknown:
        parser.error(f"no configuration {', '.join(unknown)}; there are {', '.join(CONFIGURATIONS)}")
    if options.path is not None:
        return _follow(names[0], options.path)
    if options.faults:
        return _cover(names, options.faults, options.json)
    began = time.perf_counter()
    results = list(_explore_all(names, options))
    if options.json:
        options.json.write_text(json.dumps(_summary(results, time.perf_counter() - began)) + "\n")
    return 1 if any(result.violation for result in results) else 0


def _follow(name: str, path: str) -> int:
    violation = follow(CONFIGURATIONS[name], path, lambda step, text: print(f"{step:12}{text}"))  # noqa: T201 - a command
    sys.stdout.write(f"{violation or 'no violation'}\n")
    return 1 if violation else 0


def _cover(names: list[str], faults: int, file: Path | None) -> int:
    """Count faults; fails if one is not reached that ought to be, or the other way round."""
    began, counts, wrong = time.perf_counter(), Counter[str](), list[str]()
    violation = ""
    for name in names:
        coverage = Coverage(CONFIGURATIONS[name], faults)
        try:
            coverage.run()
        except Violation as error:
            violation = str(error)
        sys.stdout.write(f"{coverage.table()}\n{coverage.states:,} states; {coverage.counts()}\n")
        counts.update(states=coverage.states, **coverage.counts())
        wrong += [f"{name}: {text}" for text in unexpected(coverage)]
    sys.stdout.writelines(f"{text}\n" for text in [*wrong, violation] if text)
    if file:
        summary = {"tool": "explorer --faults", "counts": dict(counts), "configurations": " ".join(names)}
        seconds = round(time.perf_counter() - began, 1)
        found_wrong = {"violations": int(bool(violation)), "unexpected": len(wrong), "seconds": seconds}
        file.write_text(json.dumps(summary | found_wrong) + "\n")
    return 1 if wrong or violation else 0


def _explore_all(names: list[str], options: argparse.Namespace) -> list[Result]:
    results = []
    if options.jobs == 1 or len(names) == 1:
        for name in names:
            results.append(explore(name, options))
            sys.stdout.write(f"{results[-1]}\n")
        return results
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for result in pool.map(explore, names, [options] * len(names)):
            sys.stdout.write(f"{result}\n")
            results.append(result)
    return results


def _summary(results: list[Result], seconds: float) -> dict[str, object]:
    counts: dict[str, int] = {}
    for result in results:
        counts[f"states_{result.name}"] = result.counts["states"]
        for name, count in result.counts.items():
            counts[name] = counts.get(name, 0) + count
    return {
        "tool": "explorer",
        "counts": counts,
        "configurations": " ".join(one.name for one in results),
        "MiB of memory at most": max(one.memory_mib for one in results),
        "whole": all(one.whole for one in results),
        "violations": sum(bool(one.violation) for one in results),
        "violation": next((one.violation for one in results if one.violation), ""),
        "path": next((" ".join(name for name, _ in one.path) for one in results if one.violation), ""),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
