"""What a run needs beside log and stores: an engine for its tasks, and a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sqe_chain.ports import Header
from sqe_chain.task.results import Job, Portion, Report


class Engine(Protocol):
    """Runs the tasks of one attempt at a batch. Keeps what it computed until it is released.

    An engine reads and writes through the bare ports. A call that fails ends its task with `Unavailable`, and the
    protocol repeats the whole task.
    """

    def warm_up(self) -> None:
        """Do now what the first batch would have to do first: import, connect, start processes.

        Publishes, commits, writes and claims nothing, and calls no function of the user. Another thread may use the engine
        meanwhile.

        Raises:
            ChainError: something does not work; the first batch will find out, too.
        """

    def process(self, job: Job, portions: Sequence[Portion]) -> Report:
        """Run levels 0 to `job.top_level`; keep outputs and changed states.

        Raises:
            ChainError: whatever a task raised, by its own name.
        """

    def publish(self) -> None:
        """Write all outputs kept, acknowledged when this returns. May be called again."""

    def persist(self, level: int, plan_id: str, before: Mapping[tuple[int, int], Header]) -> int:
        """Write the changed states of one level, acknowledged when this returns. May be called again.

        Args:
            level: 1 or more.
            plan_id: id of the plan being applied.
            before: (stage index, cell) -> the header as it is stored before this step.

        Returns:
            Rows written.
        """

    def republish(self, job: Job, portions: Sequence[Portion]) -> Report:
        """For a flow without stages: read, transform and publish, acknowledged when this returns."""

    def release(self) -> None:
        """Forget what was kept."""


class Clock(Protocol):
    """Time, from outside."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def wait(self, milliseconds: int) -> bool:
        """Wait for this time, less when the service is asked to stop: then True."""
