"""Goal: windows of windows in a chain of flows hold each row once, though most of their results have no input as their cause.

Method: random worlds of `tests.lab.moment_worlds`. `python -m tests.lab.moment_worlds --worlds 5000 --jobs 2` runs many more, and
`--mutants` shows after how many worlds each wrong rule is found.
"""

from __future__ import annotations

import pytest

from tests.lab.moment_worlds.__main__ import PROGRAM

SHARES, WORLDS = 4, 8


@pytest.mark.parametrize("share", range(SHARES))
def test_days_hold_the_rows_of_their_windows(share: int) -> None:
    seed, fault = PROGRAM.found_in("", range(share * WORLDS, (share + 1) * WORLDS))
    assert not fault, f"seed {seed}: {fault}\npython -m tests.lab.moment_worlds --worlds 1 --seed {seed}"


def test_windows_that_are_closed_give_nothing_that_was_promised_not_to_come() -> None:
    """All were silent before: event time comes up to the latest input, whose time results have, and not beyond it."""
    seed, fault = PROGRAM.found_in("", [71])
    assert not fault, f"seed {seed}: {fault}"


def test_a_wrong_rule_is_found() -> None:
    """By the first few worlds; `--mutants` has more of them."""
    assert PROGRAM.found_in("tight", range(20))[1]
