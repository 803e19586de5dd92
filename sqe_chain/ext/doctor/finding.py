"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""error: the service cannot run, or is not exact. warning: it is exact until something happens. note: worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault, or a setting from which one may come.

    Attributes:
        check: name of the check.
        severity: how bad it is.
        subject: the topic, partition, stage or store.
        text: the evidence, and what follows from it.
        command: what to do.
    """

    check: str
    severity: Severity
    subject: str
    text: str
    command: str = ""
