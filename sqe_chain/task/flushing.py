"""Step 6 for one state partition of a stage that writes its rows into a sink: first there, then the header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqe_chain.ports import Flush, Header, Rows, Sink, StateStore, replacing
from sqe_chain.task.results import Job
from sqe_chain.task.states import check_owner, persist

FLUSHED: Final = b"flushed"
"""The row of such a stage in the store: what the sink has reported of the last flush."""
STAGED: Final = b"staged/"
"""Beginning of the keys of rows that keep what a load has staged, one for each plan. Larger than `FLUSHED`."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Rows of tables are staged, not added: they replace others later.

    Attributes:
        since: number of the plan that has begun it.
    """

    since: int


def staged_key(number: int) -> bytes:
    """The key of what a plan has staged."""
    return STAGED + b"%012d" % number


def flush(
    sink: Sink,
    store: StateStore,
    job: Job,
    plan_id: str,
    stage: str,
    part: int,
    rows: Rows,
    before: Header,
) -> int:
    """Flush the rows of a state partition, or stage them, then persist what the sink wants to be remembered, with the header.

    After a crash in between, the sink has the rows and the header is at the plan before. So the plan is redone, and the
    sink finds that it has them. The other way round, rows would be lost.

    Returns:
        Rows added or staged by this call.

    Raises:
        ChainError: as `Sink.flush` and `persist`.
    """
    transition, staging = job.transition, job.sections.find(Staging)
    flow, claim = transition.store_flow(stage), transition.claim
    header, (known,), _ = store.read(flow, stage, part, [FLUSHED])
    number = transition.before_number + 1
    header = check_owner(header, claim, f"{transition.flow}/{stage}/{part}")
    if header.number == number and header.plan_id == plan_id:  # an earlier attempt has done all of it
        return 0
    given = Flush(flow, stage, part, claim.epoch, claim.run_id, number, plan_id, rows, known)
    if staging is None:
        added, remembered = sink.flush(given)
        persist(store, transition, plan_id, stage, part, [(FLUSHED, remembered)], before)
        return added
    staged = replacing(sink, stage).stage(given, staging.since)
    told = [(FLUSHED, staged.known), (staged_key(number), staged.told)]
    after = b"" if before.cursor is None else before.cursor
    persist(store, transition, plan_id, stage, part, [row for row in told if row[0] > after], before)
    return staged.rows
