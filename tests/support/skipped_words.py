"""A flow that has skipped two words, with corrected code, and what an operator decides about them."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.flow import Flow
from sqe_chain.flow.compiled import PoisonPolicy
from sqe_chain.operations.failed_in_plans import FailedInPlans, list_in_plans
from sqe_chain.plans.settings import Settings
from sqe_chain.testing import Rehearsal
from tests.support.environments import environment_of
from tests.support.word_flows import append_word, same_key, stored_words, word

WORDS = ["ant", "bee", "cow", "dog"]


class Counting:
    """A flow that has skipped two words, with corrected code."""

    def __init__(self, *, publishes: bool = False) -> None:
        self.broken = broken = {"bee", "dog"}

        def check(value: StringValue) -> StringValue:
            if value.value in broken:
                raise ValueError(value.value)
            return value

        flow = Flow("counting", poison="dead_letter", state_partitions=1)
        stage = (
            flow.source("words", StringValue)
            .map(check)
            .aggregate("all", key=same_key, state=StringValue, fold=append_word)
        )
        if publishes:
            stage.changes().to("totals", partitions=1)
        self.rehearsal = Rehearsal(flow, settings=Settings(max_excluded_share=1.0))
        for text in WORDS:
            self.rehearsal.feed("words", word(text), key=text)
        self.rehearsal.run_until_caught_up()
        broken.clear()

    def declare(self, poison: PoisonPolicy) -> None:
        """The flow has another policy from now on."""
        self.rehearsal.service = None
        self.rehearsal.flow = replace(self.rehearsal.flow, poison=poison)

    def operator(self) -> FailedInPlans:
        return FailedInPlans(environment_of(self.rehearsal))

    def statuses(self) -> dict[str, str]:
        return {
            str(record.key, "utf-8"): record.status
            for record in list_in_plans(self.rehearsal.flow, self.rehearsal.stores[""], self.rehearsal.log)
            if record.key
        }

    def counted(self) -> list[str]:
        self.rehearsal.service = None
        self.rehearsal.run_until_caught_up()
        return sorted(stored_words(self.rehearsal, "all")["all"].split())
