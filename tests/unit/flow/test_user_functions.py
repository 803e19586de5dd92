"""Goal: wherever a flow takes a function of the user, what it raises costs its own input and no other, and a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple, NewType, cast

import pytest

from sqe_chain.errors import FlowError, PoisonError
from tests.support.user_functions import PLACES, RECORDS, Place, fed, like

WRONG = 3


class Own(Exception):
    """An error of the user's own."""


def failing(place: Place, error: BaseException) -> Any:
    """The place's good function, which raises for one record."""

    def function(*given: Any) -> Any:
        if place.number(*given) == WRONG:
            raise error
        return place.good(*given)

    return like(place, function)


@pytest.mark.parametrize(
    "error", [StopIteration(), StopAsyncIteration(), KeyError("n"), RecursionError(), Own()], ids=repr
)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_a_function_raises_costs_its_own_input_alone(place: Place, error: Exception) -> None:
    """Under `stop` the input is named; under `skip` it is skipped, whatever lies in its block."""
    with pytest.raises(PoisonError, match=type(error).__name__) as caught:
        fed(place, failing(place, error), "stop").run_until_caught_up()
    text = str(caught.value)
    assert "test_user_functions.py" in text, "it names the function's own line"
    assert "key b'" in text
    if not place.blames_input:
        return
    assert caught.value.topic == "in"
    for block in (1, 1000):
        rehearsal = fed(place, failing(place, error), "skip", block)
        rehearsal.run_until_caught_up()
        batches: list[Any] = rehearsal.events("committed")
        assert sum(batch.get("excluded", 0) for batch in batches) == 1
        assert sum(batch["inputs"] for batch in batches) == RECORDS


async def waits(*_: Any) -> bool:
    return True


class Waiting:
    async def __call__(self, *_: Any) -> bool:
        return True


async def async_generator(*_: Any) -> Any:
    yield True


def generator(*_: Any) -> Any:
    yield True


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_what_would_not_run_or_is_no_function_is_refused_where_it_is_declared(place: Place) -> None:
    never_run = [like(place, waits), like(place, async_generator), partial(waits), Waiting()]
    for function in never_run if place.gives == "values" else [*never_run, like(place, generator)]:
        with pytest.raises(FlowError, match=r"user_functions.py:\d+: .*test_user_functions.py:\d+ is a"):
            place.flow(function)
    for kind in (list[int], int | None, NewType("Id", int), Annotated[int, "an id"], 7):
        with pytest.raises(FlowError, match=r"user_functions.py:\d+: .*(function|decoder)"):
            place.flow(cast("Any", kind))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_coroutine_never_counts_as_what_was_asked_for(place: Place) -> None:
    """Where it could not be seen, because a plain function returns it: none is true, none is a value, none is dropped."""
    made: list[Any] = []

    def coroutine() -> object:
        made.append(waits())
        return made[-1]

    with pytest.raises(PoisonError) as caught:
        fed(place, like(place, lambda *_: coroutine()), "stop").run_until_caught_up()
    for one in made:
        one.close()
    if place.gives != "value":
        assert "test_user_functions.py" in str(caught.value), "it names the function's own line"


class Pair(NamedTuple):
    one: int
    other: int


WRONG_VALUES: dict[str, Callable[[], object]] = {
    "text": lambda: "text",
    "bytes": lambda: b"bytes",
    "dict": lambda: {"n": 1},
    "set": lambda: {"n"},
    "named tuple": lambda: Pair(1, 2),
    "number": lambda: 7,
}


@pytest.mark.parametrize("wrong", WRONG_VALUES)
@pytest.mark.parametrize(
    "place", [place for place in PLACES if place.gives in ("values", "nothing")], ids=str
)
def test_what_is_no_iterable_of_values_is_poison_that_names_the_function(place: Place, wrong: str) -> None:
    function = like(place, lambda *given: (place.good(*given), WRONG_VALUES[wrong]())[1])
    with pytest.raises(PoisonError, match=r"returned .*\. Expected .*") as caught:
        fed(place, function, "stop").run_until_caught_up()
    assert "test_user_functions.py" in str(caught.value)


