"""Run random worlds of event time, and make the first wrong one of each kind small.

```
python -m tests.lab.event_time_worlds --worlds 20000 --seed 0 --jobs 2
python -m tests.lab.event_time_worlds --world '["tumbling",…]'         one world again
python -m tests.lab.event_time_worlds --worlds 1000 --without slow,pause --kinds tumbling,table
python -m tests.lab.event_time_worlds --worlds 20 --engine spark        on a real broker: in-process, workers or spark
```
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.lab.event_time_worlds.drawing import TRAITS, draw
from tests.lab.event_time_worlds.exploded import EXPLODED, judge_exploded
from tests.lab.event_time_worlds.judging import judge
from tests.lab.event_time_worlds.on_engines import ENGINES, broker_and_engine, draw_for_engines
from tests.lab.event_time_worlds.running import InMemory, Wrong
from tests.lab.event_time_worlds.shrinking import shrunk
from tests.lab.event_time_worlds.world import KINDS, World

_SHARE = 25
"""Worlds that a process runs at a time."""
_LONGEST = 600
"""Characters of what is wrong that are printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run worlds.

    Returns:
        Exit status: 1 when one of them was wrong.
    """
    options = _options(arguments)
    if options.world:
        fault = verdict(World.of(options.world))
        sys.stdout.write(f"{fault or 'right'}\n")
        return 1 if fault else 0
    began, wrong = time.perf_counter(), list[tuple[int, str]]()
    kinds, without = tuple(options.kinds.split(",")), frozenset(filter(None, options.without.split(",")))
    seeds = range(options.seed, options.seed + options.worlds)
    found_in = (
        _verdicts_on(options.engine, seeds, kinds)
        if options.engine
        else _verdicts(seeds, kinds, without, options.jobs)
    )
    for found in found_in:
        for seed, fault in found[: max(0, options.show - len(wrong))]:
            sys.stdout.write(f"seed {seed}: {fault[:_LONGEST]}\n")
            sys.stdout.flush()
        wrong += found
    seconds = time.perf_counter() - began
    if wrong and options.shrink and not options.engine:
        shown = set[str]()
        for seed, fault in wrong:
            if (name := fault.split(":")[0]) not in shown and len(shown) < options.shrink:
                shown.add(name)
                _show_small(draw(seed, kinds=kinds, without=without), name)
    sys.stdout.write(
        f"{options.worlds} worlds from seed {options.seed}, {len(wrong)} wrong, {seconds:.0f} s\n"
    )
    if options.json:
        counts = {
            "tool": "worlds",
            "counts": {"worlds": options.worlds},
            "violations": len(wrong),
            "seed": options.seed,
            "seconds": round(seconds, 1),
        }
        Path(options.json).write_text(json.dumps(counts, indent=1) + "\n")
    return 1 if wrong else 0


def verdict(world: World, where: InMemory | None = None) -> str:
    """What is wrong with a world, in memory or elsewhere; empty if nothing is."""
    try:
        (judge_exploded if world.exploded else judge)(world, where)
    except Wrong as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a service raises is wrong
        return f"raised {type(error).__name__}: {error}"
    return ""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.event_time_worlds", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--worlds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kinds", default=",".join((*KINDS, *EXPLODED)), help="what readers may do")
    parser.add_argument(
        "--engine",
        default="",
        choices=ENGINES,
        help="run readers on it, on a broker that is started for them",
    )
    parser.add_argument("--without", default="", help=f"traits that no world has: {', '.join(TRAITS)}")
    parser.add_argument("--world", default="", help="run this one: a line of JSON")
    parser.add_argument("--shrink", type=int, default=1, help="wrong worlds to make small, one of each kind")
    parser.add_argument("--show", type=int, default=20, help="wrong worlds to print")
    parser.add_argument("--json", default="", help="write the counts into this file")
    return parser.parse_args(arguments)


def _verdicts(
    seeds: range, kinds: tuple[str, ...], without: frozenset[str], jobs: int
) -> Iterator[list[tuple[int, str]]]:
    shares = [seeds[at : at + _SHARE] for at in range(0, len(seeds), _SHARE)]
    run = partial(_wrong_of, kinds=kinds, without=without)
    if jobs == 1:
        yield from map(run, shares)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, shares)


def _verdicts_on(engine: str, seeds: range, kinds: tuple[str, ...]) -> Iterator[list[tuple[int, str]]]:
    with broker_and_engine(engine) as next_place:
        for seed in seeds:
            fault = verdict(draw_for_engines(seed, kinds), next_place())
            yield [(seed, fault)] if fault else []


def _wrong_of(seeds: range, kinds: tuple[str, ...], without: frozenset[str]) -> list[tuple[int, str]]:
    verdicts = ((seed, verdict(draw(seed, kinds=kinds, without=without))) for seed in seeds)
    return [(seed, one) for seed, one in verdicts if one]


def _show_small(world: World, name: str) -> None:
    small = shrunk(world, lambda one: verdict(one).split(":")[0] == name)
    sys.stdout.write(f"{verdict(small)}\n  python -m tests.lab.event_time_worlds --world '{small.text()}'\n")


if __name__ == "__main__":
    sys.exit(main())
