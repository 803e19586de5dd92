"""Goal: whatever operators do with failed records, how many at once, killed wherever: each counts once, or never, as in their list.

Method: random worlds of `tests.lab.failed_worlds`. `python -m tests.lab.failed_worlds --worlds 20000 --jobs 2` runs many more, and
`--mutants` shows after how many worlds each wrong rule is found.
"""

from __future__ import annotations

import pytest

from tests.lab.failed_worlds.__main__ import PROGRAM

SHARES, WORLDS = 8, 25


@pytest.mark.parametrize("share", range(SHARES))
def test_each_failed_record_counts_once_or_never(share: int) -> None:
    seed, fault = PROGRAM.found_in("", range(share * WORLDS, (share + 1) * WORLDS))
    assert not fault, f"seed {seed}: {fault}\npython -m tests.lab.failed_worlds --worlds 1 --seed {seed}"


@pytest.mark.parametrize("name", ["publish_first", "id_by_time", "same_lane"])
def test_a_wrong_rule_is_found(name: str) -> None:
    """By the first few worlds; `--mutants` has more of them."""
    assert PROGRAM.found_in(name, range(400))[1]
