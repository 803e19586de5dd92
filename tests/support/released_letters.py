"""A flow without stages whose words fail, an operator who decides about them, and a receiver that counts what comes."""

from __future__ import annotations

from itertools import count

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.features.dead_letter_commits import replay_group
from sqe_chain.flow import Flow
from sqe_chain.operations.failed import DiscardResult, FailedSelection, ReleaseResult
from sqe_chain.operations.failed_letters import FailedLetters
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Commit, Log
from sqe_chain.testing import Rehearsal
from tests.support.word_flows import append_word, same_key, stored_words, word

WORDS = ["ant", "bee", "cow", "dog", "elk", "fox"]
_names = count()


class Code:
    """What a user's function does: it fails for some words, and marks the others."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.mark = set(broken), ""

    def check(self, value: StringValue) -> StringValue:
        if value.value in self.broken:
            raise ValueError(f"cannot read {value.value}")
        return word(value.value + self.mark)


class Cleaning:
    """A flow that checks words, and publishes them; and a receiver."""

    def __init__(
        self, *broken: str, raw: bool = True, feed: bool = True, partitions: int = 1, kept_in: int = 1
    ) -> None:
        self.code, self.raw = Code(*broken), raw
        flow = Flow("clean", poison="dead_letter", dead_letter_partitions=kept_in)
        source = flow.source("words", StringValue, raw=raw)
        source.map(self.code.check).to("good", key=lambda text: text.value, partitions=2)
        self.sender = Rehearsal(
            flow, partitions={"words": partitions}, settings=Settings(max_excluded_share=1.0)
        )
        totals = Flow("totals", state_partitions=1)
        totals.source("good", StringValue).aggregate("all", key=same_key, state=StringValue, fold=append_word)
        self.receiver = Rehearsal(totals, log=self.sender.log, partitions={"good": 2})
        if feed:
            self.feed(*WORDS)

    def feed(self, *words: str) -> None:
        for number, text in enumerate(words):
            value = word(text).SerializeToString() if self.raw else word(text)
            at = number % self.sender.log.describe(["words"])["words"].partitions
            self.sender.feed("words", value, partition=at, key=text, timestamp_ms=1 + number)
        self.sender.run_until_caught_up()

    def corrected(self) -> Cleaning:
        self.code.broken.clear()
        return self

    def operator(self, log: Log | None = None) -> FailedLetters:
        return FailedLetters(
            self.sender.flow, log or self.sender.log, lambda: 7, lambda: f"name-{next(_names)}"
        )

    def release(self, log: Log | None = None, **selection: object) -> ReleaseResult:
        return self.operator(log).release(FailedSelection(**selection))  # type: ignore[arg-type]

    def discard(self, log: Log | None = None, **selection: object) -> DiscardResult:
        return self.operator(log).discard(FailedSelection(**selection))  # type: ignore[arg-type]

    def statuses(self) -> dict[str, str]:
        return {str(record.key, "utf-8"): record.status for record in self.operator().list() if record.key}

    def counted(self) -> list[str]:
        self.receiver.run_until_caught_up()
        return sorted(stored_words(self.receiver, "all").get("all", "").split())


def replayed_by_an_older_version(cleaning: Cleaning, *, sending: bool = False) -> None:
    """As that version has committed it: the first record is sent, and the third."""
    log = cleaning.sender.log
    topic_id = log.describe(["clean.dead-letters"])["clean.dead-letters"].topic_id.hex()
    metadata = (
        f'{{"topic_id":"{topic_id}","epoch":0,"round":0,"to":"","sending":{str(sending).lower()},'
        '"highest":{},"passage":1,"selection":"x","apart":[1,1]}'
    )
    log.commit(replay_group("clean"), {("clean.dead-letters", 0): Commit(1, metadata)})


def with_a_stage(cleaning: Cleaning) -> Flow:
    """The same flow, which also counts words now."""
    flow = Flow("clean", poison="dead_letter", state_partitions=1)
    checked = flow.source("words", StringValue, raw=True).map(cleaning.code.check)
    checked.to("good", key=lambda text: text.value, partitions=2)
    checked.aggregate("all", key=same_key, state=StringValue, fold=append_word)
    return flow
