"""What a plan says of an overwrite: a load that replaces what tables hold, at its end, by one commit of each table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Mode = Literal["table", "partitions"]
"""What is replaced: all rows, or those whose partition keys are in the files."""
Step = Literal["begun", "staged", "decided", "given_up", "done"]


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Where a plan stands in an overwrite.

    Attributes:
        mode: what is replaced.
        since: number of the plan that has begun it.
        step: what the plan does: `begun`, from here on rows are staged, which nobody sees; `staged`, its rows are; `decided`, the tables
            change, by one commit each; `given_up`, what was staged is forgotten; `done`, nothing was read since it was decided.
        before: while it is under way, how far files were read before it, for `overwriting`.
        contents: when it is decided, source of files -> hashes of the contents that it has read, of 32 digits, one after the other.
    """

    mode: Mode
    since: int
    step: Step
    before: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)

    @property
    def under_way(self) -> bool:
        """Whether rows that are read after the plan are staged."""
        return self.step in ("begun", "staged")

    @property
    def changes_tables(self) -> bool:
        """Whether the plan does something to what is staged, beside adding to it."""
        return self.step in ("begun", "decided", "given_up")

    def after(self, *, reads: bool) -> Overwrite | None:
        """What the next plan says of it.

        Args:
            reads: whether that one reads rows.
        """
        if self.under_way:
            return Overwrite(self.mode, self.since, "staged", before=self.before)
        if self.step == "given_up" or reads:
            return None
        return Overwrite(self.mode, self.since, "done", contents=self.contents)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        found = {"mode": self.mode, "since": self.since, "step": self.step}
        rest = {"before": dict(self.before), "contents": dict(self.contents)}
        return found | {name: one for name, one in rest.items() if one}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(**raw)


def staging_since(overwrite: Overwrite | None) -> int | None:
    """The plan that has begun the overwrite for which rows are staged after a plan; None: they go into their tables."""
    return overwrite.since if overwrite is not None and overwrite.under_way else None
