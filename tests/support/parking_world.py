"""A chain of services whose middle one parks words that fail, and what must have been counted, by a plain loop over the words.

A republisher passes words on, some of them again, after crashes. The flow that parks counts them. A third flow counts what
that one publishes.
"""

from __future__ import annotations

from itertools import count
from random import Random

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.operations.parked import ParkedResult, ParkedSelection, ParkedWork, parked_in
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import Crash
from tests.support.environments import environment_of
from tests.support.plans import last_plan
from tests.support.typed_results import states_as
from tests.support.word_flows import append_word

_names = count()
KEYS = "abcde"
PLACES = "dmxtfso"
"""Where a word fails: decoding, a function, before an output, in an output that is too large, the first fold, the second, after it."""
MODES = PLACES + "------"


def key_of(value: StringValue) -> str:
    return value.value[0]


class Code:
    """What the user's functions do: each fails for some words until it is corrected."""

    def __init__(self) -> None:
        self.broken = set[str]()

    def fails(self, text: str, place: str) -> None:
        if text in self.broken and text[-1] == place:
            raise ValueError(f"{place}: cannot take {text}")

    def decode(self, data: bytes) -> StringValue:
        value = StringValue.FromString(data)
        self.fails(value.value, "d")
        return value

    def check(self, value: StringValue) -> StringValue:
        self.fails(value.value, "m")
        return value

    def pass_on(self, value: StringValue) -> StringValue:
        self.fails(value.value, "x")
        too_large = value.value in self.broken and value.value[-1] == "t"
        return StringValue(value=value.value * (400_000 if too_large else 1))

    def fold(self, words: StringValue, value: StringValue) -> list[StringValue]:
        given = append_word(words, value)  # the state has changed when it fails
        self.fails(value.value, "f")
        return given

    def fold_all(self, words: StringValue, value: StringValue) -> list[StringValue]:
        given = append_word(words, value)
        self.fails(value.value, "s")
        return given

    def after(self, value: StringValue) -> StringValue:
        self.fails(value.value, "o")
        return value


def parking_flow(
    code: Code, state_partitions: int = 2, *, raw: bool = False, poison: PoisonPolicy = "park"
) -> Flow:
    flow = Flow("parks", poison=poison, state_partitions=state_partitions)
    source = flow.source("words", code.decode, raw=raw).map(code.check)
    source.map(code.pass_on).to("passed", key=key_of, partitions=2)
    first = source.aggregate("letters", key=key_of, state=StringValue, fold=code.fold)
    first.changes().to("states", partitions=2)
    first.to("counted", key=key_of, partitions=2)
    second = first.aggregate("all", key=lambda _: "all", state=StringValue, fold=code.fold_all)
    second.map(code.after).to("done", key=key_of, partitions=2)
    return flow


def reader_flow() -> Flow:
    """Reads everything that the flow publishes."""
    flow = Flow("reads", state_partitions=2)
    for topic in ("passed", "counted", "done"):
        flow.source(topic, StringValue).aggregate(topic, key=key_of, state=StringValue, fold=append_word)

    def newest(known: StringValue, value: StringValue) -> None:
        known.CopyFrom(value)

    flow.source("states", StringValue).aggregate("states", key=key_of, state=StringValue, fold=newest)
    return flow


