"""Wrong rules about decisions; the worlds must find each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from sqe_chain.adapters.memory._log import MemoryMember
from sqe_chain.engines.task import publish
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.operations.processing_letters import process_letters
from sqe_chain.ports import Commit, TopicPartition
from sqe_chain.protocol import without_plans
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.task.dead_letters import DeadLetter, Identity
from sqe_chain.task.failed_log import Decision, FailedLog
from sqe_chain.task.results import Portion

_numbers = itertools.count()
_decide, _finish, _refuse, _append = (
    FailedLog._decide,
    FailedLetters._finish,
    FailedLetters._refuse,
    FailedLetters._append,
)


def _all_hold(known: FailedLog, decision: Decision, offset: int) -> None:
    if decision.kind != "done":
        known.decided = {own: by for own, by in known.decided.items() if own not in decision.letters}
    _decide(known, decision, offset)


def _each_record_apart(known: FailedLog, decision: Decision, offset: int) -> None:
    free = tuple(own for own in decision.letters if own not in known.decided)
    if free or decision.kind == "done":
        _decide(
            known,
            Decision(decision.flow, decision.kind, free, decision.digest, decision.by, decision.clock_ms),
            offset,
        )


def _by_offset(dead: DeadLetter) -> Identity:
    return 0, dead.topic_id + dead.partition.to_bytes(4, "big") + dead.offset.to_bytes(8, "big")


def _own_only(letters: FailedLetters, known: FailedLog, result: Any) -> None:
    for name in [name for name in known.releasing if name not in letters._made]:
        del known.releasing[name]
    _finish(letters, known, result)


def _believing(letters: FailedLetters, known: FailedLog, decision: Decision) -> None:
    _append(letters, known, decision)
    if decision.kind != "done":  # what it has written holds, whatever came before
        known.decided |= dict.fromkeys(decision.letters, decision)
        known.decisions.setdefault(decision.by, known.end - 1)
        if decision.kind == "release":
            known.releasing[decision.by] = decision


def _publishing_first(letters: FailedLetters, known: FailedLog, decision: Decision) -> None:
    if decision.kind == "release":
        publish(letters.log, [letters._made[decision.by].outputs])
    _append(letters, known, decision)


def _under_another_name(flow: Any, letters: Any, decision: Decision, described: Any) -> Any:
    named = Decision(
        decision.flow,
        decision.kind,
        decision.letters,
        "",
        f"{decision.by}{next(_numbers)}",
        decision.clock_ms,
    )
    made = process_letters(flow, letters, named, described)
    return type(made)(made.outputs, "", made.failed)


def _any_run(member: MemoryMember, commits: Mapping[TopicPartition, Commit]) -> None:
    member._log._store(member._group, commits)


def _as_if_new(*args: Any, **named: Any) -> Portion:
    return Portion(*args, **{**named, "published": 0})


MUTANTS: Final[dict[str, tuple[str, Callable[[], Any]]]] = {
    "all_hold": ("of two decisions the last holds", lambda: patch.object(FailedLog, "_decide", _all_hold)),
    "apart": (
        "a decision holds for those of its records that are free",
        lambda: patch.object(FailedLog, "_decide", _each_record_apart),
    ),
    "not_read_back": (
        "two operators both believe their decisions",
        lambda: patch.object(FailedLetters, "_append", _believing),
    ),
    "publish_first": (
        "a release publishes before its decision is in the log",
        lambda: patch.object(FailedLetters, "_append", _publishing_first),
    ),
    "id_by_time": (
        "a repeated release gets other lanes",
        lambda: patch("sqe_chain.operations.failed_letters.process_letters", _under_another_name),
    ),
    "same_lane": (
        "a release publishes on the lanes of the flow itself",
        lambda: patch.object(Decision, "suffix", ""),
    ),
    "not_finished": (
        "a decision without done is taken for done",
        lambda: patch.object(FailedLetters, "_finish", _own_only),
    ),
    "no_digest": (
        "an interrupted release is finished by whatever code is there",
        lambda: patch.object(FailedLetters, "_refuse", lambda *_: None),
    ),
    "by_offset": (
        "records are known by offset, not by lane and position",
        lambda: patch.object(DeadLetter, "identity", property(_by_offset)),
    ),
    "today": (
        "a rewind publishes what was skipped, once the code is fixed",
        lambda: patch.object(Republisher, "_skipped", lambda *_: None),
    ),
    "unsealed": (
        "a batch that was begun is decided about again after a crash",
        lambda: patch.object(Republisher, "_redo", lambda *_: None),
    ),
    "relapse": (
        "what was published and fails now is skipped",
        lambda: patch.object(without_plans, "Portion", _as_if_new),
    ),
    "no_fence": (
        "an older run goes on committing",
        lambda: patch.object(MemoryMember, "commit", _any_run),
    ),
    "no_numbers": (
        "whether retention took dead-letter records is not looked at",
        lambda: patch.object(without_plans, "check_known", lambda *_: None),
    ),
}
"""Name -> what is wrong, and how the code becomes so."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """In this context a rule is wrong; "": none is."""
    with ExitStack() as stack:
        if name:
            stack.enter_context(MUTANTS[name][1]())
        yield
