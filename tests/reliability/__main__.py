"""Record a run in the ledger, and write the table of docs/reliability.md.

    ```
    python -m tests.reliability run fuzz --executions 20000000 --jobs 2 --directory DIR
    python -m tests.reliability run simulator --schedules 250000 --seed 250000 --jobs 2
    python -m tests.reliability run pairs --module tests.lab.explorer.pairs ...     a tool that is not known here
    python -m tests.reliability report                                                      `make reliability-report`
    ```

A tool takes `--json FILE` and writes one JSON object there: `tool`, `counts`, `violations`, `seed`, `seconds`, and more.
`counts` has names -> numbers, which are added up over the parts of a run. `part` distinguishes parts with the same command.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.lab.mutants.ledger import PAGE, page_with
from tests.reliability.ledger import LEDGER, TREE, append, read_ledger, recorded, tree
from tests.reliability.report import table

MODULES: Final[Mapping[str, str]] = {
    "simulator": "tests.lab.simulator",
    "explorer": "tests.lab.explorer",
    "traces": "tests.traces",
    "fuzz": "tests.lab.fuzzing",
    "worlds": "tests.lab.event_time_worlds",
    "corrections": "tests.lab.revision_worlds",
    "mutants": "tests.lab.mutants",
    "transactions": "tests.lab.transactional_kills",
    "campaign": "tests.lab.campaign",
    "soak": "tests.lab.soak",
    "failovers": "tests.lab.failovers",
    "switches": "tests.lab.switches",
}


def main(arguments: Sequence[str]) -> int:
    """Run a tool, or write the page.

    Returns:
        Exit status: that of the tool.
    """
    match arguments:
        case ["run", tool, "--module", module, *rest]:
            return record(tool, module, rest)
        case ["run", tool, *rest] if tool in MODULES:
            return record(tool, MODULES[tool], rest)
        case ["report"]:
            write()
            return 0
    sys.stderr.write(__doc__ or "")
    return 2


def record(tool: str, module: str, options: Sequence[str], *, ledger: Path = LEDGER) -> int:
    """Run a tool, and note in the ledger what came of it.

    Args:
        tool: its name.
        module: that is run.
        options: of the tool.
        ledger: the file.
    """
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        written = Path(folder, "run.json")
        command, ran = ["-m", module, *options], tree()
        done = subprocess.run([sys.executable, *command, "--json", str(written)], cwd=TREE, check=False)
        if not written.exists():
            sys.stderr.write(
                f"{module} ended with status {done.returncode} and has written no JSON: nothing is recorded\n"
            )
            return done.returncode or 1
        found: dict[str, Any] = json.loads(written.read_text())
    shown = [
        Path(one).name if one.startswith("/") else one for one in command
    ]  # directories of one machine mean nothing elsewhere
    append(recorded(tool, shlex.join(["python", *shown]), ran, found), ledger)
    return done.returncode


def write() -> None:
    """Write the table of the page."""
    PAGE.write_text(page_with(PAGE.read_text(), {"recorded runs": table(read_ledger())}))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