class World:
    """See the module.

    Args:
        seed: of what is drawn.
        state_partitions: as many as topics have partitions: no shuffle before the first stage.
        raw: words have no envelopes when the flow reads them.
    """

    def __init__(self, seed: int = 0, state_partitions: int = 2, *, raw: bool = False) -> None:
        self.draw, self.raw, self.code = Random(seed), raw, Code()
        self.log = MemoryLog(f"parking-{id(self)}")
        self.log.clear()
        said = Flow("says")
        said.source("said", StringValue, raw=True).to("words", key=key_of, partitions=2)
        self.says = Rehearsal(said, partitions={"said": 3}, log=self.log)
        settings = Settings(max_records=5)
        flow = parking_flow(self.code, state_partitions, raw=raw)
        self.parks = Rehearsal(flow, partitions={"words": 2}, log=self.log, settings=settings)
        self.reads = Rehearsal(reader_flow(), log=self.log)
        self.numbers = self.released = 0
        # The oracle: of each key, what came, in order; how much of it was read, and how much of that counts. The rest waits.
        self.came: dict[str, list[str]] = {key: [] for key in KEYS}
        self.known: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.counts: dict[str, int] = dict.fromkeys(KEYS, 0)

    # ------------------------------------------------------------------ what happens

    def feed(self, count: int, *, broken: float = 0.5) -> list[str]:
        """New words; some of those that can fail are broken."""
        fed = []
        for _ in range(count):
            key = self.draw.choice(KEYS)
            text = f"{key}{self.numbers}{self.draw.choice(MODES)}"
            self.numbers += 1
            if text[-1] != "-" and self.draw.random() < broken:
                self.code.broken.add(text)
            if self.raw:
                data = StringValue(value=text).SerializeToString()
                self.parks.feed("words", data, partition=KEYS.index(key) % 2, key=key)
            else:
                data = StringValue(value=text).SerializeToString()
                self.says.feed("said", data, partition=KEYS.index(key) % 3)
            self.came[key].append(text)
            fed.append(text)
        if not self.raw:
            for _ in range(self.draw.randrange(3)):
                self.says.crash(step=7, when="before")
                self.says.run_until_crash()
            self.says.run_until_caught_up()
        return fed

    def read(self) -> None:
        """The flow reads what there is. Of each key it counts up to the first word that fails."""
        self.parks.run_until_caught_up()
        for key, came in self.came.items():
            waits = self.waits(key)
            self.known[key] = len(came)
            if not waits:
                self._go_on(key)

    def fix(self, share: float = 1.0) -> None:
        for text in sorted(self.code.broken):
            if self.draw.random() < share:
                self.code.broken.discard(text)

    def release(self, key: str | None = None) -> ParkedResult:
        """Release the words of a key, or all."""
        result = self.repeatedly(ParkedSelection(key=key))
        before = sum(self.counts.values())
        for one in key or KEYS:
            self._go_on(one)
        self.released += sum(self.counts.values()) - before
        return result

    def release_beside(self) -> None:
        """Release all, by another run than the present one, which sleeps. What it has read since counts before, or after."""
        ParkedWork(environment_of(self.parks)).run()

    def discard(self, key: str | None = None) -> ParkedResult:
        """Drop the words of a key that wait, or all that wait."""
        result = self.repeatedly(ParkedSelection(key=key), discards=True)
        for one in key or KEYS:
            del self.came[one][self.counts[one] : self.known[one]]
            self.known[one] = self.counts[one]
        return result

    def repeatedly(self, selection: ParkedSelection, *, discards: bool = False) -> ParkedResult:
        """Give the command; a supervisor repeats it after a crash."""
        while True:  # bounded by the faults that were injected
            self.parks.service = None
            try:
                return ParkedWork(environment_of(self.parks), selection, discards).run()
            except Crash:
                self.parks.crashes += 1

    def rebuild(self) -> None:
        """Fold again, as far as the flow had read or less far; then read on."""
        self.parks.cancel()
        offsets = last_plan(self.parks.stores[""], self.parks.flow.name).next_offsets()
        to = {tp: self.draw.randrange(offset + 1) for tp, offset in offsets.items()}
        how = self.draw.randrange(3)
        try:
            self.parks.rebuild(to if how else None, republish=how == 2)
        except ConfigurationError as error:
            assert how == 2
            assert self.released
            if "failed and was released" not in str(error):
                raise
            self.parks.rebuild(to)
        self.parks.run_until_caught_up()

    def move(self) -> None:
        """Go on with another store."""
        self.parks.cancel()
        lines = self.parks.exported()
        moved = Rehearsal(
            self.parks.flow,
            log=self.log,
            settings=self.parks.settings,
            store=MemoryStore(f"moved-{next(_names)}"),
        )
        moved.imported(lines)
        self.parks = moved

    # ------------------------------------------------------------------ what must be

    def waits(self, key: str) -> bool:
        """Whether something of a key waits."""
        return self.counts[key] < self.known[key]

    def _go_on(self, key: str) -> None:
        came = self.came[key]
        while self.counts[key] < self.known[key] and came[self.counts[key]] not in self.code.broken:
            self.counts[key] += 1

    def counted(self) -> dict[str, list[str]]:
        """Of each key the words that count, in order."""
        return {key: self.came[key][: self.counts[key]] for key in KEYS if self.counts[key]}

    def check(self) -> None:
        """States, what waits, and what a receiver has counted are as the oracle has them."""
        counted = self.counted()
        assert words_of(self.parks, "letters") == counted
        total = words_of(self.parks, "all").get("all", [])
        assert sorted(total) == sorted(word for words in counted.values() for word in words)
        waiting: dict[str, int] = {}
        for record in parked_in(self.parks.stores[""], self.parks.flow):
            key = (record.record_key or b"").decode()
            waiting[key] = waiting.get(key, 0) + 1
        assert waiting == {
            key: self.known[key] - self.counts[key] for key in KEYS if self.known[key] > self.counts[key]
        }
        self.reads.run_until_caught_up()
        for stage in ("passed", "counted", "done", "states"):
            assert words_of(self.reads, stage) == counted, stage


def words_of(rehearsal: Rehearsal, stage: str) -> dict[str, list[str]]:
    """The words in the states of a stage, by key."""
    found = states_as(StringValue, rehearsal, stage).items()
    return {key.decode(): state.value.split() for key, state in found}
