"""Goal: a changed state comes from the last input that changed it, in the order of those, however its batch was read.

Method: rehearsals that read many short blocks; what `changes()` publishes names its input.
"""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given
from hypothesis import strategies as st

from sqe_chain import Flow
from sqe_chain.stages import aggregate
from sqe_chain.testing import Rehearsal


def note(state: StringValue, word: StringValue) -> None:
    state.value += word.value


@pytest.mark.parametrize("recent", [0, 1, 4])
@pytest.mark.parametrize("block", [1, 2, 1_000])
@given(st.lists(st.sampled_from("abcdefg"), max_size=25))
def test_changes_come_from_the_last_inputs(recent: int, block: int, words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate, "_RECENT", recent)
        flow = Flow("notes", state_partitions=1)
        stage = flow.source("words", StringValue).aggregate(
            "letters", key=lambda word: word.value, state=StringValue, fold=note
        )
        stage.changes().to("out", partitions=1)
        rehearsal = Rehearsal(flow, partitions={"words": 1}, block_records=block)
        for word in words:
            rehearsal.feed("words", StringValue(value=word))
        rehearsal.run_until_caught_up()
    last = {word: offset for offset, word in enumerate(words)}
    published = [
        (envelope.key, envelope.payload_as(StringValue).value, envelope.chain.links[-1].offset)
        for envelope in rehearsal.published("out")
    ]
    assert published == [
        (word.encode(), word * words.count(word), offset)
        for word, offset in sorted(last.items(), key=lambda item: item[1])
    ]
