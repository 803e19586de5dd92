"""Goal: a flow that cannot work is refused when it is declared, and the error names the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from sqe_chain.errors import FlowError
from sqe_chain.flow import Flow, Stage, Stream
from sqe_chain.flow.stage_kind import CONTEXT
from sqe_chain.stages import Sessions
from tests.support.number_flows import count
from tests.support.word_flows import append_word, first_letter, same_key, words_by_first_letter


def words(flow: Flow) -> Stream[StringValue]:
    return flow.source("words", StringValue)


def keyed(flow: Flow) -> Stage[StringValue, StringValue]:
    return words(flow).aggregate("letters", key=first_letter, state=StringValue, fold=append_word)


def same(value: StringValue) -> StringValue:
    return value


def twice(step: Callable[[], Any]) -> None:
    step()
    step()


def with_itself(stream: Stream[StringValue]) -> Stream[StringValue]:
    return stream.merge(stream)


REFUSED: dict[str, tuple[str, Callable[[Flow], Any]]] = {
    "topic read twice": ("is already read at", lambda flow: twice(lambda: words(flow))),
    "topic named twice": ("named twice", lambda flow: flow.source(["words", "words"], StringValue)),
    "no topic": ("at least one topic", lambda flow: flow.source([], StringValue)),
    "no payload": ("needs the type of its payloads, or a decoder", lambda flow: flow.source("words")),  # type: ignore[call-overload]
    "nulls without decoder": (
        "needs a decoder",
        lambda flow: flow.source("words", StringValue, nulls="decode"),  # type: ignore[call-overload]
    ),
    "stage twice": (
        "stage 'letters' already exists",
        lambda flow: twice(lambda: words_by_first_letter(flow) if not flow.nodes else flow_stage(flow)),
    ),
    "stage's name": (
        "stage name 'a b'",
        lambda flow: words(flow).aggregate("a b", key=same_key, state=StringValue, fold=append_word),
    ),
    "payload without a codec": ("no codec for set", lambda flow: flow.source("words", set)),
    "codec of another type": (
        "takes generated classes",
        lambda flow: flow.source("words", dict, codec="protobuf"),
    ),
    "codec and decoder": ("has a decoder", lambda flow: flow.source("words", len, codec="json")),  # type: ignore[call-overload]
    "state without a codec": (
        "no codec for set",
        lambda flow: words(flow).aggregate("s", key=same_key, state=set, fold=append_word),
    ),
    "state of what cannot change": (
        "changes its state in place",
        lambda flow: words(flow).aggregate("s", key=same_key, state=int, fold=append_word),
    ),
    "fold of one argument": (
        "must take 2",
        lambda flow: words(flow).aggregate("s", key=same_key, state=StringValue, fold=same_key),  # type: ignore[arg-type]
    ),
    "map of three arguments": ("must take 1", lambda flow: words(flow).map(lambda a, b, c: a)),  # type: ignore[arg-type,misc]
    "map of none": ("must take 1", lambda flow: words(flow).map(lambda: None)),  # type: ignore[arg-type,misc]
    "combine in context": (
        "combine must take 2 .*no context",
        lambda flow: words(flow).join_stream(
            "s",
            flow.source("others", StringValue),
            lambda a, b, context: a,  # type: ignore[arg-type,misc]
            before_ms=1,
            after_ms=1,
        ),
    ),
    "deleted in context": (
        "deleted must take 1 .*no context",
        lambda flow: words(flow).join_table(
            "s",
            flow.source("others", StringValue),
            lambda a, b: a,
            deleted=lambda a, context: False,  # type: ignore[arg-type,misc]
        ),
    ),
    "merge in context": (
        "merge must take 2 .*no context",
        lambda flow: words(flow).windowed(
            "s",
            Sessions(1),
            state=StringValue,
            fold=lambda state, word: None,
            merge=lambda state, later, context: None,  # type: ignore[arg-type,misc]
        ),
    ),
    "map of a named argument": ("must take 1", lambda flow: words(flow).map(lambda a, *, b: a)),  # type: ignore[arg-type,misc]
    "map of three and more": ("must take 1", lambda flow: words(flow).map(lambda a, b, c, *more: a)),
    "stage after changes": (
        "cannot follow changes",
        lambda flow: keyed(flow).changes().aggregate("s", key=same_key, state=StringValue, fold=append_word),
    ),
    "stage after a map of changes": (
        "cannot follow changes",
        lambda flow: (
            keyed(flow).changes().map(same).aggregate("s", key=same_key, state=StringValue, fold=append_word)
        ),
    ),
    "flat_map after changes": (
        "map, filter and to",
        lambda flow: keyed(flow).changes().flat_map(lambda value: [value]),
    ),
    "key_by after changes": ("map, filter and to", lambda flow: keyed(flow).changes().key_by(first_letter)),
    "output twice": ("output 'out' already exists", lambda flow: fan(flow, "out", "out")),
    "output into its input": ("that would be a loop", lambda flow: words(flow).to("words", partitions=1)),
    "input from its output": (
        "that would be a loop",
        lambda flow: (words(flow).to("back", partitions=1), flow.source("back", StringValue)),
    ),
    "output's key": ("key needs a function", lambda flow: words(flow).to("out", partitions=1, key=b"k")),  # type: ignore[call-overload]
    "merge with itself": ("with itself", lambda flow: with_itself(words(flow))),
    "merge with another flow": (
        "another flow|of flow 'other'",
        lambda flow: words(flow).merge(words(Flow("other"))),
    ),
    "merge after a stage": (
        "after a stage",
        lambda flow: keyed(flow).merge(flow.source("more", StringValue)),
    ),
}


def flow_stage(flow: Flow) -> None:
    flow.source("more", StringValue).aggregate(
        "letters", key=first_letter, state=StringValue, fold=append_word
    )


def fan(flow: Flow, *names: str) -> None:
    stream = words(flow)
    for name in names:
        stream.to("out", name=name, partitions=1)


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused_at_the_users_line(what: str) -> None:
    text, declare = REFUSED[what]
    with pytest.raises(FlowError, match=text) as caught:
        declare(Flow("flow"))
    assert str(caught.value).startswith(f"{__file__}:")


def test_the_place_is_the_very_line() -> None:
    flow = Flow("flow")
    stream = words(flow)
    frame = inspect.currentframe()
    assert frame is not None
    line = frame.f_lineno + 2
    with pytest.raises(FlowError) as caught:
        stream.map(7)  # type: ignore[call-overload]
    assert str(caught.value).startswith(f"{__file__}:{line}:")


def test_a_stream_that_leads_nowhere_is_refused_before_it_runs() -> None:
    flow = Flow("flow")
    words(flow).map(same_key)
    with pytest.raises(FlowError, match="nothing is done with this map"):
        flow.compile()
    with pytest.raises(FlowError, match="has no source"):
        Flow("empty").compile()


def test_poison_records_are_not_read_again() -> None:
    flow = Flow("flow", poison="dead_letter", dead_letter_topic="words")
    words_by_first_letter(flow)
    with pytest.raises(FlowError, match=r"is the dead-letter topic.*loop"):
        flow.compile()


def test_an_output_has_no_dead_letter_records() -> None:
    flow = Flow("flow", poison="dead_letter", dead_letter_topic="out")
    words(flow).to("out", partitions=1)
    with pytest.raises(FlowError, match=r"'out' is the dead-letter topic.*readers"):
        flow.compile()


def test_whether_a_function_takes_the_context_is_seen_from_its_signature() -> None:
    flow = Flow("flow")
    stream = words(flow)

    def with_default(value: StringValue, limit: int = 3) -> StringValue:
        return value

    def with_context(value: StringValue, context: object) -> StringValue:
        return value

    class Adder:
        def __call__(self, value: StringValue, context: object) -> StringValue:
            return value

    def with_more(value: StringValue, context: object, *more: object, named: int = 3) -> StringValue:
        return value

    assert [
        stream.map(function).node.needs == CONTEXT
        for function in (with_default, with_context, with_more, Adder(), lambda *values: values[0], str)
    ] == [False, True, True, True, False, False]


def test_levels_and_parents_are_data() -> None:
    flow = Flow("flow")
    first = words_by_first_letter(flow)
    second = first.map(same).aggregate("all", key=same_key, state=Int64Value, fold=count)
    assert [flow.compile().depths[stage.index] for stage in flow.compile().stages] == [1, 2]
    assert flow.compile().stage_before[second.node.index] == first.node
    assert [node.kind for node in flow.nodes] == ["source", "aggregate", "map", "aggregate"]
