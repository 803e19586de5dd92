"""Goal: filters by id and windows that take records in runs give what they give record by record: outputs, rows, marks, plans.

Method: Hypothesis draws what is published, in which batches, and whether they are killed. The same flow runs twice, once with its
stages declared to take no runs, and everything in broker and store is compared. A count of the runs shows that there were any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sqe_chain import Flow
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore, StoreCopy
from sqe_chain.flow import Stream
from sqe_chain.stages import Tumbling
from sqe_chain.stages.clock import JumpGuard
from sqe_chain.stages.deduplicate import Deduplicate, DeduplicateKind
from sqe_chain.stages.window_runs import WindowRuns
from sqe_chain.stages.windowed import WindowsKind
from sqe_chain.testing import Rehearsal


@dataclass
class Word:
    """What is published; without a text it has no id. `own_ms` is a time of its own, which some stages go by."""

    key: str
    text: str
    own_ms: int = 0


@dataclass
class Texts:
    """The state of a window."""

    texts: list[str] = field(default_factory=list)
    share: float = 0


@dataclass(frozen=True)
class Published:
    """A record of the input, and what comes behind it: the end of a batch, or a kill in it."""

    word: Word
    at_ms: int
    partition: int
    ends: bool
    kill: int


def id_of(word: Word) -> str | bytes | None:
    return word.text.encode() if word.text == "b" else word.text or None


def both(word: Word) -> list[Word]:
    """One or two values, which go out together if both do."""
    return [word, Word(word.key, "b", word.own_ms + 15)] if word.text == "c" else [word]


def key_of(word: Word) -> str:
    return word.key


def note(state: Texts, word: Word) -> None:
    """Not commutative, and with an int where a float is declared."""
    state.texts.append(word.text)
    state.share = len(state.texts)


GUARD = JumpGuard(max_jump_ms=60, confirmations=2)
STAGES: dict[str, Callable[[Stream[Word]], Stream[Any]]] = {
    "key and id": lambda words: words.deduplicate_by_key_value("stage", id_of, 30, guard=GUARD),
    "key": lambda words: words.deduplicate_by_key("stage", 0, guard=GUARD),
    "id": lambda words: words.deduplicate("stage", id_of, 30, late="drop", guard=JumpGuard(60, 2, "drop")),
    "windows": lambda words: words.windowed(
        "stage", Tumbling(20), state=Texts, fold=note, lateness_ms=10, retention_ms=50, guard=GUARD
    ),
    "windows by own times": lambda words: words.windowed(
        "stage",
        Tumbling(20),
        state=Texts,
        fold=note,
        time="own_ms",
        lateness_ms=10,
        retention_ms=50,
        guard=GUARD,
    ),
}
RUNS: list[tuple[type[Any], str, type[Any], str]] = [
    (DeduplicateKind, "by_columns", Deduplicate, "accept_run"),
    (WindowsKind, "only_folds", WindowRuns, "fold_run"),
]
words = st.lists(
    st.builds(
        Published,
        st.builds(
            Word,
            st.sampled_from("xyz"),
            st.sampled_from(["a", "b", "c", "", "long" * 40]),
            st.integers(0, 140),
        ),
        st.integers(0, 120),
        st.integers(0, 1),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([0] * 7 + [4, 5, 6]),
    ),
    min_size=1,
    max_size=40,
)


def everything(
    name: str, published: list[Published], *, enveloped: bool, parts: int, dropped: bool
) -> tuple[StoreCopy, list[Any]]:
    """What broker and store hold in the end."""
    log, store = MemoryLog("runs-and-records"), MemoryStore("runs-and-records", 3)
    log.clear()
    store.restore_all()
    flow = Flow("service", state_partitions=parts)
    stage = STAGES[name](flow.source("in", Word, raw=not enveloped).flat_map(both).key_by(key_of))
    stage.to("out", key=lambda _: "all", partitions=2)
    if dropped:
        stage.dropped().to("dropped", key=lambda _: "all", partitions=1)  # type: ignore[attr-defined]
    relaying = Flow("relay")
    relaying.source("raw", Word, raw=True).to("in", key=key_of, partitions=2)
    relay = Rehearsal(relaying, log=log, partitions={"raw": 2}) if enveloped else None
    service = Rehearsal(flow, log=log, store=store, partitions={"in": 2}, now_ms=1_000_000)
    for one in published:
        feeder, topic = (service, "in") if relay is None else (relay, "raw")
        feeder.feed(topic, one.word, key=one.word.key, partition=one.partition, timestamp_ms=one.at_ms)
        if one.ends:
            if relay is not None:
                relay.run_until_caught_up()
            if one.kill:
                service.crash(step=one.kill)
            service.run_until_caught_up()
    if relay is not None:
        relay.run_until_caught_up()
    service.run_until_caught_up()
    return store.copy_all(), [
        log.records(topic) for topic in ("out", "dropped") if topic in service_topics(flow)
    ]


def service_topics(flow: Flow) -> set[str]:
    return {output.topic for output in flow.compile().outputs}


@pytest.fixture(autouse=True, scope="module")
def _short_blocks() -> Iterator[None]:
    """Units of one input come in two blocks, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sqe_chain.task.stage_part._BLOCK", 3)
        yield


@pytest.mark.parametrize("name", STAGES)
@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(words, st.booleans(), st.sampled_from([2, 3]), st.booleans())
def test_runs_give_what_records_give(
    name: str, published: list[Published], enveloped: bool, parts: int, dropped: bool
) -> None:
    ways = {"enveloped": enveloped, "parts": parts, "dropped": dropped}
    found = everything(name, published, **ways)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as one_by_one:
        for kind, trait, stage, run in RUNS:
            one_by_one.setattr(kind, trait, False)
            one_by_one.setattr(stage, run, None)
        assert everything(name, published, **ways) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STAGES)
def test_records_come_in_runs(name: str) -> None:
    """Or the test above would compare nothing."""
    published = [Published(Word("x", str(number)), number, 0, ends=False, kill=0) for number in range(40)]
    for *_, stage, run in RUNS:
        if ("window" in name) is (stage is WindowRuns):
            with patch.object(stage, run, autospec=True, side_effect=getattr(stage, run)) as called:
                everything(name, published, enveloped=True, parts=2, dropped=False)
            assert called.call_count
