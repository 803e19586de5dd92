"""Goal: a commit that is under way while the next batch begins changes no result. Method: commits that are sent late, and crashes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.plans.events import Committed, Waiting
from sqe_chain.plans.retrying import Committing, Retry
from sqe_chain.protocol.without_plans import Republisher
from sqe_chain.testing import Rehearsal, Settings, SteppingClock
from sqe_chain.testing.faults import FaultScript
from tests.support.environments import send_commits_by
from tests.support.number_flows import add


class _Late(Future[Any]):
    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self._action = action

    def result(self, timeout: float | None = None) -> Any:
        return self._action()


class Late(Executor):
    """Does what it was given when somebody waits for it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _Late(lambda: fn(*args, **kwargs))


def retry(observer: FaultScript | None = None) -> Retry:
    clock = SteppingClock()

    def wait(what: str, reason: str, wait_ms: int) -> bool:
        (observer or FaultScript()).event(Waiting(what, reason, wait_ms))
        return clock.wait(wait_ms)

    return Retry(wait, 100)


def committing(observer: FaultScript | None = None) -> Committing:
    return Committing(retry(observer), _pool=Late())


def test_at_most_one_commit_is_under_way_and_they_keep_their_order() -> None:
    done: list[int] = []
    commits = committing()
    commits.commit(lambda: done.append(1))
    assert done == [], "otherwise this test would prove nothing"
    commits.commit(lambda: done.append(2))
    assert done == [1]
    commits.settle()
    commits.settle()
    assert done == [1, 2]


def test_what_follows_a_commit_is_done_when_it_is_acknowledged() -> None:
    called: list[str] = []
    commits = committing()
    commits.then(lambda: called.append("nothing to wait for"))
    commits.commit(lambda: called.append("committed"))
    commits.then(lambda: called.append("acknowledged"))
    assert called == ["nothing to wait for"]
    commits.settle()
    assert called == ["nothing to wait for", "committed", "acknowledged"]


def test_without_a_background_a_commit_is_acknowledged_when_it_returns() -> None:
    done: list[int] = []
    Committing(retry()).commit(lambda: done.append(1))
    assert done == [1]


def test_in_the_background_a_commit_runs_by_itself() -> None:
    done: list[int] = []
    commits = Committing(retry())
    with commits.in_background():
        commits.commit(lambda: done.append(1))
        commits.settle()
    assert done == [1]
    commits.commit(lambda: done.append(2))
    assert done == [1, 2]


@pytest.mark.parametrize("wait", [Committing.settle, lambda commits: commits.commit(lambda: None)])
def test_a_commit_without_an_answer_is_repeated_by_who_waits_for_it(
    wait: Callable[[Committing], None],
) -> None:
    answers = [Unavailable("no broker"), Unavailable("no broker"), None]

    def action() -> None:
        error = answers.pop(0)
        if error is not None:
            raise error

    commits, called = committing(), list[int]()
    commits.commit(action)
    commits.then(lambda: called.append(1))
    wait(commits)
    assert (answers, called) == ([], [1])


def test_the_end_of_a_run_does_not_wait_for_a_broker_that_is_away() -> None:
    calls: list[int] = []

    def action() -> None:
        calls.append(1)
        raise Unavailable("no broker")

    commits = committing()
    commits.commit(action)
    commits.then(lambda: calls.append(2))
    commits.leave()
    commits.settle()
    assert calls == [1]


def test_a_commit_that_is_refused_is_an_error_of_who_waits_for_it() -> None:
    def action() -> None:
        raise ConfigurationError("not allowed")

    commits = committing()
    commits.commit(action)
    with pytest.raises(ConfigurationError):
        commits.settle()


def _copying() -> Rehearsal:
    flow = Flow("copies")
    flow.source("numbers", Int64Value).to("copied", key=lambda _: "all", partitions=1)
    return Rehearsal(flow, partitions={"numbers": 1}, settings=Settings(max_records=1))


def _summing(up: Rehearsal) -> Rehearsal:
    flow = Flow("sums", state_partitions=1)
    flow.source("copied", Int64Value).aggregate("sum", key=lambda _: "all", state=Int64Value, fold=add)
    return Rehearsal(flow, log=up.log)


@pytest.mark.parametrize("published", [1, 2, 3])
def test_a_crash_while_a_commit_is_under_way_costs_repeated_work_only(published: int) -> None:
    """The commits of the last batches are lost, although the next one was published already."""
    up = _copying()
    down = _summing(up)
    for number in (1, 10, 100):
        up.feed("numbers", Int64Value(value=number))
    run = up.start()
    send_commits_by(run, Late())
    for _ in range(published):
        assert run.batch().worked
    (committed,) = (commit.offset for commit in up.commits().values())
    assert committed == published - 1, "the last commit is not sent, the others are"
    down.run_until_caught_up()
    up.restart()
    up.run_until_caught_up()
    down.run_until_caught_up()
    assert down.states("sum")[b"all"].value == 111
    assert len(up.published("copied")) == 4, "one of them was published twice"


def test_committed_is_emitted_when_it_is_true() -> None:
    up = _copying()
    for number in (1, 10):
        up.feed("numbers", Int64Value(value=number))
    run = up.start()
    assert isinstance(run, Republisher)
    send_commits_by(run, Late())

    def commits_reported() -> list[Committed]:
        return [event for event in up.script.events if isinstance(event, Committed)]

    run.batch()
    assert commits_reported() == []
    run.batch()
    assert len(commits_reported()) == 1
    assert not run.batch().worked
    assert len(commits_reported()) == 2
    (commit,) = up.commits().values()
    assert commit.offset == 2


def test_a_plan_is_open_until_its_commit_is_acknowledged() -> None:
    up = _copying()
    down = _summing(up)
    up.feed("numbers", Int64Value(value=1))
    up.run_until_caught_up()
    run = down.start()
    send_commits_by(run, Late())
    run.batch()
    assert run.open_plan is not None
    run.env.commits.settle()
    assert run.open_plan is None


def test_a_run_that_ends_gives_its_claim_back_when_its_commit_is_acknowledged() -> None:
    """Else a commit of this run could land after those of the next one, and the group would be set back."""
    up = _copying()
    down = _summing(up)
    up.feed("numbers", Int64Value(value=1))
    up.run_until_caught_up()
    run = down.start()
    send_commits_by(run, Late())
    run.batch()
    assert not down.commits(), "otherwise this test would prove nothing"
    run.leave()
    assert [commit.offset for commit in down.commits().values()] == [1]
    assert len(down.events("committed")) == 1
    home, _ = down.stores[""].home("sums")
    assert home is not None
    assert home.run_id == ""
