"""Who owns a flow: claims, stamps, heartbeats, standbys."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "headers are not stamped",
        (
            "protocol/claim.py",
            "            wanted = replace(header, epoch=mine.epoch, run_id=mine.run_id) if header else first\n",
            "            wanted = header or first\n",
        ),
        tests=("tests/protocol/test_persist_order.py::test_the_last_stage_first_survives",),
    ),
    mutant(
        "a run with the same epoch and another name counts as the owner",
        (
            "segment/states.py",
            "header.epoch > claim.epoch or (header.epoch == claim.epoch and header.run_id != claim.run_id)",
            "header.epoch > claim.epoch",
        ),
        tests=("tests/unit/segment/test_states.py::test_what_another_run_has_stamped_is_not_read",),
    ),
    mutant(
        "an older stamp than this run's is accepted",
        ("segment/states.py", "    if header.epoch < claim.epoch:\n", "    if header.epoch < 0:\n"),
        tests=("tests/unit/segment/test_states.py::test_what_the_plan_before_has_not_left_is_not_read",),
    ),
)
