"""Wrong rules about revisions; the worlds must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from sqe_chain.adapters.memory._log import MemoryMember
from sqe_chain.chain import Link
from sqe_chain.envelope import revisions as rules
from sqe_chain.envelope.revisions import FIRST, Known, Revision
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.plans.finding_revisions import FoundRevisions
from sqe_chain.ports import Commit, TopicPartition
from sqe_chain.protocol.committed import InputProgress
from sqe_chain.protocol.revising import Revising
from sqe_chain.protocol.seams import KeptInput
from sqe_chain.task import revised
from sqe_chain.task.revised import Ignoring
from sqe_chain.task.revisions import OutputRevisions

_superseded_from, _moved_back = rules.superseded_from, KeptInput.moved_back


def _newest_alone(links: Sequence[Link], known: Known) -> bytes | None:
    return _superseded_from(links, {family: own[-1:] for family, own in known.items()})


def _last_link_alone(links: Sequence[Link], known: Known) -> bytes | None:
    family, _ = rules.family_of(links[-1].output) if links else ("", 0)
    return _superseded_from(links, {family: known.get(family, ())})


def _any_newer(links: Sequence[Link], known: Known) -> bytes | None:
    return bytes(12) if _superseded_from(links, known) is not None else None


def _own_newest(given: OutputRevisions, output: str, _origin: object) -> int:
    return max((own.number for own in given.of.get(output, ())), default=FIRST)


def _ahead(kept: KeptInput, revision: Revision) -> InputProgress:
    moved = _moved_back(kept, revision)
    begins = revision.begins(kept.progress.topic_id, kept.tp[1])
    return moved if begins is None or not any(begins) else replace(moved, offset=int.from_bytes(begins[4:]))


def _marks_stay(kept: KeptInput, _revision: Revision, _first: int) -> object:
    return kept.progress.marks


def _record_alone(_taking: Revising, _known: InputProgress, record: Any) -> Revision:
    revision: Revision = record.revision
    return revision


def _any_run(member: MemoryMember, commits: Mapping[TopicPartition, Commit]) -> None:
    member._log._store(member._group, commits)


def _same_names(rebuild: Rebuild, _progress: object, newest: Any) -> None:
    del rebuild, newest


def _always_late(found: FoundRevisions, _tp: TopicPartition, _begin: int) -> bool:
    return bool(found.records)


MUTANTS: Final[dict[str, tuple[str, Callable[[], Any]]]] = {
    "newest_only": (
        "only the seam of the newest revision counts",
        lambda: patch.object(revised, "superseded_from", _newest_alone),
    ),
    "last_link_only": (
        "a revision of a republisher further up supersedes nothing",
        lambda: patch.object(revised, "superseded_from", _last_link_alone),
    ),
    "no_seam": (
        "a newer revision supersedes all older messages, whatever their roots",
        lambda: patch.object(revised, "superseded_from", _any_newer),
    ),
    "never_superseded": (
        "what a newer revision has replaced counts, too",
        lambda: patch.object(revised, "superseded_from", lambda *_: None),
    ),
    "greedy": (
        "revisions count that the plan does not follow",
        lambda: patch.object(revised, "newer_than_known", lambda *_: None),
    ),
    "nothing_ignored": (
        "all messages of all revisions count",
        lambda: patch.object(Ignoring, "drop", lambda _self, records, _deciding: records),
    ),
    "label_current": (
        "what is made bears the newest revision, whatever its root",
        lambda: patch.object(OutputRevisions, "label", _own_newest),
    ),
    "jump": (
        "a correction moves a flow forward to its seam",
        lambda: patch.object(KeptInput, "moved_back", _ahead),
    ),
    "own_marks": (
        "marks of the revision before hold for the next one",
        lambda: patch.object(KeptInput, "_marks", _marks_stay),
    ),
    "one_correction": (
        "a correction that was killed before its commit is forgotten when the next one begins",
        lambda: patch.object(Revising, "_not_taken_up", _record_alone),
    ),
    "unfinished": (
        "a correction begins while a sealed batch is unfinished",
        lambda: patch.object(Revising, "_check_clean", lambda *_: None),
    ),
    "no_fence": (
        "a run of the old code goes on committing",
        lambda: patch.object(MemoryMember, "commit", _any_run),
    ),
    "same_revision": (
        "a flow that was rebuilt publishes under the same revision",
        lambda: patch.object(Rebuild, "_check_own_outputs", _same_names),
    ),
    "lost_part": (
        "a rebuild begins where the log does, whatever retention took",
        lambda: patch.object(FoundRevisions, "begins_late", _always_late),
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
