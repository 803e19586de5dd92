"""A flow of words that is rebuilt: what its store loses, attempts that were interrupted, and what must hold afterwards."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.plans.plan import Plan
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Crash, Rehearsal
from tests.support.plans import last_plan
from tests.support.typed_results import payloads_of
from tests.support.word_flows import append_word, first_letter, same_key, stored_words, word

BEFORE = ["ant", "fig", "bee", "ape", "fox", "cow", "auk", "gnu"]
AFTER = ["asp", "boa", "dog"]


def flow_of(state_partitions: int = 2, buckets: int = 1, **source: Any) -> Flow:
    flow = Flow("notes", state_partitions=state_partitions)
    first = flow.source("words", StringValue, **source).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, buckets=buckets
    )
    first.to("firsts", key=first_letter, partitions=2)
    second = first.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    second.changes().to("totals", partitions=1)
    return flow


class Pipeline:
    """A flow that has noted some words in several batches, and a store that can lose things."""

    def __init__(self, flow: Flow | None = None, settings: Settings | None = None) -> None:
        self.store = MemoryStore(f"rebuild-{id(self)}")
        self.store.restore_all()
        self.flow = flow or flow_of()
        self.settings = settings or Settings(max_records=3)
        self.found = Rehearsal(self.flow, partitions={"words": 2}, store=self.store, settings=self.settings)
        self.words: list[str] = []

    def feed(self, words: list[str]) -> None:
        for text in words:
            self.found.feed("words", word(text), key=text[0])
        self.words += words
        self.found.run_until_caught_up()

    def same(self, flow: Flow) -> Pipeline:
        """The same broker and store, another declaration of the flow."""
        other = object.__new__(Pipeline)
        other.__dict__.update(self.__dict__)
        other.flow = flow
        other.found = Rehearsal(
            flow, partitions={"words": 2}, log=self.found.log, store=self.store, settings=self.settings
        )
        return other

    def published(self) -> Counter[str]:
        """What was published per word."""
        return Counter(
            payload.value
            for envelope in self.found.published("firsts")
            for payload in payloads_of(StringValue, envelope)
        )

    def stored_stages(self) -> set[tuple[str, str]]:
        """The stages with states in the store, by the names under which it has them."""
        return {
            (name, stage) for (name, stage, _), part in self.store.copy_all().parts.items() if part.states
        }

    def check(self) -> None:
        """States are exact, each word was published once."""
        letters: dict[str, list[str]] = {}
        for text in self.words:
            letters.setdefault(text[0], []).append(text)
        assert stored_words(self.found) == {letter: " ".join(words) for letter, words in letters.items()}
        assert Counter(stored_words(self.found, "all")["all"].split()) == Counter(self.words)
        assert self.published() == Counter(self.words)


def lose_a_cell(pipeline: Pipeline) -> None:
    pipeline.store.restore_part("notes", "letters", 1)


def lose_a_stage(pipeline: Pipeline) -> None:
    for part in range(2):
        pipeline.store.restore_part("notes", "all", part)


def lose_everything(pipeline: Pipeline) -> None:
    pipeline.store.restore_all()


def roll_back_downstream(pipeline: Pipeline) -> None:
    copies = [pipeline.store.copy_part("notes", "all", part) for part in range(2)]
    pipeline.feed(["ace", "bug"])
    for part, copy in enumerate(copies):
        pipeline.store.restore_part("notes", "all", part, copy)


def small_flow() -> Flow:
    flow = Flow("notes", state_partitions=2)
    first = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )
    first.to("firsts", key=first_letter, partitions=2)
    return flow


class SmallPipeline(Pipeline):
    """One stage; a batch of all that is there."""

    def __init__(self) -> None:
        super().__init__(small_flow(), Settings(allow_weak_durability=True))
        self.feed(BEFORE[:4])

    def check(self) -> None:
        letters: dict[str, list[str]] = {}
        for text in self.words:
            letters.setdefault(text[0], []).append(text)
        assert stored_words(self.found) == {letter: " ".join(words) for letter, words in letters.items()}
        assert self.published() == Counter(self.words)

    def rows(self) -> dict[str, int]:
        """How many states the store holds, by the names under which it does."""
        found: Counter[str] = Counter()
        for (name, _, _), part in self.store.copy_all().parts.items():
            found[name] += len(part.states)
        return {name: count for name, count in found.items() if count}

    def last_plan(self) -> Plan:
        return last_plan(self.store, "notes")

    def stored_in(self) -> str:
        return self.last_plan().layout.stages["letters"].flow


def rebuilt_once(pipeline: SmallPipeline) -> None:
    pipeline.found.rebuild()


def rebuilt_twice(pipeline: SmallPipeline) -> None:
    pipeline.found.rebuild()
    pipeline.feed(["ace"])
    pipeline.found.rebuild()


def interrupted_twice(pipeline: SmallPipeline) -> None:
    """The first one is not closed by the second, for this one does not get so far."""
    interrupted(pipeline)
    pipeline.found.crash(step=1, when="after")
    with pytest.raises(Crash):
        pipeline.found.rebuild()


def interrupted(pipeline: SmallPipeline) -> None:
    """Right before the switch."""
    probe = SmallPipeline()
    before = len(probe.found.script.written)
    probe.found.rebuild()
    writes = probe.found.script.written[before:]
    at = next(i for i, what in enumerate(writes) if i > 1 and what.startswith("home of notes:"))
    pipeline.found.crash_at_write(at)
    with pytest.raises(Crash):
        pipeline.found.rebuild()
    pipeline.found.script.writes.clear()
    pipeline.check()


def untouched(_: SmallPipeline) -> None:
    """Nothing has happened to it."""


HISTORIES = (untouched, rebuilt_once, rebuilt_twice, interrupted, interrupted_twice)


def start_again(pipeline: SmallPipeline) -> None:
    pipeline.found.restart()


def rebuild_again(pipeline: SmallPipeline) -> None:
    pipeline.found.rebuild()


def resume(pipeline: SmallPipeline) -> None:
    """Resume an attempt; where there is none that is refused, and changes nothing."""
    try:
        pipeline.found.rebuild(resume=True)
    except ConfigurationError as error:
        assert "no interrupted attempt" in str(error) or "start without --resume" in str(error)  # noqa: PT017
        pipeline.check()


def rebuild_after_a_crash(rehearsal: Rehearsal, *, resume: bool) -> None:
    """Rebuild again; or resume, and rebuild where the first one had not begun to fold, or was done already."""
    try:
        rehearsal.rebuild(resume=resume)
    except ConfigurationError as error:
        if not resume or "no interrupted attempt" not in str(error):
            raise
        rehearsal.rebuild()
