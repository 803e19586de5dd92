"""Goal: what an output publishes is read back as the type of its value, whatever made it; any other value is poison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sqe_chain.errors import PoisonError
from sqe_chain.flow import Flow
from sqe_chain.flow.nodes import OutputNode
from sqe_chain.task.operator_text import texts
from sqe_chain.testing import Rehearsal

WRONG = 1


class Reading(msgspec.Struct):
    """What is published."""

    n: int
    celsius: float = 0.0


def made(value: Any) -> Any:
    """A reading; the one with the number WRONG has text where a number is declared."""
    number: Any = "one" if value["n"] == WRONG else value["n"]
    return Reading(number)


def decoded(value: bytes) -> Any:
    return made(msgspec.json.decode(value))


def fold(state: dict[str, Any], value: Any) -> list[Any]:
    state["n"] = value["n"]
    return [made(value)]


def from_map(flow: Flow) -> Any:
    return flow.source("in", dict, raw=True).map(made)


def from_flat_map(flow: Flow) -> Any:
    return flow.source("in", dict, raw=True).flat_map(lambda value: [made(value)])


def from_decoder(flow: Flow) -> Any:
    return flow.source("in", decoded, raw=True)


def from_fold(flow: Flow) -> Any:
    return flow.source("in", dict, raw=True).aggregate("a", key=lambda _: "k", state=dict, fold=fold)


def beside_a_stage(flow: Flow) -> Any:
    made_of = flow.source("in", dict, raw=True).map(made)
    made_of.deduplicate("d", lambda value: str(value.n), 0).to("others", partitions=1)
    return made_of


def after_a_branch(flow: Flow) -> Any:
    source = flow.source("in", dict, raw=True)
    source.map(lambda value: value).to("others", partitions=1)
    return source.map(made).filter(lambda _: True)


@pytest.mark.parametrize("poison", ["stop", "skip"])
@pytest.mark.parametrize(
    "declare", [from_map, from_flat_map, from_decoder, from_fold, beside_a_stage, after_a_branch]
)
def test_a_struct_with_a_wrong_field_is_poison_at_an_output_too(
    declare: Callable[[Flow], Any], poison: Any
) -> None:
    flow = Flow("readings", state_partitions=1, poison=poison)
    declare(flow).to("out", partitions=1)
    rehearsal = Rehearsal(flow)
    for number in range(3):
        rehearsal.feed("in", {"n": number}, key="of-record")
    if poison == "stop":
        with pytest.raises(PoisonError, match=r"Expected `int`, got `str` - at `\$\.n`.*key b'") as caught:
            rehearsal.run_until_caught_up()
        assert (caught.value.topic, caught.value.offset) == ("in", 1)
        return
    rehearsal.run_until_caught_up()
    assert [envelope.payload_as(Reading) for envelope in rehearsal.published("out")] == [
        Reading(0),
        Reading(2),
    ]
    batches: list[Any] = rehearsal.events("committed")
    assert sum(event.get("excluded", 0) for event in batches) == 1


def test_what_a_codec_has_read_is_not_read_again() -> None:
    """Records as they came, states and what a filter forwards cost nothing more; nor do types without fields."""
    flow = Flow("as-it-came", state_partitions=1)
    source = flow.source("in", Reading, raw=True)
    source.filter(lambda _: True).to("out", partitions=1)
    source.deduplicate("d", lambda value: str(value.n), 0).to("once", partitions=1)
    summed = source.aggregate("a", key=lambda _: "k", state=dict, fold=lambda state, value: None)
    summed.changes().to("states", partitions=1)
    outputs = [node.index for node in flow.nodes if isinstance(node, OutputNode)]
    written = "\n".join(text.source for text in texts(flow.compile()))
    assert all(f"b{index} = " not in written for index in outputs)
