"""The entries of the runbook, by the names of errors."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("runbook.md")
"""The page of the docs. The wheel has a copy."""
REFUSED: Final = "PoisonError"
"""The entry for whatever a function of the user or a decoder raises."""


@cache
def entries() -> dict[str, str]:
    """Name of an error -> the text of its entry, as Markdown."""
    parts = re.split(r"^### (.+)$", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts: dict[str, str] = {}
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        entry = re.split(r"^## ", text, flags=re.MULTILINE)[0].strip()
        texts |= dict.fromkeys(re.findall(r"`(\w+)`", heading), entry)
    return texts


def entry_of(error: str) -> str:
    """The name of the entry for an error, by its class, that a record was skipped for.

    >>> entry_of("OutputTooLarge"), entry_of("WrongChecksum"), entry_of("KeyError")
    ('OutputTooLarge', 'PoisonError', 'PoisonError')
    """
    return error if error in entries() else REFUSED
