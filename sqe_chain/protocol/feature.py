"""Features: what hangs on the seven steps. A flow that does not need one has no section, and no call, of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sqe_chain.ports import Header, Rows, TopicInfo
from sqe_chain.protocol.cutting import Part
from sqe_chain.protocol.environment import Environment
from sqe_chain.protocol.plan import Plan, Section
from sqe_chain.task.results import Report
from sqe_chain.task.states import Claim

Infos = Mapping[str, TopicInfo]
Headers = Mapping[tuple[int, int], Header]
Told = Mapping[tuple[int, int], Rows]
"""(stage index, cell) -> rows that are written with its header."""


@dataclass(frozen=True, slots=True)
class Entered:
    """What a feature does when a run starts, after recovery.

    Attributes:
        plan: to be sealed; None: none.
        text: to be told; empty: nothing.
        ends: the run has nothing else to do.
    """

    plan: Plan | None = None
    text: str = ""
    ends: bool = False


class Feature:
    """What one feature does in the steps of a run. A subclass has the hooks that it needs; all others do nothing.

    Args:
        env: the flow and its ports.

    Attributes:
        name: of what it keeps in plans, if it keeps anything.
    """

    name: ClassVar[str]

    def __init__(self, env: Environment) -> None:
        self.env = env

    @property
    def declared(self) -> bool:
        """Whether the flow needs it, or the run was asked for it, whatever plans say."""
        return False

    def check_start(self) -> None:
        """Before anything is done: check that it can be done.

        Raises:
            ConfigurationError: it cannot.
        """

    def unneeded(self, last: Plan, infos: Infos) -> Collection[str]:  # noqa: ARG002 - for those that need it
        """At a start: topics of which nothing is needed any more, though they were read."""
        return ()

    def recovered(self, last: Plan) -> None:
        """Step 2: all plans are finished."""

    def enter(self, claim: Claim, last: Plan, infos: Infos) -> Entered:  # noqa: ARG002
        """After step 2: what it begins, goes on with, or ends."""
        return Entered()

    def looked(self, last: Plan, infos: Infos) -> None:
        """Before step 3: the topics were looked at."""

    def begin(self, before: Plan) -> object | None:  # noqa: ARG002
        """Step 3: what tasks get (`Job.sections`) in the batch after a plan, the same in a redo. Pure."""
        return None

    def after(self, last: Plan, part: Part, report: Report) -> Section | None:  # noqa: ARG002
        """Step 3: what the plan of a batch keeps; None: what `Section.carried` says. Pure.

        Args:
            last: the plan before.
            part: what the batch reads and does.
            report: of the attempt that processed it.
        """
        return None

    def publishes(self, plan: Plan) -> bool:  # noqa: ARG002
        """Step 5: whether the outputs of a plan are published."""
        return True

    def publish(self, claim: Claim, plan: Plan) -> Iterator[Callable[[], int]]:  # noqa: ARG002
        """Step 5: what is published beside outputs. Each is safe to repeat, and gives the number of records."""
        yield from ()

    def persist(self, claim: Claim, plan: Plan, level: int, headers: Headers) -> Told:  # noqa: ARG002
        """Step 6 of a level: what is done before headers are written that the engine does not write, and what goes with them."""
        return {}

    def persisted(self, plan: Plan, level: int) -> None:
        """Step 6 of a level is done."""

    def commit(self, plan: Plan) -> Mapping[str, object]:  # noqa: ARG002
        """Step 7: what metadata of the commit say, for a rebuild that has lost the store."""
        return {}

    def complete(self, claim: Claim, last: Plan) -> Plan | None:  # noqa: ARG002
        """At the end of finite inputs, when all is read: the plan that completes what it has begun; None: nothing."""
        return None


@dataclass(slots=True)
class Features:
    """The features of a run.

    Args:
        known: all that there are.
    """

    known: Sequence[Feature] = ()
    declared: tuple[Feature, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.declared = tuple(one for one in self.known if one.declared)

    def of(self, plan: Plan, names: Collection[str] = ()) -> list[Feature]:
        """Those that the flow needs, or this plan; and those with these names."""
        sections = plan.sections
        return [
            one for one in self.known if one in self.declared or one.name in sections or one.name in names
        ]
