"""What a plan keeps of an overwrite, and what a load asks for. An overwrite replaces rows of tables by those of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from sqe_chain.errors import ConfigurationError
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.plans.settings import FeatureSettings

Mode = Literal["table", "partitions"]
"""What is replaced: all rows, or those whose partition keys are in the files."""
Step = Literal["none", "begun", "staged", "decided", "given_up", "done"]


@dataclass(frozen=True, slots=True)
class Overwrite(Section):
    """How far an overwrite is with a plan.

    Attributes:
        mode: what is replaced.
        since: number of the plan that has begun it.
        step: what the plan does. `none`: there is no overwrite. `begun`: rows are staged from here on, unseen by readers. `staged`: its rows are
            staged. `decided`: the tables change, by one commit each. `given_up`: what was staged is forgotten. `done`: nothing was read since
            the decision.
        before: while it is under way, how far files were read before it, for `overwriting`.
        contents: when it is decided, source of files -> hashes of the contents that it has read, of 32 digits, one after the other.
    """

    name: ClassVar[str] = "overwrite"
    mode: Mode = "table"
    since: int = -1
    step: Step = "none"
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

    def carried(self, last: Plan, plan: Plan) -> Overwrite:  # noqa: ARG002 - it is known from this one
        """What the next plan keeps of it, if it decides nothing."""
        if self.under_way:
            return Overwrite(self.mode, self.since, "staged", before=self.before)
        if self.step in ("none", "given_up") or any(planned.start < planned.stop for planned in plan.ranges):
            return Overwrite()
        return Overwrite(self.mode, self.since, "done", contents=self.contents)

    def to_json(self) -> dict[str, Any]:
        if self.step == "none":
            return {}
        members = {"mode": self.mode, "since": self.since, "step": self.step}
        rest = {"before": dict(self.before), "contents": dict(self.contents)}
        return members | {name: value for name, value in rest.items() if value}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class OverwriteSettings(FeatureSettings):
    """What a load replaces.

    Attributes:
        overwrite: what the rows of files replace in tables: `table`, all rows; `partitions`, those with the partition keys of
            the files. None: nothing; they are added.
        again: overwrite although the last load was an overwrite with the same contents.
        drop_overwrite: give up the overwrite that is under way, and end.
    """

    overwrite: Mode | None = None
    again: bool = False
    drop_overwrite: bool = False

    def __post_init__(self) -> None:
        if self.overwrite not in (None, "table", "partitions"):
            raise ConfigurationError(f"overwrite={self.overwrite!r}; must be 'table', 'partitions' or None")
        if self.overwrite is not None and self.drop_overwrite:
            raise ConfigurationError("overwrite and drop_overwrite: one of them, begin or go on, or give up")
        if self.again and self.overwrite is None:
            raise ConfigurationError("again: needs overwrite")

    @property
    def needs_end(self) -> str:
        if self.overwrite is None:
            return ""
        return "an overwrite without an end of its files. Expected sqe-chain load (from Python once=True)"
