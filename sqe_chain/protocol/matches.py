"""Says when the values of a join find nothing in its table: the keys do not fit, or the times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqe_chain.flow.stage_kind import MATCHED, UNMATCHED


@dataclass(slots=True)
class Matches:
    """What the values of each join have found in this run."""

    _found: Counter[tuple[str, str]] = field(default_factory=Counter)

    def take(self, counts: Counter[tuple[str, str]]) -> list[str]:
        """Take what a batch has counted; what has found something is no longer listed there.

        Args:
            counts: (stage, reason) -> records.

        Returns:
            A sentence for each join that has found nothing so far, once.
        """
        before = self._found.copy()
        for stage, reason in [one for one in counts if one[1] in (MATCHED, UNMATCHED)]:
            self._found[stage, reason] += counts[stage, reason]
            if reason == MATCHED:
                del counts[stage, reason]
        return [
            f"stage {stage!r}: none of {self._found[stage, UNMATCHED]} values has found anything in the table of its join. Compare "
            "the keys of both streams, and their event times: a value finds what the table had said by its own time. For "
            "reference data without history declare join_table(…, static=True)"
            for stage in sorted({stage for stage, _ in self._found})
            if not before[stage, UNMATCHED] and not self._found[stage, MATCHED]
        ]
