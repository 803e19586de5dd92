"""A plan that the metadata store does not take is refused before it is sealed, with what makes it large."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.adapters.store_rules import SizeLimits
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.operations.parked import ParkedWork
from sqe_chain.plans.stored_plans import read_last_plan
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.word_flows import append_word, word, words_by_first_letter


def test_a_plan_that_does_not_fit_is_not_sealed() -> None:
    flow = Flow("noting", poison="skip", state_partitions=1)
    words_by_first_letter(flow)
    store = MemoryStore(uuid.uuid4().hex, limits=SizeLimits(1_000, 1_000, 8_000))
    rehearsal = Rehearsal(flow, store=store)
    rehearsal.feed("words", word("ant"))
    rehearsal.run_until_caught_up()
    for _ in range(100):
        rehearsal.feed("words", b"rubbish")
    with pytest.raises(
        ConfigurationError,
        match=r"plan 2 .*100 skipped.*--max-records",
    ):
        rehearsal.batch()
    home, _ = store.home("noting")
    assert home is not None
    assert home.number == 1
    smaller = rehearsal.start(replace(rehearsal.settings, max_records=10).asking(takeover=True))
    while smaller.batch().worked:
        pass
    assert store.home("noting")[0].number == 11  # type: ignore[union-attr]


def test_parked_records_that_fill_a_plan_are_named_and_can_be_released() -> None:
    fails = True

    def check(value: StringValue) -> StringValue:
        if fails:
            raise ValueError(value.value)
        return value

    flow = Flow("parking", poison="park", state_partitions=1)
    checked = flow.source("words", StringValue).map(check)
    checked.aggregate("letters", key=lambda _: "all", state=StringValue, fold=append_word)
    store = MemoryStore(uuid.uuid4().hex, limits=SizeLimits(1_000, 1_000, 8_000))
    rehearsal = Rehearsal(flow, store=store)
    text = ""
    for number in range(100):
        rehearsal.feed("words", word(f"w{number}"), key="k")
        try:
            rehearsal.batch()
        except ConfigurationError as error:
            text = str(error)
            break
    before = read_last_plan(store, "parking")
    assert before is not None
    sealed = json.loads(before.to_bytes())["sections"]["parked"]["records"]
    found = re.search(
        r"too large.*: (\d+) bytes\. Expected at most 8000.*has (\d+) parked records in (\d+) bytes, 1 input",
        text,
    )
    assert found is not None, text
    size, records, of_these = map(int, found.groups())
    assert records == len(sealed) + 1 > 10
    assert 8_000 * 0.7 < of_these < size
    assert "sqe-chain failed release or discard" in text
    assert "poison" not in text
    fails, rehearsal.service = False, None
    assert ParkedWork(environment_of(rehearsal)).run().done == len(sealed)
    rehearsal.run_until_caught_up()
    states = rehearsal.states("letters")
    assert states[b"all"].value.split() == [f"w{number}" for number in range(len(sealed) + 1)]
