"""Goal: a redo finds the keys that lie elsewhere, though the state partition in whose input they lie is done.

Method: keys of which some lie in the wrong input partition, read one by one, so that a task knows that it has nothing to do
before it meets them; a run dies between the writes of two state partitions, whichever comes first.
"""

from __future__ import annotations

import pytest

from sqe_chain.flow import Flow
from sqe_chain.partitioner import partition_of
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import stored_words, word, words_by_letter

LETTERS = sorted("abcdefgh", key=lambda letter: partition_of(letter.encode(), 2))


@pytest.mark.parametrize("strange", [0, 1])
@pytest.mark.parametrize("write", range(5))
def test_a_key_that_lies_elsewhere_is_not_forgotten_when_its_neighbour_is_done(
    write: int, strange: int
) -> None:
    flow = Flow("notes", state_partitions=2)
    words_by_letter(flow)
    found = Rehearsal(flow, partitions={"words": 2}, block_records=1)
    found.run_until_caught_up()
    own = {letter: partition_of(letter.encode(), 2) for letter in LETTERS}
    for letter, partition in own.items():
        found.feed("words", word(f"{letter}0"), partition=partition)
    for letter in LETTERS:
        found.feed("words", word(f"{letter}1"), partition=strange)
    found.crash_at_write(write)
    found.run_until_caught_up()
    words = {letter: sorted(text.split()) for letter, text in stored_words(found).items()}
    assert words == {letter: [f"{letter}0", f"{letter}1"] for letter in LETTERS}
