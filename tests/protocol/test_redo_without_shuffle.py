"""Goal: a redo finds the keys that lie elsewhere, though the state partition in whose input they lie is done.

Method: some keys are mis-partitioned. They are read one by one, so that a task knows that it has nothing to do before it meets
them. A run dies between the writes of two state partitions, whichever comes first.
"""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.envelope.partitioner import partition_of
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.stages import Tumbling
from sqe_chain.testing import Rehearsal
from tests.support.number_flows import count
from tests.support.word_flows import stored_words, word, words_by_first_letter

MINUTE_MS = 60_000
SHUFFLING = Settings(in_place=False, allow_weak_durability=True)
LETTERS = sorted("abcdefgh", key=lambda letter: partition_of(letter.encode(), 2))


@pytest.mark.parametrize("strange", [0, 1])
@pytest.mark.parametrize("write", range(5))
def test_a_key_that_lies_elsewhere_is_not_forgotten_when_its_neighbour_is_done(
    write: int, strange: int
) -> None:
    flow = Flow("notes", state_partitions=2)
    words_by_first_letter(flow)
    rehearsal = Rehearsal(flow, partitions={"words": 2}, block_records=1)
    rehearsal.run_until_caught_up()
    own = {letter: partition_of(letter.encode(), 2) for letter in LETTERS}
    for letter, partition in own.items():
        rehearsal.feed("words", word(f"{letter}0"), partition=partition)
    for letter in LETTERS:
        rehearsal.feed("words", word(f"{letter}1"), partition=strange)
    rehearsal.crash_at_write(write)
    rehearsal.run_until_caught_up()
    words = {letter: sorted(text.split()) for letter, text in stored_words(rehearsal).items()}
    assert words == {letter: [f"{letter}0", f"{letter}1"] for letter in LETTERS}


def windows_of_minutes(settings: Settings) -> Rehearsal:
    """As many state partitions as the input has partitions: each waits for its own one, unless the flow must shuffle."""
    flow = Flow("minutes", state_partitions=2)
    flow.source("in", dict, raw=True).windowed(
        "windows",
        Tumbling(MINUTE_MS),
        key=lambda value: value["key"],
        state=Int64Value,
        fold=count,
        retention_ms=10**12,
    )
    return Rehearsal(flow, partitions={"in": 2}, settings=settings)


def feed_minute(rehearsal: Rehearsal, partition: int, minute: int) -> None:
    """One record, with a key that lies in its partition."""
    key = next(letter for letter in LETTERS if partition_of(letter.encode(), 2) == partition)
    rehearsal.feed("in", {"key": key}, partition=partition, timestamp_ms=minute * MINUTE_MS)


def minutes_of(rehearsal: Rehearsal) -> list[int]:
    """Which windows there are."""
    return sorted(window.span.start_ms // MINUTE_MS for window in rehearsal.windows("windows"))


def test_a_redo_waits_for_all_input_partitions_where_the_batch_has_waited_for_all() -> None:
    """Shuffled when it was sealed, it is shuffled again, though by now it could do without."""
    rehearsal = windows_of_minutes(SHUFFLING)
    for partition, minute in ((0, 1), (1, 10), (1, 20)):
        feed_minute(rehearsal, partition, minute)
    rehearsal.crash(step=4, when="after")
    rehearsal.run_until_crash()
    rehearsal.settings = Settings(allow_weak_durability=True)
    rehearsal.start()
    assert minutes_of(rehearsal) == [1]
    feed_minute(rehearsal, 0, 30)
    rehearsal.run_until_caught_up()
    feed_minute(rehearsal, 1, 31)
    rehearsal.run_until_caught_up()
    assert minutes_of(rehearsal) == [1, 10, 20, 30, 31]


@pytest.mark.parametrize("since", ["the input has grown", "it must shuffle"])
@pytest.mark.parametrize("write", range(5))
def test_what_a_batch_took_without_a_shuffle_its_redo_takes_whatever_has_changed_since(
    write: int, since: str
) -> None:
    """What its redo would leave waiting for other partitions is in no plan, and nobody would ever take it."""
    rehearsal = windows_of_minutes(Settings(allow_weak_durability=True))
    rehearsal.start()
    for partition, minute in ((0, 1), (1, 10), (1, 20), (1, 30)):
        feed_minute(rehearsal, partition, minute)
    rehearsal.crash_at_write(write, "after")
    rehearsal.run_until_crash()
    if since == "the input has grown":
        rehearsal.log.grow("in", 4)
    else:
        rehearsal.settings = SHUFFLING
    rehearsal.run_until_caught_up()
    assert minutes_of(rehearsal) == [1, 10, 20, 30]
