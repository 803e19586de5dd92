"""A flow of words with new code beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.engines.inprocess import InProcessEngine
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.operations.switching import Switch
from tests.support.environments import environment_of
from tests.support.plans import last_plan
from tests.support.rebuilding import AFTER, BEFORE, Pipeline
from tests.support.word_flows import append_word, first_letter, same_key, stored_words

Fold = Callable[[StringValue, StringValue], list[StringValue]]


def insert_word(words: StringValue, value: StringValue) -> list[StringValue]:
    """All words in the order of the alphabet: of several partitions no other order is promised."""
    words.value = " ".join(sorted([*words.value.split(), value.value]))
    return [value]


def flow_of(
    state_partitions: int = 2, fold: Fold = append_word, more: str = "", *, published: bool = False
) -> Flow:
    """The flow; `more` is the name of a further stage, which may be `published`."""
    flow = Flow("notes", state_partitions=state_partitions)
    words = flow.source("words", StringValue)
    first = words.aggregate("letters", key=first_letter, state=StringValue, fold=fold)
    first.to("firsts", key=first_letter, partitions=2)
    second = first.aggregate("all", key=same_key, state=StringValue, fold=insert_word)
    second.changes().to("totals", partitions=1)
    if more:
        further = words.aggregate(more, key=first_letter, state=StringValue, fold=append_word)
        if published:
            further.to(f"{more}s", partitions=1)
    return flow


def running(flow: Flow | None = None) -> Pipeline:
    """The flow, as it has noted some words."""
    pipeline = Pipeline(flow or flow_of())
    pipeline.feed(BEFORE)
    return pipeline


def follow(pipeline: Pipeline, flow: Flow, export: list[str] | None = None) -> None:
    """Begin or continue the flow's shadow, up to where the flow is, and end its process. It begins at an export, if one is given."""
    shadow = pipeline.found.shadow(flow, export)
    service = shadow.start()
    while shadow.batch():
        pass
    service.leave()


def exported(pipeline: Pipeline) -> list[str]:
    """An export of the flow, which goes on."""
    lines = pipeline.found.exported()
    pipeline.found.run_until_caught_up()
    return lines


def shouting(state: StringValue, payload: StringValue) -> list[StringValue]:
    """Other code: states in capitals."""
    state.value += f"{payload.value.upper()} "
    return [payload]


def loud_of(more: int) -> Fold:
    """Other code: the same states, outputs in capitals, and `more` further ones."""

    def loud(state: StringValue, payload: StringValue) -> list[StringValue]:
        state.value += f"{payload.value} "
        return [StringValue(value=payload.value.upper()), *[payload] * more]

    return loud


def switched() -> Pipeline:
    """A flow that runs with the states of other code, and has counted with it."""
    pipeline = running()
    flow = flow_of(3, fold=shouting)
    follow(pipeline, flow)
    pipeline.found.switch(flow, accept_differences=True)
    pipeline = pipeline.same(flow)
    pipeline.feed(AFTER[:1])
    assert stored_words(pipeline.found)["f"] == "FIG FOX"
    return pipeline


def switch_while_it_runs(pipeline: Pipeline, flow: Flow) -> None:
    """Switch by a process that does not wait for the end of the flow's run."""
    settings = replace(pipeline.settings, allow_weak_durability=True)
    env = replace(environment_of(pipeline.found, settings), flow=flow.compile())
    Rebuild(env, lambda code: InProcessEngine(code, env.ports.log, env.ports.store), switch=Switch()).run()


def has_switched(pipeline: Pipeline) -> bool:
    """Whether the flow has the states of a shadow."""
    return any(".shadow-" in name for name in last_plan(pipeline.store, "notes").layout.stored_in().values())


def switch_after_a_crash(pipeline: Pipeline, flow: Flow) -> Pipeline:
    """What an operator does whose switch was killed, wherever: repeat it; begin another shadow, if there is none any more."""
    if not has_switched(pipeline):
        try:
            pipeline.found.switch(flow)
        except ConfigurationError as error:
            if "has no shadow" not in str(error):
                raise
            follow(pipeline, flow)
            pipeline.found.switch(flow)
    return pipeline.same(flow)
