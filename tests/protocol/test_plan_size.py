"""A plan that the metadata store does not take is refused before it is sealed, with what makes it large."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.adapters.store_rules import SizeLimits
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import word, words_by_first_letter


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
        match=r"plan 2 has \d+ bytes, the metadata store takes 8000; nothing was sealed.*1 lanes.*and 100 skipped inputs.*--max-records",
    ):
        rehearsal.batch()
    home, _ = store.home("noting")
    assert home is not None
    assert home.number == 1
    smaller = rehearsal.start(replace(rehearsal.settings, max_records=10).asking(takeover=True))
    while smaller.batch().worked:
        pass
    assert store.home("noting")[0].number == 11  # type: ignore[union-attr]
