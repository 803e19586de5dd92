"""Records that wait: what follows them, where they are kept, how they count."""

from __future__ import annotations

from typing import Final

from tests.lab.mutants.edits import drop, replace
from tests.lab.mutants.mutant import mutant

_WAITS: Final = "test_parking::test_what_fails_waits_and_counts_in_order_when_it_is_released"
_WORLDS: Final = "test_parking::test_drawn_worlds_with_crashes"

MUTANTS: Final = (
    mutant(
        "released records are published on the lanes of later ones",
        ("Job.suffix", replace("'' if releasing is None else releasing.suffix", "''")),
        killed_by=_WAITS,
    ),
    mutant(
        "all releases publish on the same lanes",
        ("name_after", replace("(before, tuple(sorted(of)))", "()")),
        killed_by=_WORLDS,
    ),
    mutant(
        "what follows a parked record of its key is processed",
        ("Following.follow", drop("self._first[key] = offset")),
        killed_by=_WAITS,
    ),
    mutant(
        "what follows a record whose output is refused is processed",
        ("SourcePartition._follow", drop("self._gather(records, keep=False)")),
        killed_by=_WORLDS,
    ),
    mutant(
        "the redo of a release processes nothing",
        (
            "released_again",
            replace("request.releasing(before)", "None"),
        ),
        killed_by="test_crash_sweep::test_killed_after_each_write",
    ),
    mutant(
        "released records are parked on",
        ("parked_after", replace("before.without(released)", "before")),
        killed_by=_WAITS,
    ),
    mutant(
        "a released record may be a replay of itself",
        (
            "Deciding._decide_closely",
            replace(
                "self._released or self.marks.accept(head, offset, epoch)",
                "self.marks.accept(head, offset, epoch)",
            ),
        ),
        killed_by=_WAITS,
    ),
    mutant(
        "a flow that is folded again counts what was parked",
        (
            "Rebuild._spec",
            replace(
                "encoded_sections(rebuilding, closes, parking, lanes, progress.begun)",
                "encoded_sections(rebuilding, closes, lanes, progress.begun)",
            ),
        ),
        killed_by=_WORLDS,
    ),
    mutant(
        "what was released is published again under its first name",
        ("Rebuild._spec", drop("self._check_released(until, progress)")),
        killed_by="test_parking::test_what_was_released_is_not_published_again_under_its_first_name",
    ),
)
