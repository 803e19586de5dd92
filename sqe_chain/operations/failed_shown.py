"""One failed record with all that is known of it: its message, and what was decided about it."""

from __future__ import annotations

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.operations.failed import FailedRecord
from sqe_chain.operations.parked import parked_in
from sqe_chain.ports import Headers, Log, Message, StateStore
from sqe_chain.ports.log import shown_place
from sqe_chain.task.failed_log import FailedLog, read_failed_logs


def kept_message(
    flow: CompiledFlow, record: FailedRecord, log: Log, home: StateStore | None
) -> tuple[Message, Headers] | None:
    """The message of a failed record, with the headers that it came with; None: nobody has kept it.

    Args:
        flow: the flow that failed.
        record: as it is listed.
        log: Kafka.
        home: the flow's store; None: it has none.
    """
    if not record.place:
        kept = () if home is None else parked_in(home, flow)
        return next(((own, list(own.record_headers)) for own in kept if str(own) == str(record)), None)
    for known in _logs(flow, log):
        letter = known.letters.get(record.identity)
        if letter is not None and shown_place(letter.message) == record.place:
            return letter.message, letter.dead.headers
    return None


def history_of(flow: CompiledFlow, record: FailedRecord, log: Log) -> list[dict[str, object]]:
    """What happened to a failed record, in its order: each with its name, and the place where that is written."""
    if not record.place:
        return [{"what": "parked"}] if record.status == "parked" else []
    history: list[dict[str, object]] = [{"what": "skipped", "at": record.place}]
    for known in _logs(flow, log):
        decision = known.decided.get(record.identity)
        if decision is not None:
            history.append({"what": decision.kind, "at": known.place_of(decision), "by": decision.by})
            if record.status == "released":
                history.append({"what": "done", "by": decision.by})
    if record.decided_by and len(history) == 1:
        history.append({"what": record.status, "by": record.decided_by})
    return history


def _logs(flow: CompiledFlow, log: Log) -> list[FailedLog]:
    info = log.describe([flow.dead_letter_topic]).get(flow.dead_letter_topic)
    return [] if info is None else read_failed_logs(log, flow.declared_name, info)
