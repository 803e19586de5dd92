"""Goal: wherever a flow takes a function of the user, what it raises costs its own input and no other."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from sqe_chain.errors import PoisonError
from sqe_chain.testing import Rehearsal
from tests.support.user_functions import PLACES, Place

RECORDS = 6
WRONG = 3


class Own(Exception):
    """An error of the user's own."""


def failing(place: Place, error: BaseException) -> Callable[..., Any]:
    """The place's good function, which raises for one record."""

    @wraps(place.good)
    def function(*given: Any) -> Any:
        if place.number(*given) == WRONG:
            raise error
        return place.good(*given)

    return function


def fed(place: Place, function: Callable[..., Any], poison: str, block: int | None = None) -> Rehearsal:
    rehearsal = Rehearsal(place.flow(function, poison), block_records=block)
    for number in [0, 10, 3, 4, 11, 5] if place.name.startswith("merge") else range(RECORDS):
        rehearsal.feed("in", {"n": number}, timestamp_ms=number)
    return rehearsal


@pytest.mark.parametrize(
    "error", [StopIteration(), StopAsyncIteration(), KeyError("n"), RecursionError(), Own()], ids=repr
)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_a_function_raises_costs_its_own_input_alone(place: Place, error: Exception) -> None:
    """Under `stop` the input is named; under `skip` it is left out, whatever lies in its block."""
    with pytest.raises(PoisonError, match=type(error).__name__) as caught:
        fed(place, failing(place, error), "stop").run_until_caught_up()
    if not place.blames_input:
        return
    assert caught.value.topic == "in"
    for block in (1, 1000):
        rehearsal = fed(place, failing(place, error), "skip", block)
        rehearsal.run_until_caught_up()
        batches: list[Any] = rehearsal.events("committed")
        assert sum(one.get("excluded", 0) for one in batches) == 1
        assert sum(one["inputs"] for one in batches) == RECORDS
