"""A flow in two stores, and readers from outside who know nothing but its locations."""

from __future__ import annotations

import itertools

from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.flow import Flow
from sqe_chain.ports import Locations
from sqe_chain.testing import Rehearsal, Settings
from sqe_chain.testing.faults import PortCall
from tests.support.word_flows import first_letter, same_key, word

WORDS = ["ant", "fig", "bee", "ape", "fox", "cow", "auk", "gnu"]
names = itertools.count()


def flow_of(
    weight: int = 1, state_partitions: int = 2, *, third: bool = False, elsewhere: str = "other"
) -> Flow:
    """A flow in two stores. Code of another weight counts otherwise, so old and new states differ."""

    def count(total: Int64Value, value: StringValue) -> list[StringValue]:
        total.value += weight
        return [value]

    flow = Flow("notes", state_partitions=state_partitions)
    letters = flow.source("words", StringValue).aggregate(
        "letters", key=first_letter, state=Int64Value, fold=count, view="json", buckets=2
    )
    everything = letters.aggregate("all", key=same_key, state=Int64Value, fold=count, store=elsewhere or None)
    if third:
        everything.aggregate("later", key=same_key, state=Int64Value, fold=count)
    return flow


States = dict[str, dict[bytes, int]]


class Deployment:
    """A flow with two stores, and readers from outside."""

    def __init__(self) -> None:
        self.stores = {name: MemoryStore(f"locations-{next(names)}", max_rows=2) for name in ("", "other")}
        self.found = Rehearsal(flow_of(), partitions={"words": 2}, store=self.stores, settings=SETTINGS)
        self.feed(WORDS)

    def feed(self, words: list[str]) -> None:
        for text in words:
            self.found.feed("words", word(text), key=text[0])
        self.found.run_until_caught_up()

    def of(self, flow: Flow) -> Rehearsal:
        """The same broker and stores, other code."""
        return Rehearsal(flow, log=self.found.log, store=self.stores, settings=SETTINGS)

    def read(self, asked: str = "") -> States:
        """All states and views, as a reader finds them who only knows the layout of the stores.

        Args:
            asked: the store that is asked for the locations.
        """
        locations = self.stores[asked].locations("notes")
        assert locations is not None
        found: States = {}
        for stage, one in locations.stages.items():
            store = self.stores[one.store]
            cells = [
                store.copy_part(one.flow, stage, cell) for cell in range(one.state_partitions * one.buckets)
            ]
            rows = {key: state for cell in cells for key, state in cell.states.items()}
            shown = {key for cell in cells for key in cell.views}
            assert shown == (set(rows) if one.view else set())
            found[stage] = {key: Int64Value.FromString(state).value for key, state in rows.items()}
        return found

    def locations(self) -> Locations:
        """The locations, which are the same in all stores."""
        found = self.stores[""].locations("notes")
        assert found is not None
        assert found == self.stores["other"].locations("notes")
        return found


SETTINGS = Settings(max_records=3)


def expected(weight: int) -> States:
    letters = [text[0].encode() for text in WORDS]
    return {
        "letters": {letter: weight * letters.count(letter) for letter in letters},
        "all": {b"all": weight * len(WORDS)},
    }


OLD, NEW = expected(1), expected(10)


class Reader:
    """Looks after each write that took effect: old states or new ones, all of them, and never old after new."""

    def __init__(self, deployment: Deployment, *flows: Rehearsal) -> None:
        self.deployment = deployment
        self.seen: dict[tuple[str, str], list[States]] = {}
        for flow in flows:
            flow.script.watch = self.look

    def look(self, call: PortCall, _: object) -> None:
        if not call.write:
            return
        for asked in ("", "other"):
            found = self.deployment.read(asked)
            for stage in ("letters", "all"):
                seen = self.seen.setdefault((asked, stage), [])
                assert found[stage] in (OLD[stage], NEW[stage])
                assert not (found[stage] == OLD[stage] and {stage: NEW[stage]} in seen), "went back"
                seen.append({stage: found[stage]})
