"""Goal: each step of a batch is done before the next one begins. Method: all writes of one batch, in the order in which they took effect."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from itertools import groupby
from typing import Any, cast

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.ports import Header
from sqe_chain.protocol.with_plans import StagedService
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import PortCall
from tests.support.environments import send_commits_by
from tests.support.word_flows import append_word, same_key, word, words_by_first_letter


class Unanswered(Executor):
    """Does what it was given when somebody waits for it."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        found = Future[Any]()
        found.result = lambda timeout=None: fn(*args, **kwargs)  # type: ignore[method-assign]
        return found


def two_levels() -> Rehearsal:
    """Words by initial, and all of them together, in four state partitions; both are published."""
    flow = Flow("notes", state_partitions=4)
    letters = words_by_first_letter(flow)
    letters.to("by-initial", partitions=1)
    whole = letters.aggregate("whole", key=same_key, state=StringValue, fold=append_word)
    whole.changes().to("wholes", partitions=1)
    return Rehearsal(flow)


def writes_of(rehearsal: Rehearsal) -> list[str]:
    """What takes effect from now on; states by their stage."""
    writes: list[str] = []

    def watch(call: PortCall, _: object) -> None:
        if call.write:
            writes.append(str(call.args[1]) if call.name == "write" else call.name)

    rehearsal.script.watch = watch
    return writes


def running() -> tuple[Rehearsal, StagedService]:
    rehearsal = two_levels()
    rehearsal.feed("words", word("ant"))
    run = cast("StagedService", rehearsal.start())
    run.batch()
    rehearsal.feed("words", word("bee"))
    return rehearsal, run


def test_a_batch_is_sealed_published_persisted_from_the_last_stage_on_and_committed() -> None:
    found, run = running()
    writes = writes_of(found)
    run.batch()
    steps = [name for name, _ in groupby(writes)]
    assert steps == ["set_home", "publish", "whole", "letters", "commit"]


def test_after_a_batch_every_header_is_at_its_plan_whatever_it_touched() -> None:
    """A batch of one key, in four state partitions."""
    found, run = running()
    run.batch()
    headers = [header for stage in ("letters", "whole") for header in found.headers(stage)]
    assert len(headers) == 8
    assert run.last is not None
    assert {(cast("Header", one).number, cast("Header", one).plan_id) for one in headers} == {
        (run.last.number, run.last.plan_id)
    }


def test_the_next_batch_is_sealed_when_the_commit_of_the_one_before_is_acknowledged() -> None:
    found, run = running()
    send_commits_by(run, Unanswered())
    writes = writes_of(found)
    run.batch()
    assert "commit" not in writes, "it is under way"
    found.feed("words", word("cat"))
    run.batch()
    assert [name for name in writes if name in ("set_home", "commit")] == ["set_home", "commit", "set_home"]
