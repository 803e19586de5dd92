"""Goal: each kind of change of a flow's code is named by the comparison, and sums are exact after the switch.

Method: words are counted under their initials. A shadow runs each changed declaration. What must come out is added up here from the words
alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.typed_results import payloads_of, states_as
from tests.support.word_flows import append_word, first_letter, word

BEFORE = ["ant", "fig", "bee", "ape", "fox", "cow", "auk", "gnu", "eel", "elk"]
AFTER = ["asp", "boa", "dog", "emu"]
Words = list[str]
States = dict[str, Counter[str]]


@dataclass
class Noted:
    """A state with a field that other code has not."""

    value: str = ""
    length: int = 0


@dataclass
class NotedWithout:
    """The same type, without the field."""

    value: str = ""


NotedWithout.__name__ = NotedWithout.__qualname__ = "Noted"


@dataclass(frozen=True)
class Code:
    """A declaration of the flow.

    Attributes:
        key: of the stage.
        fold: of the stage.
        noted: type of the states of a second one.
        partitions: its number of state partitions.
        stages: further stages.
        keeps: which words it counts.
        store: where the stage is stored; None: in the default store.
        output: name of its output.
    """

    key: Callable[[StringValue], str] = first_letter
    fold: Callable[[StringValue, StringValue], list[StringValue]] = append_word
    noted: type = Noted
    partitions: int = 2
    stages: tuple[str, ...] = ("further",)
    keeps: Callable[[StringValue], bool] = lambda _: True
    store: str | None = None
    output: str = "firsts"

    def flow(self) -> Flow:
        flow = Flow("notes", state_partitions=self.partitions)
        words = flow.source("words", StringValue).filter(self.keeps)
        first = words.aggregate("letters", key=self.key, state=StringValue, fold=self.fold, store=self.store)
        first.to("firsts", name=self.output, key=first_letter, partitions=2)
        words.aggregate("noted", key=first_letter, state=self.noted, fold=note)
        for name in self.stages:
            words.aggregate(name, key=first_letter, state=StringValue, fold=append_word)
        return flow


def last_character(value: StringValue) -> str:
    return value.value[-1]


def twice(state: StringValue, payload: StringValue) -> list[StringValue]:
    state.value += f"{payload.value} {payload.value} "
    return [payload]


def note(state: Any, payload: StringValue) -> list[StringValue]:
    state.value += f"{payload.value} "
    if isinstance(state, Noted):
        state.length += len(payload.value)
    return [payload]


def without_e(value: StringValue) -> bool:
    return "e" not in value.value


def by(words: Words, key: Callable[[str], str] = lambda text: text[0]) -> States:
    """Words under their keys, each counted."""
    states: States = {}
    for text in words:
        states.setdefault(key(text), Counter())[text] += 1
    return states


@dataclass(frozen=True)
class Change:
    """A kind of change, and what must come of it.

    Attributes:
        code: the new code.
        letters: the states of the first stage, of all words.
        answer: of each stage: equal, different, missing and added keys; or "new", or "gone".
        refused: what the switch names; empty: it needs no flag.
        stages: stages after the switch, besides the first one.
        missing: words that are not published after the switch.
    """

    code: Code
    letters: Callable[[Words], States] = by
    answer: Mapping[str, object] = field(default_factory=dict)
    refused: str = ""
    stages: tuple[str, ...] = ("further",)
    published: Callable[[str], bool] = lambda _: True


KEYS = len({text[0] for text in BEFORE})
SAME = (KEYS, 0, 0, 0)
LAST = {text[-1] for text in BEFORE}
FIRST = {text[0] for text in BEFORE}
WITHOUT_E = {text[0] for text in BEFORE if "e" not in text}
CHANGED = {text[0] for text in BEFORE if "e" in text}
CODE = Code()
CHANGES = {
    "nothing": Change(CODE, answer={"letters": SAME, "further": SAME}),
    "fold": Change(
        replace(CODE, fold=twice),
        letters=lambda words: by(words + words),
        answer={"letters": (0, KEYS, 0, 0), "further": SAME},
        refused=f"stage 'letters': 0 keys equal, {KEYS} different",
    ),
    "key": Change(
        replace(CODE, key=last_character),
        letters=lambda words: by(words, lambda text: text[-1]),
        answer={"letters": (0, len(FIRST & LAST), len(FIRST - LAST), len(LAST - FIRST)), "further": SAME},
        refused="missing in the new code",
    ),
    "filter": Change(
        replace(CODE, keeps=without_e),
        letters=lambda words: by([text for text in words if "e" not in text]),
        answer={
            name: (KEYS - len(CHANGED), len(CHANGED & WITHOUT_E), len(CHANGED - WITHOUT_E), 0)
            for name in ("letters", "further")
        },
        refused="different, 1 missing in the new code|different, 2 missing in the new code",
        published=lambda text: "e" not in text,
    ),
    "new stage": Change(
        replace(CODE, stages=("further", "newer")),
        answer={"letters": SAME, "further": SAME, "newer": "new"},
        stages=("further", "newer"),
    ),
    "removed stage": Change(
        replace(CODE, stages=()),
        answer={"letters": SAME, "further": "gone"},
        refused="stage 'further' is not in the new code",
        stages=(),
    ),
    "removed field": Change(replace(CODE, noted=NotedWithout), answer={"letters": SAME, "further": SAME}),
    "state partitions": Change(replace(CODE, partitions=3), answer={"letters": SAME, "further": SAME}),
    "another store": Change(replace(CODE, store="other"), answer={"letters": SAME, "further": SAME}),
    "renamed output": Change(
        replace(CODE, output="initials"),
        answer={"letters": SAME, "further": SAME},
        refused="output 'firsts' is not in the new code",
    ),
}


class World:
    """The flow on a broker and two stores; its code changes."""

    def __init__(self) -> None:
        self.log = MemoryLog(f"changes-{id(self)}")
        self.log.clear()  # of another world, which had the same number
        self.stores = {"": MemoryStore(f"changes-{id(self)}"), "other": MemoryStore(f"others-{id(self)}")}
        for store in self.stores.values():
            store.restore_all()
        self.words: Words = []
        self.run_with(CODE)

    def run_with(self, code: Code) -> None:
        """From now on the flow has this code."""
        settings = Settings(max_records=3)
        self.found = Rehearsal(
            code.flow(), partitions={"words": 2}, log=self.log, store=self.stores, settings=settings
        )

    def feed(self, words: Words) -> None:
        for text in words:
            self.found.feed("words", word(text), key=text[0])
        self.words += words
        self.found.run_until_caught_up()

    def follow(self, code: Code) -> None:
        """Let the shadow come to where the flow is."""
        shadow = self.found.shadow(code.flow())
        service = shadow.start()
        while shadow.batch():
            pass
        service.leave()

    def states(self, stage: str) -> States:
        known = states_as(StringValue, self.found, stage)
        return {key.decode(): Counter(state.value.split()) for key, state in known.items()}

    def names(self) -> set[str]:
        """The names under which there are states, in all stores."""
        parts = [known for store in self.stores.values() for known in store.copy_all().parts.items()]
        return {name for (name, _, _), part in parts if part.states}

    def published(self) -> Counter[str]:
        """Words in the output, by what readers count: each record once."""
        return Counter(
            payload.value
            for envelope in self.found.published("firsts")
            for payload in payloads_of(StringValue, envelope)
        )


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_sums_are_exact_after_the_switch(name: str) -> None:
    change, world = CHANGES[name], World()
    world.feed(BEFORE)
    world.follow(change.code)
    compared = world.found.compared(change.code.flow())
    assert {
        result.stage: "new"
        if result.new
        else "gone"
        if result.gone
        else (result.equal, result.different, result.missing, result.added)
        for result in compared
    } == {"noted": change.answer["letters"] if name == "filter" else SAME, **change.answer}
    assert not any(result.moved for result in compared)
    world.feed(AFTER[:1])  # the switch folds it
    if change.refused:
        with pytest.raises(ConfigurationError, match=change.refused):
            world.found.switch(change.code.flow())
        world.feed(AFTER[1:2])  # it goes on with its code
    before = list(world.words)
    world.found.switch(change.code.flow(), accept_differences=bool(change.refused))
    world.run_with(change.code)
    world.feed(AFTER[2:])
    assert world.states("letters") == change.letters(world.words)
    for stage in change.stages:
        assert world.states(stage) == by([text for text in world.words if change.published(text)])
    noted = {key.decode(): Counter(state.value.split()) for key, state in world.found.states("noted").items()}
    assert noted == by([text for text in world.words if change.published(text)])
    wanted = before + [text for text in world.words[len(before) :] if change.published(text)]
    assert world.published() == Counter(wanted), "no reader loses a word, or gets one twice"
    world.found.end_shadow(change.code.flow())  # and with it the way back
    assert "notes" not in world.names()
