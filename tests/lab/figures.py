"""How a program of the lab ends that runs services: its figures as one JSON object, what was wrong, and an exit status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_MOST_SHOWN: Final = 20


def report(figures: Mapping[str, Any], wrong: Sequence[str], file: Path | None) -> int:
    """Print figures and what was wrong; returns the exit status.

    Args:
        figures: of the run; the number of violations is added.
        wrong: what was wrong.
        file: gets the figures too; None: nothing does.

    Returns:
        1 if something was wrong, else 0.
    """
    text = json.dumps({**figures, "violations": len(wrong)})
    sys.stdout.write(text + os.linesep + "".join(f"{one}{os.linesep}" for one in wrong[:_MOST_SHOWN]))
    if file is not None:
        file.write_text(text + "\n")
    return 1 if wrong else 0
