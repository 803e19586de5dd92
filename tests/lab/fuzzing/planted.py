"""Bugs that are put into a copy of the package, and how long the fuzzer takes to find them.

python -m tests.lab.fuzzing.planted               all of them; writes planted.jsonl
python -m tests.lab.fuzzing.planted --only TEXT   those whose name has this text
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.lab.mutants.edits import operation
from tests.lab.mutants.injection import Copy, copied
from tests.lab.mutants.mutant import Mutant, mutant
from tests.reliability.ledger import head

LEDGER: Final = Path(__file__).with_name("planted.jsonl")
SECONDS: Final = 300.0

BUGS: Final[dict[str, tuple[Mutant, ...]]] = {
    "envelopes": (
        mutant(
            "columns take a time one bit too long", ("Columns._time", operation("boundary(_LAST_OF_TIME)"))
        ),
        mutant("columns take positions of 33 links", ("Columns._agree", operation("plus(MAX_LINKS, 1)"))),
        mutant(
            "bytes after the checksum are no matter where a chain is in headers",
            (
                "open_carried",
                operation("gives(open_head, \"open_head(envelope[:envelope.rfind(b'}') + 5])\")"),
            ),
        ),
        mutant(
            "a position of another length on a lane has the name of another error",
            (
                "PartitionMarks._wrong_length",
                operation(
                    "returns(\"__import__('sqe_chain.errors').errors.InconsistentEnvelope('of another length')\")"
                ),
            ),
        ),
        mutant(
            "all lanes of a run are compared with the mark of the first one",
            (
                "_accept_envelopes",
                operation("instead(lanes.get, firsts, '[lanes.get(sorted_lanes[0].item())] * len(firsts)')"),
            ),
        ),
        mutant(
            "of several headers `sqe-chain` the first one counts",
            ("chain_header", operation("instead(len, chains, 'len(chains) > 2')")),
        ),
        mutant(
            "runs do not compare `of` of siblings with the mark",
            ("_witnesses_agree", operation("instead(mark.of, marks, 'of[firsts]')")),
        ),
        mutant(
            "a source with a decoder takes envelopes without a type",
            ("Columns.__init__", operation("drop(_texts)")),
        ),
        mutant(
            "a payload that is there may be listed as deleted",
            ("check_fields", operation("instead(head.deleted, 'head.deleted and head.size')")),
        ),
        mutant(
            "what protobuf does not know may not be repeated in some encodings",
            ("check_once", operation("instead(groups, _ONCE, 'number not in (_MORE, 13)')")),
        ),
    ),
    "frames": (
        mutant(
            "a frame of a write-ahead log may say more than it holds",
            ("record:decode", operation("never(at, end, nth=2)")),
        ),
    ),
    "texts": (
        mutant(
            "marks nested without end have no name",
            ("ReplayFilter.load", operation("without(RecursionError)")),
        ),
    ),
}
"""Target -> bugs that it finds."""
ALL: Final = {one.name: one for own in BUGS.values() for one in own}


@dataclass(frozen=True)
class Found:
    """How the fuzzer has found a bug.

    Attributes:
        bug: its name.
        digest: of its functions and operations.
        seconds: how long that took, with starting Python; None: it was not found.
        executions: messages read until then.
        difference: what was wrong about the input.
        commit: on which.
    """

    bug: str
    digest: str
    seconds: float | None
    executions: int
    difference: str
    commit: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for all of them.

    Returns:
        Exit status: 1 when one is not found.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.lab.fuzzing.planted")
    parser.add_argument("--only", default="", help="those whose name has this text")
    options = parser.parse_args(arguments)
    known = {one.bug: one for one in read()}
    missed = False
    with copied() as copy:
        for target, bug in (
            (target, bug) for target, own in BUGS.items() for bug in own if options.only in bug.name
        ):
            found = known[bug.name] = _sought(copy, target, bug)
            missed = missed or found.seconds is None
            sys.stdout.write(f"{found.seconds or 'not found':>9}  {bug.name}: {found.difference}\n")
            sys.stdout.flush()
    lines = [
        json.dumps(asdict(known[one.name]), ensure_ascii=False) for one in ALL.values() if one.name in known
    ]
    LEDGER.write_text("".join(f"{line}\n" for line in lines))
    return int(missed)


def read() -> list[Found]:
    """What is known."""
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return [Found(**json.loads(line)) for line in lines]


def _sought(copy: Copy, target: str, bug: Mutant) -> Found:
    """Fuzz a copy with the bug in it."""
    written = copy.folder / "counts.json"
    written.unlink(missing_ok=True)
    options = [
        "--target",
        target,
        "--executions",
        "100000000",
        "--seconds",
        str(SECONDS),
        "--json",
        str(written),
    ]
    environment = os.environ | {"PYTHONPATH": str(copy.folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with copy.injected(bug.edits):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab.fuzzing", *options],
            cwd=copy.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    lines = re.findall(r"^\S*?(?:Difference|Error|error): (.*)$", done.stdout, re.MULTILINE)
    text = re.sub(r"[|`]| of b['\"].*|\(.*", "", lines[-1])[:60].strip() if lines else ""
    counts = json.loads(written.read_text())["counts"]
    return Found(
        bug.name,
        bug.digest,
        round(seconds, 1) if done.returncode == 1 else None,
        int(counts["executions"]),
        text,
        head(),
    )


if __name__ == "__main__":
    raise SystemExit(main())