@pytest.mark.parametrize("place", [place for place in PLACES if place.gives == "values"], ids=str)
def test_a_generator_gives_each_value_as_it_was_then(place: Place) -> None:
    """One that changes its state between two yields gives two values, however the stage calls it."""
    if place.name == "flat_map":

        def fresh(value: dict[str, Any]) -> Any:
            yield from ({"n": value["n"] + 1}, {"n": value["n"] + 2})

        function: Callable[..., Any] = fresh
    else:

        def twice(*given: Any) -> Any:
            for _ in range(2):
                place.good(*given)
                yield given[0]

        function = like(place, twice)
    rehearsal = fed(place, function, "stop")
    rehearsal.run_until_caught_up()
    if "out" in {output.topic for output in rehearsal.flow.outputs} and not place.name.startswith(
        ("on_timer", "fold of aggregate with timers")
    ):
        found = [
            value and value["n"]
            for envelope in rehearsal.published("out")
            for value in envelope.payloads_as(dict)
        ]
        assert found[:4] in ([1, 2, 3, 4], [1, 2, 2, 3])


def rebinds(state: dict[str, Any], value: Any) -> None:
    state = {"n": value["n"]}  # noqa: F841 - that is what is wrong


def rebinds_in_a_walrus(state: dict[str, Any], value: Any) -> None:
    (state := {**state, "n": value["n"]})  # noqa: PLW0131 - the same


def copies(state: dict[str, Any], value: Any) -> None:
    state = state.copy()
    state["n"] = value["n"]


def returns_it(state: dict[str, Any], value: Any) -> Any:
    state["n"] = value["n"]
    return state


def adds(state: dict[str, Any], value: Any) -> None:
    state += value


class WithMethod:
    def fold(self, state: dict[str, Any], value: Any) -> None:
        state = dict(state, n=value["n"])

    def __call__(self, state: dict[str, Any], value: Any) -> Any:
        return state


def goes_on_in_a_part(state: dict[str, Any], value: Any) -> None:
    state = state.setdefault("part", {})
    state["n"] = value["n"]


def updates(state: dict[str, Any], value: Any) -> None:
    state |= value


def takes_a_field(state: dict[str, Any], value: Any) -> None:
    state["part"] = {}
    state = state["part"]
    state["n"] = value["n"]


def has_other_names_for_it(state: dict[str, Any], value: Any) -> None:
    n = value["n"]
    state["n"] = n
    same = state
    same["n"] = n


FOLDS = [
    place for place in PLACES if place.name.startswith(("fold of aggregate", "fold of windowed", "merge"))
]


@pytest.mark.parametrize("place", FOLDS, ids=str)
@pytest.mark.parametrize(
    "fold",
    [
        rebinds,
        rebinds_in_a_walrus,
        copies,
        returns_it,
        adds,
        WithMethod().fold,
        WithMethod(),
        partial(rebinds),
    ],
    ids=lambda fold: getattr(fold, "__qualname__", type(fold).__name__),
)
def test_a_fold_that_loses_its_state_is_refused_where_it_is_declared(place: Place, fold: Any) -> None:
    with pytest.raises(FlowError, match=r"in line \d+.* A fold changes its state in place"):
        place.flow(fold)


@pytest.mark.parametrize("fold", [goes_on_in_a_part, updates, takes_a_field, has_other_names_for_it])
def test_a_fold_may_go_on_in_a_part_of_its_state(fold: Any) -> None:
    place = FOLDS[0]
    rehearsal = fed(place, fold, "stop")
    rehearsal.run_until_caught_up()
    assert rehearsal.states("a")[b"k"] in ({"part": {"n": 5}}, {"n": 5})
