"""The order of the steps: seal, publish, persist, commit."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MUTANTS: Final = (
    mutant(
        "an idle service never commits again",
        (
            "protocol/applying.py",
            "if now or self.env.clock.now_ms() - self._committed_ms > COMMIT_AGAIN_MS:",
            "if now:",
        ),
        tests=(
            "tests/protocol/test_commits_again.py::test_an_idle_service_commits_again_but_not_each_time_that_it_looks",
        ),
    ),
)
