"""What a flow could not process and nobody has decided about yet: it does not count, and every answer about the flow names it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import UNDECIDED, FailedRecord
from sqe_chain.operations.failed_in_plans import list_in_plans
from sqe_chain.operations.failed_letters import list_letters
from sqe_chain.operations.skipped_inputs import skipped_in_commits
from sqe_chain.ports import Log, StateStore
from sqe_chain.task.failed_log import FailedLog


def list_failed_records(
    flow: CompiledFlow, log: Log, home: StateStore | None, known: Sequence[FailedLog] | None = None
) -> Iterator[FailedRecord]:
    """All that a flow could not process, as far as anything keeps it. Disturbs nobody.

    Args:
        flow: the flow.
        log: Kafka.
        home: its metadata store; None: it has none.
        known: what its dead-letter topic knows; None: the topic is read.

    Raises:
        ConfigurationError: the flow has not run with this store.
        StoreInconsistent: its last plan is missing.
        Unavailable: the store or the broker does not answer.
    """
    if home is not None:
        return list_in_plans(flow, home, log, known)
    return chain(list_letters(flow, log, known), skipped_in_commits(flow, log))


def find_undecided(
    flow: CompiledFlow, log: Log, home: StateStore | None, known: Sequence[FailedLog] | None = None
) -> tuple[FailedRecord, ...]:
    """Those that are not done with: they do not count, and may count later. For the arguments see `list_failed_records`."""
    records = list_failed_records(flow, log, home, known)
    return tuple(record for record in records if record.status in UNDECIDED)


def undecided_line(records: Sequence[FailedRecord]) -> str:
    """That they do not count, as a sentence; empty: there are none."""
    if not records:
        return ""
    count = "1 failed record does" if len(records) == 1 else f"{len(records):,} failed records do"
    return f"{count} not count, the first from {records[0]}: see `sqe-chain failed list`"
