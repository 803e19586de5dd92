"""Goal: whatever is corrected and rebuilt, in which order, killed wherever: each root counts by the corrected functions alone.

Method: random worlds of `tests.lab.revision_worlds`. `python -m tests.lab.revision_worlds --worlds 20000 --jobs 2` runs many more, and
`--mutants` shows after how many worlds each wrong rule is found.
"""

from __future__ import annotations

import pytest

from tests.lab.revision_worlds.__main__ import PROGRAM

SHARES, WORLDS = 8, 12


@pytest.mark.parametrize("share", range(SHARES))
def test_each_root_counts_by_the_corrected_functions(share: int) -> None:
    seed, fault = PROGRAM.found_in("", range(share * WORLDS, (share + 1) * WORLDS))
    assert not fault, f"seed {seed}: {fault}\npython -m tests.lab.revision_worlds --worlds 1 --seed {seed}"


@pytest.mark.parametrize("seed", [91447, 92858, 110682])
def test_what_old_code_has_begun_when_a_revision_begins_is_finished_by_it(seed: int) -> None:
    """A release that was killed, and a rewind: both came between the checks of a correction and its record. No code could finish them."""
    assert PROGRAM.found_in("", [seed]) == (-1, "")


def test_old_code_that_wakes_late_releases_nothing_that_a_new_revision_has_skipped() -> None:
    """It had looked for revisions before this one began; its outputs were superseded, and the record counted as released."""
    assert PROGRAM.found_in("", [121416]) == (-1, "")


def test_a_correction_that_goes_further_back_than_one_that_has_not_read_again_loses_nothing() -> None:
    assert PROGRAM.found_in("", [203382]) == (-1, "")


@pytest.mark.parametrize("name", ["greedy", "no_seam", "never_superseded", "label_current"])
def test_a_wrong_rule_is_found(name: str) -> None:
    """By the first few worlds; `--mutants` has more of them."""
    assert PROGRAM.found_in(name, range(400))[1]
