"""Which fastenings `broken_rows` gets wrong. Importing this, unlike that, changes nothing in a process."""

from __future__ import annotations

LOST, TWICE, CHANGED = 7, 8, 9
"""Fastenings of reports whose number ends like this, in the system of 50."""


def kind(report: int) -> int:
    """Which of the mistakes a report meets."""
    return report % 50
