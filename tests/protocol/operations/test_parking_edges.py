"""Goal: what was discarded never counts, what receivers have is published once, and a release of many records does all of them.

Method: one flow that writes down the words it counts, in memory; the expected words are in the tests. Each case once lost or
doubled a record.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.operations import parked
from sqe_chain.operations.parked import ParkedResult, ParkedWork, parked_in
from sqe_chain.protocol import processing
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.word_flows import word


class Discarded(Exception):
    """An error of the user that happens to have the name of an error of the package."""


class Words:
    """A flow that parks the words that its code does not take yet."""

    def __init__(self, *broken: str, policy: PoisonPolicy = "park", before: Words | None = None) -> None:
        self.broken = set(broken)
        flow = Flow("words", poison=policy, state_partitions=1)
        counted = flow.source("in", StringValue).map(self._check)
        counted.aggregate("all", key=lambda _: "all", state=StringValue, fold=self._fold).to(
            "out", partitions=1
        )
        stored: dict[str, Any] = (
            {} if before is None else {"log": before.service.log, "store": before.service.stores}
        )
        self.service: Rehearsal = Rehearsal(flow, **stored)

    def _check(self, value: StringValue) -> StringValue:
        if value.value in self.broken:
            raise Discarded(value.value)
        return value

    def _fold(self, state: StringValue, value: StringValue) -> list[StringValue]:
        if value.value == "pay" and state.value.endswith("close "):
            raise ValueError("closed")
        state.value += f"{value.value} "
        return [value]

    def feed(self, *texts: str, key: str | None = None) -> None:
        """Each word has a key of its own, unless they share one."""
        for text in texts:
            self.service.feed("in", word(text), key=text if key is None else key)

    def work(self, *, discards: bool = False) -> ParkedResult:
        """Release or discard all that is parked, as the command does."""
        self.service.service = None
        return ParkedWork(environment_of(self.service), discards=discards).run()

    @property
    def counted(self) -> list[str]:
        """The words that count, in their order."""
        state: StringValue = self.service.states("all")[b"all"]
        return state.value.split()

    @property
    def published(self) -> list[str]:
        """The words that receivers have, in their order."""
        return [message.payload_as(StringValue).value for message in self.service.published("out")]

    @property
    def waiting(self) -> list[str]:
        """Where the parked records were read."""
        return list(map(str, parked_in(self.service.stores[""], self.service.flow)))


def test_an_error_of_the_user_may_have_any_name() -> None:
    words = Words("bad")
    words.feed("one", "bad", "two", key="k")
    words.service.run_until_caught_up()
    assert (words.counted, words.waiting) == (["one"], ["in[0]@1", "in[0]@2"])
    words.broken.clear()
    words.work()
    assert words.counted == ["one", "bad", "two"]


def test_a_batch_that_is_repeated_after_a_rebuild_parks_nothing_that_was_discarded() -> None:
    words = Words("bad")
    words.feed("one", "bad", "two", key="k")
    words.feed("other")
    words.service.crash(step=5, when="before")
    words.service.run_until_crash()
    words.service.rebuild()
    assert words.work(discards=True).done == 2
    words.service.run_until_caught_up()
    assert words.waiting == []
    words.broken.clear()
    assert words.work().done == 0
    assert (words.counted, words.published) == (["one", "other"], ["one", "other"])


@pytest.mark.parametrize("policy", ["park", "stop", "dead_letter", "skip"])
def test_what_was_discarded_does_not_count_in_a_rebuild_under_any_policy(policy: PoisonPolicy) -> None:
    words = Words("bad")
    words.feed("one", "bad", "two")
    words.service.run_until_caught_up()
    words.work(discards=True)
    later = Words(policy=policy, before=words)
    later.service.run_until_caught_up()
    later.service.rebuild()
    later.service.run_until_caught_up()
    assert later.counted == ["one", "two"]


def test_an_input_of_a_repeated_batch_is_not_parked_when_receivers_have_its_output() -> None:
    """A rebuild counts `open` at its place, before `close`, so the fold refuses `pay`, which is published already."""
    words = Words("open")
    words.feed("open", "close")
    words.service.run_until_caught_up()
    words.broken.clear()
    words.work()
    words.feed("pay")
    words.service.crash(step=5, when="after")
    words.service.run_until_crash()
    words.service.rebuild()
    with pytest.raises(PoisonError, match=r"in\[0\]@2 .*receivers have its outputs"):
        words.service.run_until_caught_up()
    assert words.published == ["close", "open", "pay"]


def test_a_release_of_more_records_than_one_plan_can_list_is_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processing, "MAX_EXCLUSIONS", 5)
    monkeypatch.setattr(parked, "RELEASED_TOGETHER", 4)
    words = Words("bad", "worse")
    for number in range(10):
        words.feed("bad" if number % 3 == 0 else "worse", key=str(number))
        words.service.run_until_caught_up()
    words.broken.remove("bad")
    words.feed("new")
    result = words.work()
    assert (result.done, result.again, result.waiting) == (4, 6, 6)
    assert words.counted == ["bad"] * 4
    words.service.run_until_caught_up()
    assert words.counted == [*["bad"] * 4, "new"]
