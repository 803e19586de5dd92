"""One process of the fuzzer: `python -m tests.lab.fuzzing.worker TARGET DIR JOB SEED RUN EXECUTIONS SECONDS MEMORY_MB`."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
import time
from pathlib import Path
from random import Random

from tests.lab.fuzzing.engine import HANGS_S, Current, Engine, limited, name_of, until
from tests.lab.fuzzing.targets import TARGETS, known


def main(name: str, directory: Path, job: int, seed: int, run: int, limits: tuple[int, float, int]) -> None:
    """Fuzz one target; counts are written every second, so that whatever ends this loses few.

    Args:
        name: of the target.
        directory: of its corpus and its counts.
        job: number of this process.
        seed: of all that is drawn.
        run: which one in this directory this is; another one draws otherwise.
        limits: executions, seconds (0: any), MiB of memory.
    """
    executions, seconds, memory_mb = limits
    target, corpus, counts = TARGETS[name], directory / "corpus", directory / f"job-{job}.json"
    corpus.mkdir(exist_ok=True)
    before = json.loads(counts.read_text()) if counts.exists() else {}
    limited(memory_mb)
    current = Current(directory / f"current-{job}.bin")
    engine = Engine(target, Random(f"{seed} {name} {job} {run}"))
    began = time.perf_counter()

    def write_counts() -> None:
        """Write counts and what was found."""
        while engine.fresh:
            data = engine.fresh.pop()
            (corpus / name_of(data)).write_bytes(data)
        written = {
            "runs": run + 1,
            "executions": before.get("executions", 0) + engine.executions,
            "inputs": before.get("inputs", 0) + engine.inputs,
            "distinct": before.get("distinct", 0) + engine.distinct,
            "seconds": before.get("seconds", 0) + time.perf_counter() - began,
            "arcs": len(engine.coverage.arcs),
            "outcomes": len(engine.outcomes),
            "peak_mb": max(
                before.get("peak_mb", 0), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            ),
        }
        spare = counts.with_suffix(".new")
        spare.write_text(json.dumps(written))
        spare.replace(counts)

    for data in [*known(target), *(file.read_bytes() for file in sorted(corpus.glob("*.bin")))]:
        current(data)
        faulthandler.dump_traceback_later(4 * HANGS_S, exit=True)
        engine.learn(data)
        engine.corpus.append(data)
    engine.executions = engine.inputs = 0  # what was known counts once, when it was found
    try:
        for _ in until(engine, executions, seconds or None, current):
            # For what hangs outside of Python, where no signal is handled.
            faulthandler.dump_traceback_later(4 * HANGS_S, exit=True)
            write_counts()
    finally:
        write_counts()


if __name__ == "__main__":
    _, given_name, given_directory, *numbers = sys.argv
    given_job, given_seed, given_run, given_executions = map(int, numbers[:4])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main(
        given_name, Path(given_directory), given_job, given_seed, given_run,
        (given_executions, float(numbers[4]), int(numbers[5])),
    )  # fmt: skip
