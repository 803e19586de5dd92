"""A chain of services whose middle one sends words that fail to its dead-letter topic, and what a naive count makes of them.

Every word comes once. The count knows no plans, marks or lanes. It asks the list of failed records what became of those that have
failed. Every other word that was read must be there once, in every state and at a receiver of everything.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.errors import ConfigurationError, Superseded
from sqe_chain.flow import Flow
from sqe_chain.operations.failed import FailedSelection
from sqe_chain.operations.failed_in_plans import FailedInPlans, list_in_plans
from sqe_chain.plans.settings import Settings
from sqe_chain.ports import Message
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash
from tests.support.environments import environment_of
from tests.support.parking_world import KEYS, MODES, Code, key_of, parking_flow, reader_flow, words_of
from tests.support.plans import last_plan
from tests.support.word_flows import words_in

FINAL = frozenset({"released", "discarded"})
"""What is never taken back."""


class DeadLetterWorld:
    """See the module.

    Args:
        seed: of what is drawn.
        state_partitions: as many as topics have partitions: no shuffle before the first stage.
        raw: words have no envelopes when the flow reads them.
    """

    def __init__(self, seed: int, state_partitions: int = 2, *, raw: bool = False) -> None:
        self.draw, self.raw, self.code = Random(seed), raw, Code()
        self.log = MemoryLog(f"dead-letters-{id(self)}")
        self.log.clear()
        said = Flow("says")
        said.source("said", StringValue, raw=True).to("words", key=key_of, partitions=2)
        self.says = Rehearsal(said, partitions={"said": 3}, log=self.log)
        flow = parking_flow(self.code, state_partitions, raw=raw, poison="dead_letter")
        settings = Settings(max_records=5, max_excluded_share=1.0)
        self.counts = Rehearsal(flow, partitions={"words": 2}, log=self.log, settings=settings)
        self.reads = Rehearsal(reader_flow(), log=self.log)
        self.came = list[str]()
        self.decided: dict[str, str] = {}
        self.released_once = self.refused = 0

    # ------------------------------------------------------------------ what happens

    def feed(self) -> None:
        """New words; some of those that can fail are broken. A republisher passes some on again, after crashes."""
        for _ in range(self.draw.randrange(1, 9)):
            key = self.draw.choice(KEYS)
            text = f"{key}{len(self.came)}{self.draw.choice(MODES)}"
            if text[-1] != "-" and self.draw.random() < 0.8:
                self.code.broken.add(text)
            data, number = StringValue(value=text).SerializeToString(), KEYS.index(key)
            if self.raw:
                self.counts.feed("words", data, partition=number % 2, key=key)
            else:
                self.says.feed("said", data, partition=number % 3)
            self.came.append(text)
        if not self.raw:
            for _ in range(self.draw.randrange(3)):
                self.says.crash(step=7, when="before")
                self.says.run_until_crash()
            self.says.run_until_caught_up()

    def read(self) -> None:
        """The flow reads what there is; it may crash on the way."""
        if self.draw.random() < 0.3:
            self.counts.crash_at_call(self.draw.randrange(60))
            with suppress(Crash):
                self.counts.run_until_caught_up()
            self.counts.cancel()
        self.counts.run_until_caught_up()

    def fix(self) -> None:
        """Some words fail no more."""
        self.code.broken = {text for text in sorted(self.code.broken) if self.draw.random() < 0.5}

    def decide(self) -> None:
        """An operator releases or discards; a supervisor repeats a command that is killed, and another operator may come in between."""
        selection = FailedSelection(key=self.draw.choice([*KEYS, None, None]))
        releases = self.draw.random() < 0.7
        if self.draw.random() < 0.3:
            other, at = self.draw.random() < 0.7, self.draw.randrange(60)
            self.counts.meanwhile(lambda: self._decide_beside(selection, releases=other), at=at)
        while True:  # bounded by the faults that were injected
            if self.draw.random() < 0.3:
                self.counts.crash_at_call(self.draw.randrange(80))
            self.counts.service = None
            try:
                self._decide(selection, releases=releases)
            except Crash:
                self.counts.crashes += 1
            except Superseded:
                break
            else:
                break
        self.counts.cancel()

    def _decide(self, selection: FailedSelection, *, releases: bool) -> None:
        operator = FailedInPlans(environment_of(self.counts))
        if releases:
            self.released_once += operator.release(selection).released
        else:
            operator.discard(selection)

    def _decide_beside(self, selection: FailedSelection, *, releases: bool) -> None:
        with suppress(Crash, Superseded):
            self._decide(selection, releases=releases)

    def fold_again(self) -> None:
        """Fold again, as far as the flow had read or less far; then read on."""
        self.counts.cancel()
        offsets = last_plan(self.counts.stores[""], self.counts.flow.name).next_offsets()
        to = {tp: self.draw.randrange(offset + 1) for tp, offset in offsets.items()}
        how = self.draw.randrange(3)
        self.counts.run_until_caught_up()  # or a release that was killed is refused by name
        try:
            self.counts.rebuild(to if how else None, republish=how == 2)
        except ConfigurationError as error:
            if "failed and was released" not in str(error):
                raise
            self.refused += 1
            self.counts.rebuild(to)
        self.counts.run_until_caught_up()

    # ------------------------------------------------------------------ what must be

    def statuses(self) -> dict[str, str]:
        """Of each word that has failed what the list shows."""
        records = list_in_plans(self.counts.flow, self.counts.stores[""], self.log)
        words = {
            (message.partition(), message.offset()): self._word_in(message)
            for message in self.log.records("words")
        }
        return {words[record.partition, record.offset]: record.status for record in records}

    def _word_in(self, message: Message) -> str:
        if self.raw:
            return StringValue.FromString(message.value() or b"").value
        return words_in(message)[0]

    def check(self) -> None:
        """States and what a receiver has counted are what the list of failed records gives."""
        self.counts.run_until_caught_up()
        self.reads.run_until_caught_up()
        statuses = self.statuses()
        for word, status in self.decided.items():
            assert statuses[word] == status, (word, status, statuses[word])
        self.decided |= {word: status for word, status in statuses.items() if status in FINAL}
        expected = Counter(word for word in self.came if statuses.get(word, "released") == "released")
        for rehearsal, stages in (
            (self.counts, ("letters", "all")),
            (self.reads, ("passed", "counted", "done", "states")),
        ):
            for stage in stages:
                counted = Counter(word for words in words_of(rehearsal, stage).values() for word in words)
                assert counted == expected, (stage, counted - expected, expected - counted)
