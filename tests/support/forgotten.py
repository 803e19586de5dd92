"""Two flows in two stores. One is forgotten, and all that is left then is listed."""

from __future__ import annotations

from typing import Any

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.adapters.memory.store import MemoryStore
from sqe_chain.flow import Flow
from sqe_chain.operations.forget import ForgetFlow
from sqe_chain.ports import StateStore
from sqe_chain.testing import Rehearsal
from sqe_chain.testing.faults import FaultScript
from sqe_chain.testing.faulty_ports import faulty_log, faulty_store
from tests.support.word_flows import append_word, first_letter, same_key, word


def flow_of(name: str, output: str = "", reads: str = "words") -> Flow:
    flow = Flow(name, poison="dead_letter", state_partitions=2)
    first = flow.source(reads, StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word, view="hash", buckets=2
    )
    first.aggregate("all", key=same_key, state=StringValue, fold=append_word, store="other")
    first.changes().to(output or f"{name}.out", key=same_key, partitions=1)
    return flow


class Neighbours:
    """Two flows in two stores; the first was rebuilt once."""

    def __init__(self) -> None:
        self.stores = {name: MemoryStore(f"forgetting-{name}", max_rows=1) for name in ("", "other")}
        for store in self.stores.values():
            store.restore_all()
        self.first = Rehearsal(flow_of("first"), store=self.stores)
        self.second = Rehearsal(flow_of("second"), store=self.stores, log=self.first.log)
        for text in ("a", "b", "c"):
            self.first.feed("words", word(text))
        self.first.run_until_caught_up()
        self.first.rebuild()
        self.second.run_until_caught_up()
        for service in (self.first, self.second):
            service.start()
            service.service.leave()  # type: ignore[union-attr]

    def forget(self, script: FaultScript | None = None, *, topics: bool = True, **more: object) -> list[str]:
        script = script or FaultScript()
        stores: dict[str, StateStore] = {
            name: faulty_store(store, script) for name, store in self.stores.items()
        }
        settings: dict[str, Any] = {"is_dead": lambda _: False, "wait": lambda _: None, **more}
        return ForgetFlow(
            "first", stores, faulty_log(self.first.log, script), topics, "forgets", **settings
        ).run()

    def left(self) -> set[str]:
        """Everything that is stored, or committed, by the name of its flow."""
        found = set()
        for store in self.stores.values():
            copy = store.copy_all()
            found |= set(copy.locations)
            found |= {flow for flow, home in copy.homes.items() if home.home or home.plans}
            found |= {
                place[0] for place, part in copy.parts.items() if part.header or part.states or part.views
            }
        log = self.first.log
        for group in ("first", "second", "first.dead-letters-replay"):
            found |= {group} if log.committed(group, [("words", 0)]) else set()
        topics = ("words", "first.out", "first.dead-letters", "second.out", "second.dead-letters")
        return found | {topic for topic in topics if topic in log.describe([topic])}


KEPT = {"words", "second", "second.out", "second.dead-letters"}
