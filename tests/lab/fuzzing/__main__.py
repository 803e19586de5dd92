"""Fuzz what is read: envelopes, chains in headers, keys, frames of write-ahead logs, JSON. `make fuzz`.

    ```
    python -m tests.lab.fuzzing --executions 200000 --jobs 2             from the committed corpus on
    python -m tests.lab.fuzzing --executions 20000000 --directory DIR    keeps its corpus and counts in DIR; again: it goes on
    python -m tests.lab.fuzzing --check FILE --target envelopes          one input again
    python -m tests.lab.fuzzing --minimise --directory DIR               writes what is worth keeping into tests/lab/fuzzing/corpus
    ```

An execution is one message (key, frame, text) read in all ways that there are and compared with the one right answer. Messages
are read in blocks of up to 64, as services read them. It ends with status 1 at the first input that is read wrongly, hangs,
or ends in an error without a name. That input, made smaller, is in DIR.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.lab.fuzzing.corpus import minimised, smaller
from tests.lab.fuzzing.engine import Current
from tests.lab.fuzzing.targets import CORPUS, TARGETS, known

TREE: Final = Path(__file__).parents[3]
SUMMED: Final = {"executions": "executions", "inputs": "blocks", "distinct": "different blocks"}
"""What processes count -> what it is called."""
_LONGEST: Final = 1_000
"""Characters of a line of an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, and print what came of it.

    Returns:
        Exit status: 1 when an input is read wrongly.
    """
    options = _options(arguments)
    if options.check:
        TARGETS[options.target[0]].check(Path(options.check).read_bytes(), set())
        return 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as spare:
        directory = Path(options.directory or spare)
        if options.minimise:
            return _minimise(directory)
        directory.mkdir(parents=True, exist_ok=True)
        began, before = time.perf_counter(), _counts(directory)
        failed = [
            name
            for job in _jobs(options, directory)
            if (name := job["target"]) and _ended(job, directory, options.keep)
        ]
        counts, states = _counts(directory), _states(directory)
        seconds = time.perf_counter() - began
        written = {
            "tool": "fuzz",
            "counts": {name: number - before.get(name, 0) for name, number in counts.items()},
            "violations": len(failed),
            "seed": options.seed,
            "seconds": round(seconds, 1),
            **states,
        }
        if options.json:
            Path(options.json).write_text(json.dumps(written, indent=1) + "\n")
        for name, number in (counts | states).items():
            sys.stdout.write(f"{number:14,}  {name}\n")
        sys.stdout.write(f"{seconds:14,.1f}  seconds\n")
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.fuzzing", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--executions", type=int, default=1_000_000, help="how many, over all runs in the directory"
    )
    parser.add_argument("--seconds", type=float, help="end after so long, however many those were")
    parser.add_argument("--jobs", type=int, default=1, help="processes for each target")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument(
        "--directory", help="keeps the corpus that is found, and counts; the next run goes on from there"
    )
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated"
    )
    parser.add_argument("--memory-mb", type=int, default=1_500, help="of each process")
    parser.add_argument("--json", help="write the counts to this file")
    parser.add_argument("--check", help="check the input in this file, and nothing else")
    parser.add_argument("--minimise", action="store_true", help="write the committed corpus again")
    options = parser.parse_args(arguments)
    options.keep = options.directory or "."
    options.target = options.target or sorted(TARGETS, key=lambda name: -TARGETS[name].share)
    return options


def _jobs(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """Run the targets one after the other, each in some processes; returns what is known of each process."""
    shares = {name: TARGETS[name].share for name in options.target}
    whole, found = sum(shares.values()), list[dict[str, Any]]()
    ends = None if options.seconds is None else time.monotonic() + options.seconds
    left = whole
    for name in reversed(options.target):  # the long one last: what the others leave of the time is its own
        state = directory / name
        state.mkdir(exist_ok=True)
        wanted = options.executions * shares[name] / whole / options.jobs
        seconds = None if ends is None else max(1.0, (ends - time.monotonic()) * shares[name] / left)
        left -= shares[name]
        running = []
        for job in range(options.jobs):
            done = _counts_in(state / f"job-{job}.json")
            rest = int(wanted) - done.get("executions", 0)
            if rest <= 0:
                continue
            run = done.get("runs", 0)
            command = [
                sys.executable,
                "-m",
                "tests.lab.fuzzing.worker",
                name,
                str(state),
                str(job),
                str(options.seed),
                str(run),
            ]
            command += [str(rest), str(seconds or 0), str(options.memory_mb)]
            running.append((job, subprocess.Popen(command, cwd=TREE, stderr=subprocess.PIPE, text=True)))
        for job, process in running:
            _, error = process.communicate()
            found.append({"target": name, "job": job, "status": process.returncode, "error": error})
    return found


def _ended(job: dict[str, Any], directory: Path, keep: str) -> bool:
    """Print how a process has ended. Returns whether it has found something."""
    if not job["status"]:
        return False
    name, state = job["target"], directory / job["target"]
    data = Current.read(state / f"current-{job['job']}.bin")
    lines = "\n".join(line[:_LONGEST] for line in job["error"].splitlines()[-20:])
    sys.stdout.write(f"{name}: {lines}\n")
    if job["status"] == 1:  # it failed as a program in Python does, so it may be tried again here
        data = smaller(TARGETS[name], data)
    file = Path(keep) / f"{name}-failed-{job['job']}.bin"
    file.write_bytes(data)
    sys.stdout.write(f"again: python -m tests.lab.fuzzing --target {name} --check {file}\n")
    return True


def _counts(directory: Path) -> dict[str, int]:
    """The counts of all runs in a directory, together and by target."""
    counts = dict.fromkeys(SUMMED.values(), 0)
    for name in TARGETS:
        jobs = [_counts_in(file) for file in sorted((directory / name).glob("job-*.json"))]
        for each, shown in SUMMED.items():
            counts[shown] += sum(job[each] for job in jobs)
        if jobs:
            counts[f"of {name}"] = sum(job["executions"] for job in jobs)
    return counts


def _states(directory: Path) -> dict[str, int]:
    """How far all runs in a directory have come; `part` distinguishes them."""
    jobs = [_counts_in(file) for name in TARGETS for file in sorted((directory / name).glob("job-*.json"))]
    envelopes = [_counts_in(file) for file in sorted((directory / "envelopes").glob("job-*.json"))]
    return {
        "pairs of lines": max((job["arcs"] for job in envelopes), default=0),
        "outcomes of envelopes": max((job["outcomes"] for job in envelopes), default=0),
        "MiB of memory at most": max((job["peak_mb"] for job in jobs), default=0),
        "part": sum(job["runs"] for job in jobs),
    }


def _counts_in(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _minimise(directory: Path) -> int:
    """Write the corpus that is committed: what is known, and what was found in a directory, without what adds nothing."""
    for name, target in TARGETS.items():
        found = [file.read_bytes() for file in sorted((directory / name / "corpus").glob("*.bin"))]
        kept = minimised(target, [*known(target), *found], Random(0))
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*.bin"):
            file.unlink()
        for file_name, data in kept.items():
            (folder / file_name).write_bytes(data)
        sys.stdout.write(f"{name}: {len(kept)} inputs, {sum(map(len, kept.values())):,} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
