"""Goal: each stage after a shuffle knows of its inputs what it needs, whatever the stage beside it needs. Method: two such stages, one input."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Context, Flow
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, same_key, stored_words, word, words_by_letter


def note_headers(state: StringValue, value: StringValue, context: Context) -> None:
    """Fold: what only a context shows."""
    told = dict(context.headers or ())
    state.value += f"{value.value}={(told['from'] or b'').decode()} "


@pytest.mark.parametrize("needs_little_first", [True, False])
def test_a_stage_that_needs_little_does_not_decide_what_the_next_one_is_given(
    needs_little_first: bool,
) -> None:
    flow = Flow("notes", state_partitions=2)
    letters = words_by_letter(flow)
    for name in ("plain", "told") if needs_little_first else ("told", "plain"):
        fold = append_word if name == "plain" else note_headers
        letters.aggregate(name, key=same_key, state=StringValue, fold=fold)
    found = Rehearsal(flow)
    found.feed("words", word("ant"), headers=[("from", b"here")])
    found.run_until_caught_up()
    assert stored_words(found, "plain") == {"all": "ant"}
    assert stored_words(found, "told") == {"all": "ant=here"}
