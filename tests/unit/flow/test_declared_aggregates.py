"""Goal: declared aggregates give what their values at once would give, or name the wrong field and its type.

Method: Hypothesis, against a computation from the list of all values; each kind of values; each error.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, Optional

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain import Flow
from sqe_chain.codecs import codec_for
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow import Aggregation, Context, count, first, last, max_, mean, min_, sum_
from sqe_chain.flow.generated_fold import fold_of, states_of
from sqe_chain.testing import Rehearsal
from tests.support.dynamic_messages import message_type
from tests.support.naive_aggregates import expected

ALL: dict[str, Any] = {
    "events": count(),
    "numbers": count("n", optional=True),
    "total": sum_("n", optional=True),
    "least": min_("n", optional=True),
    "most": max_("n", optional=True),
    "average": mean("n", optional=True),
    "earliest": first("deep.any", optional=True),
    "latest": last("deep.any", optional=True),
}
NUMBERS = st.integers() | st.integers(-5, 5) | st.floats(-1e100, 1e100)
SIMPLE = st.sampled_from([None, True, False, 0, 1, 2**70, 1.0, -0.5, 1e300, "", "x", "Ä"])
ANYTHING = SIMPLE | st.lists(SIMPLE, max_size=2) | st.dictionaries(st.sampled_from("xy"), SIMPLE, max_size=2)
VALUES = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from("ab")},
        optional={
            "n": st.none() | NUMBERS,
            "deep": st.none() | st.fixed_dictionaries({}, optional={"any": ANYTHING}),
        },
    ),
    max_size=8,
)


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary records take the fast path, however few they are."""
    monkeypatch.setattr("sqe_chain.task.records.WORTHWHILE_RUN", 1)


def folded(aggregates: dict[str, Aggregation], values: Sequence[Any], python_type: type | None = None) -> Any:
    """A state after these values, without a flow."""
    state = states_of(aggregates, python_type)()
    fold = fold_of("stage", aggregates, python_type)
    for value in values:
        assert fold(state, value) is None
    return state


@given(VALUES, st.booleans())
def test_the_fold_gives_what_all_values_at_once_give(values: list[dict[str, Any]], known: bool) -> None:
    state = folded(ALL, values, dict if known else None)
    assert exact(asdict(state)) == exact(expected(ALL, values))


@settings(max_examples=50)
@given(VALUES, st.sets(st.integers(0, 7)), st.booleans())
def test_so_does_a_flow_wherever_batches_end(
    values: list[dict[str, Any]], ends: set[int], skipping: bool
) -> None:
    flow = Flow("any", state_partitions=2, poison="skip" if skipping else "stop")
    flow.source("values", dict).aggregate("all", key="key", **ALL).changes().to("changed", partitions=1)
    rehearsal = Rehearsal(flow)
    for index, value in enumerate(values):
        rehearsal.feed("values", value)
        if index in ends:
            rehearsal.run_until_caught_up()
            rehearsal.restart()
    rehearsal.run_until_caught_up()
    assert {key: exact(asdict(state)) for key, state in rehearsal.states("all").items()} == {
        key.encode(): exact(expected(ALL, [value for value in values if value["key"] == key]))
        for key in {value["key"] for value in values}
    }


@given(VALUES)
def test_a_state_is_read_back_as_it_was(values: list[dict[str, Any]]) -> None:
    """What the generated fold leaves is never read again to check it."""
    state = folded(ALL, values, dict)
    codec = codec_for(type(state))
    assert codec.self_checking
    assert exact(asdict(codec.decode(codec.encode_state(state)))) == exact(asdict(state))
    assert codec.copy(state) == state
    assert codec.copy(state) is not state


def exact(state: dict[str, Any]) -> dict[str, str]:
    """1 and 1.0 and True are equal, but not the same."""
    return {name: json.dumps(value, sort_keys=True) for name, value in state.items()}


# --- values of each type -------------------------------------------------------------------------


class Meta(msgspec.Struct):
    ts: int | None = None


class Fastening(msgspec.Struct):
    robot: str
    screws: int | None
    meta: Meta | None = None
    tags: dict[str, int] | None = None
    at: datetime | None = None
    note: Any = None


@dataclass
class Screws:
    robot: str
    screws: Annotated[int, "of one robot"]
    old: Optional[Screws] = None  # noqa: UP045 - the old way to write it

    @property
    def twice(self) -> int:
        return 2 * self.screws


class Plain:
    def __init__(self, screws: object) -> None:
        self.screws = screws


class Pair(NamedTuple):
    robot: str
    screws: int


def test_structs_and_what_is_in_them() -> None:
    values = [
        Fastening("R7", 3, Meta(5), {"a": 1}),
        Fastening("R7", None, Meta()),
        Fastening("R7", 4),
    ]
    aggregates = {
        "screws": sum_("screws"),
        "ts": last("meta.ts"),
        "a": first("tags.a"),
        "seen": count("meta"),
    }
    expected_state = {"screws": 7, "ts": 5, "a": 1, "seen": 2}
    assert asdict(folded(aggregates, values, Fastening)) == expected_state
    assert asdict(folded(aggregates, values)) == expected_state


@pytest.mark.parametrize("known", [True, False])
def test_dataclasses_properties_named_tuples_and_plain_objects(known: bool) -> None:
    screws = [Screws("R7", 3), Screws("R7", 4, Screws("R6", 5))]
    aggregates = {"twice": sum_("twice"), "old": last("old.screws")}
    assert asdict(folded(aggregates, screws, Screws if known else None)) == {"twice": 14, "old": 5}
    pairs = [Pair("a", 1), Pair("b", 2)]
    assert asdict(folded({"most": max_("robot")}, pairs, Pair if known else None)) == {"most": "b"}
    plain = [Plain(1), Plain(2.5)]
    assert asdict(folded({"sum": sum_("screws")}, plain, Plain if known else None)) == {"sum": 3.5}


@pytest.mark.parametrize("known", [True, False])
def test_an_unset_field_of_protobuf_is_null_if_that_can_be_known(known: bool) -> None:
    fields = "int64 maybe = 1; Inner inner = 2; repeated int64 many = 3; oneof(0) string one = 4"
    made = message_type({"State": fields, "Inner": "string text = 1; Inner inner = 2"})
    values: list[Any] = [made(), made(maybe=0), made(maybe=2, one="")]
    values[1].inner.text = "x"
    values[2].inner.inner.text = "y"
    aggregates = {
        "maybe": count("maybe"),
        "least": min_("maybe"),
        "inner": count("inner"),
        "text": last("inner.text"),
        "deep": last("inner.inner.text"),
        "many": count("many"),
        "one": count("one"),
    }
    assert asdict(folded(aggregates, values, made if known else None)) == {
        "maybe": 2,
        "least": 0,
        "inner": 2,
        "text": "x",
        "deep": "y",
        "many": 3,
        "one": 1,
    }
    numbers = [Int64Value(), Int64Value(value=3)]
    assert folded({"n": count("value")}, numbers, Int64Value if known else None).n == 2


def test_values_of_several_types_in_one_stream() -> None:
    """The type is not known before: the fold of each is made when the first one comes."""
    values = [{"screws": 1}, Screws("R7", 2), Plain(3), Fastening("R7", 4)]
    assert asdict(folded({"screws": sum_("screws")}, values)) == {"screws": 10}


@pytest.mark.parametrize("name", ["class", "a-b", "Ä ö"])
def test_names_that_are_none_of_python(name: str) -> None:
    assert folded({"n": sum_(name)}, [{name: 2}], dict).n == 2
    odd = type("Odd", (), {name: 3})
    assert folded({"n": sum_(name)}, [odd()], odd).n == 3


@pytest.mark.parametrize("python_type", [dict, None])
def test_text_of_a_field_is_never_run(python_type: type | None) -> None:
    path = '"] or exit() or value["'
    assert folded({"n": sum_(path)}, [{path: 2}], python_type).n == 2


def test_ints_are_added_without_loss_and_floats_in_the_order_of_records() -> None:
    assert folded({"n": sum_("n")}, [{"n": 2**63}, {"n": 2**64}, {"n": 1}], dict).n == 2**63 + 2**64 + 1
    assert folded({"n": sum_("n")}, [{"n": 1e16}, {"n": 1.0}, {"n": -1e16}], dict).n == 0.0
    assert folded({"n": mean("n")}, [{"n": 2**60 + 1}, {"n": 1 - 2**60}], dict).n == 1.0


def test_of_equal_values_the_first_is_kept() -> None:
    assert repr(folded({"n": max_("n")}, [{"n": 1}, {"n": 1.0}, {"n": 0}], dict).n) == "1"
    assert repr(folded({"n": min_("n")}, [{"n": 1.0}, {"n": 1}, {"n": 2}], dict).n) == "1.0"


# --- in flows ------------------------------------------------------------------------------------


def poisoned(value: object, *, make: type | None = dict, **aggregates: Any) -> str:
    """The error of a flow that folds {"key": "k", "n": 1} and then another value."""
    flow = Flow("poisoned", state_partitions=1)
    stream = flow.source("values", dict, raw=True)
    stream = stream if make is dict else stream.map(lambda value: value)
    stream.aggregate("all", key="key", **aggregates)
    rehearsal = Rehearsal(flow)
    for one in ({"key": "k", "n": 1}, value):
        rehearsal.feed("values", one)
    with pytest.raises(PoisonError) as caught:
        rehearsal.run_until_caught_up()
    assert (caught.value.topic, caught.value.offset) == ("values", 1)
    return str(caught.value)


@pytest.mark.parametrize("make", [dict, None])
@pytest.mark.parametrize(
    ("value", "aggregate", "text"),
    [
        ({"key": "k", "m": 2}, sum_("n"), r"n=sum_('n'): dict has no field 'n'; it has key, m"),
        ({"key": "k", "n": "2"}, sum_("n"), "n=sum_('n'): sum and mean take int and float, not str"),
        ({"key": "k", "n": True}, mean("n"), "n=mean('n'): sum and mean take int and float, not bool"),
        (
            {"key": "k", "n": [2]},
            min_("n"),
            "n=min_('n'): min and max compare int, float, str and bool, not list",
        ),
        ({"key": "k", "n": "2"}, max_("n"), "n=max_('n'): a str cannot be compared with the int that it has"),
        ({"n": 2}, count(), "dict has no field 'key'; it has n"),
    ],
)
def test_what_an_aggregate_does_not_take_is_poison(
    value: object, aggregate: Aggregation, text: str, make: type | None
) -> None:
    found = poisoned(value, make=make, n=aggregate)
    assert text in found
    assert "declared at" in found


class Color(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("first_value", "value", "aggregate", "text"),
    [
        (1, math.nan, sum_("n"), "it is nan, which cannot be stored"),
        (1, -math.inf, mean("n"), "it is -inf, which cannot be stored"),
        (1, math.nan, max_("n"), "it is nan, which cannot be stored"),
        (1, math.inf, last("n"), "it is inf, which cannot be stored"),
        (1, [{"a": math.nan}], last("n"), "it is nan, which cannot be stored"),
        (1.7e308, 1.7e308, sum_("n"), "the sum is too large: for a float"),
        pytest.param(1, 10**4300, sum_("n"), "it has more than 4300 digits", id="digits"),
        pytest.param(9 * 10**4299, 10**4299, sum_("n"), "for 4300 digits", id="digits of the sum"),
        (1.5, 10**400, sum_("n"), "int too large to convert to float"),
        (1, 10**400, mean("n"), "integer division result too large for a float"),
        (1, Decimal(1), sum_("n"), "sum and mean take int and float, not Decimal"),
        (1, Color.RED, sum_("n"), "sum and mean take int and float, not Color"),
        (1, Color.RED, max_("n"), "min and max compare int, float, str and bool, not Color"),
        (1, datetime.now(UTC), last("n"), "first and last keep int, float, str, bool, and lists and dicts"),
        (1, (1, 2), last("n"), "and lists and dicts of them, not tuple"),
        (1, {1: 2}, last("n"), "a dict whose keys are not text is not JSON"),
        ("a", "\ud800", last("n"), "surrogates not allowed"),
        ("a", "\ud800", max_("n"), "surrogates not allowed"),
    ],
)
def test_what_json_cannot_express_is_refused_at_its_own_record(
    first_value: object, value: object, aggregate: Aggregation, text: str
) -> None:
    state = states_of({"n": aggregate}, dict)()
    fold = fold_of("stage", {"n": aggregate}, dict)
    fold(state, {"n": first_value})
    with pytest.raises(PoisonError, match=text):
        fold(state, {"n": value})


def test_a_path_that_ends_too_early_is_poison() -> None:
    with pytest.raises(PoisonError, match=r"n=sum_\('n.m'\): int has no field 'm'$"):
        folded({"n": sum_("n.m")}, [{"n": 1}], dict)


def test_the_error_names_the_aggregate_that_failed_among_others() -> None:
    aggregates = {"a": sum_("a"), "big": sum_("big"), "b": sum_("b"), "top": max_("c")}
    value = {"a": 1, "big": 10**400, "b": "x", "c": 1}
    with pytest.raises(PoisonError, match=r"^b=sum_\('b'\): sum and mean take int and float, not str$"):
        folded(aggregates, [value], dict)


def test_what_a_property_raises_is_shown() -> None:
    class Lazy:
        @property
        def screws(self) -> int:
            raise ZeroDivisionError("no screws")

    for python_type in (Lazy, None):
        with pytest.raises(PoisonError, match=r"n=sum_.*no screws"):
            folded({"n": sum_("screws")}, [Lazy()], python_type)


@pytest.mark.parametrize("name", ["screw", "meta.t", "meta.ts.x"])
def test_a_field_that_the_type_does_not_have_is_refused_where_it_is_declared(name: str) -> None:
    source = Flow("f").source("values", Fastening)
    with pytest.raises(
        FlowError, match=rf"{__file__}:\d+: .* has no field '{name.rsplit('.', maxsplit=1)[-1]}'"
    ):
        source.filter(lambda _: True).aggregate("all", key="robot", n=sum_(name))
    with pytest.raises(FlowError, match=r"Fastening has no field 'robto'; it has robot, screws, meta"):
        source.aggregate("all", key="robto", n=count())


@pytest.mark.parametrize(
    ("aggregate", "text"),
    [
        (sum_("robot"), "n=sum_('robot'): the field is of type str; sum and mean take int and float"),
        (mean("tags"), "of type dict; sum and mean"),
        (max_("at"), "of type datetime; min and max compare"),
        (last("meta"), "of type Meta; first and last keep"),
    ],
)
def test_a_field_of_a_type_that_cannot_be_taken_is_refused_too(aggregate: Aggregation, text: str) -> None:
    with pytest.raises(FlowError) as caught:
        Flow("f").source("values", Fastening).aggregate("all", key="robot", n=aggregate)
    assert text in str(caught.value)


def test_the_type_is_known_as_long_as_no_function_makes_the_values() -> None:
    flow = Flow("f")
    one, same = flow.source("one", Fastening), flow.source("same", Fastening)
    two, made = flow.source("two", Meta), flow.source("made", lambda data: Meta(len(data)))
    plain = flow.source("plain", object)
    keyed = one.key_by(lambda value: value.robot)
    for known in (keyed, one.merge(same), keyed.merge(same).filter(lambda _: True)):
        with pytest.raises(FlowError, match="Fastening has no field 'nothing'"):
            known.aggregate("known", n=count("nothing"))
    others: list[Any] = [one.merge(two), made, plain, one.map(lambda value: value)]
    for number, unknown in enumerate(others):
        unknown.aggregate(f"unknown-{number}", n=count("nothing"))


def test_protobuf_types_are_checked_to_the_end_of_a_path() -> None:
    source = Flow("f").source("values", Int64Value)
    with pytest.raises(FlowError, match="Int64Value has no field 'valeu'; it has value"):
        source.aggregate("all", n=sum_("valeu"))
    with pytest.raises(FlowError, match="key='value' is of type int, and keys are str or bytes"):
        source.aggregate("all", key="value", n=count())
    with pytest.raises(FlowError, match="of type bytes; first and last"):
        Flow("f").source("values", BytesValue).aggregate("all", key="value", n=last("value"))


Declaring = Callable[[Any], object]


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda s: s.aggregate("a"), "aggregate() needs state= and fold=, or declared aggregates"),
        (lambda s: s.aggregate("a", n=5), "n=5 is no argument of aggregate(), nor an aggregate"),
        (lambda s: s.aggregate("a", view=count()), "view= is an argument of aggregate(): give the aggregate"),
        (lambda s: s.aggregate("a", codec=count()), "codec= is an argument of aggregate()"),
        (lambda s: s.aggregate("a", codec="json", n=count()), "codec= is for a stage with state= and fold="),
        (lambda s: s.aggregate("a", on_timer=print, n=count()), "on_timer= is for a stage with state="),
        (lambda s: s.aggregate("a", fold=print, n=count()), "n=count() goes without state= and fold="),
        (lambda s: s.aggregate("a", state=dict, fold=print, m=1), "m=1 is no argument of aggregate()"),
        (lambda s: s.aggregate("a", key=7, n=count()), "key needs a function, got 7"),
        (lambda s: s.aggregate("a", **{"": count()}), "an aggregate cannot be called ''"),
        (lambda s: s.aggregate("a", **{"class": count()}), "cannot be called 'class'"),
        (lambda s: s.aggregate("a", _n=count()), "cannot be called '_n'"),
        (
            lambda s: s.aggregate("a", n=mean("n"), n_sum=sum_("n")),
            "n=mean('n') and n_sum=sum_('n') both need field 'n_sum'",
        ),
        (lambda _: sum_(""), "sum of ''; the name of a field"),
        (lambda _: last("a..b"), "last of 'a..b'; the name of a field"),
        (lambda _: max_(lambda value: value), "the name of a field, or a path"),  # type: ignore[arg-type]
        (lambda _: mean("n", optional=1), "optional=1; True or False"),  # type: ignore[arg-type]
        (lambda s: s.windowed("a", None), "windowed() needs state= and fold=, or declared aggregates"),
        (lambda s: s.windowed("a", None, merge=print, n=count()), "merge= is for a stage with state="),
    ],
)
def test_what_cannot_be_declared(declare: Declaring, text: str) -> None:
    with pytest.raises(FlowError) as caught:
        declare(Flow("f").source("values", dict))
    assert text in str(caught.value)
    assert __file__ in str(caught.value)


def by_topic(_: object, context: Context) -> str:
    return context.topic


@pytest.mark.parametrize(
    "key", ["robot", lambda value: value["robot"], lambda value, _: value["robot"], "deep.robot"]
)
def test_the_key_may_be_a_field_or_a_function(key: Any) -> None:
    flow = Flow("keys", state_partitions=1)
    flow.source("values", dict, raw=True).aggregate("all", key=key, n=count())
    rehearsal = Rehearsal(flow)
    for robot in "aba":
        rehearsal.feed("values", {"robot": robot, "deep": {"robot": robot}})
    rehearsal.run_until_caught_up()
    assert {key: state.n for key, state in rehearsal.states("all").items()} == {b"a": 2, b"b": 1}


def test_without_a_key_that_of_the_stream_is_kept() -> None:
    flow = Flow("keys", state_partitions=1)
    flow.source("values", StringValue).aggregate("all", n=count(), longest=max_("value"))
    rehearsal = Rehearsal(flow)
    for text in ("x", "y"):
        rehearsal.feed("values", StringValue(value=text), key="k")
    rehearsal.run_until_caught_up()
    assert asdict(rehearsal.states("all")[b"k"]) == {"n": 2, "longest": "y"}


def test_changes_are_json_that_any_reader_understands() -> None:
    class Totals(msgspec.Struct):
        screws: int
        events: int

    flow = Flow("robots", state_partitions=1)
    totals = flow.source("values", Fastening).aggregate(
        "per-robot", key="robot", screws=sum_("screws"), events=count(), view="json"
    )
    totals.changes().to("totals", partitions=1)
    totals.changes().map(lambda total: total.screws * total.events).to("products", partitions=1)
    rehearsal = Rehearsal(flow)
    for screws in (3, 4):
        rehearsal.feed("values", Fastening("R7", screws))
    rehearsal.run_until_caught_up()
    (published,) = rehearsal.published("totals")
    assert published.payloads == (b'{"screws":7,"events":2}',)
    assert published.payload_as(Totals) == Totals(7, 2)
    assert published.payload_as(dict) == {"screws": 7, "events": 2}
    assert [envelope.payload_as(int) for envelope in rehearsal.published("products")] == [14]
    kind = flow.compile().stages[0].stage_kind
    assert kind.shown_in(b"", b'{"screws":7,"events":2}') == {"screws": 7, "events": 2}


def test_a_poison_policy_skips_the_record_and_nothing_else() -> None:
    flow = Flow("letters", state_partitions=1, poison="dead_letter")
    flow.source("values", dict, raw=True).aggregate("all", key="key", a=sum_("a"), b=sum_("b"))
    rehearsal = Rehearsal(flow)
    for a, b in ((1, 1), (10, "x"), (math.inf, 10), (100, 100)):
        value = {"key": "k", "a": a, "b": b} if a != math.inf else b'{"key": "k", "a": [], "b": 10}'
        rehearsal.feed("values", value)
    rehearsal.run_until_caught_up()
    assert asdict(rehearsal.states("all")[b"k"]) == {"a": 101, "b": 101}
    excluded = [one for event in rehearsal.events("committed") for one in [event["excluded"]]]
    assert sum(int(str(one)) for one in excluded) == 2


def test_states_expire() -> None:
    flow = Flow("expiring", state_partitions=1)
    stage = flow.source("values", dict, raw=True).aggregate(
        "all", key="key", expire_after_ms=10, n=sum_("n"), events=count()
    )
    stage.changes().filter(lambda state: state is not None).to("changed", partitions=1)
    rehearsal = Rehearsal(flow)
    for at_ms, number in ((0, 1), (5, 2), (30, 4)):
        rehearsal.feed("values", {"key": "k", "n": number}, timestamp_ms=at_ms)
    rehearsal.run_until_caught_up()
    assert asdict(rehearsal.states("all")[b"k"]) == {"n": 4, "events": 1}


def test_the_source_of_a_fold_can_be_read() -> None:
    flow = Flow("source")
    flow.source("values", Fastening).aggregate("per-robot", key="robot", screws=sum_("screws"))
    (fold,) = flow.compile().stages[0].stage_kind.functions
    assert ast.parse(inspect.getsource(fold.function)).body, "as debuggers and traces show it"


def test_a_field_that_several_aggregates_need_is_read_once() -> None:
    reads: list[object] = []

    class Lazy:
        @property
        def screws(self) -> int:
            reads.append(self)
            return 2

    for python_type in (Lazy, None):
        reads.clear()
        state = folded(
            {"n": count("screws"), "m": sum_("screws"), "l": last("screws")}, [Lazy()], python_type
        )
        assert (asdict(state), len(reads)) == ({"n": 1, "m": 2, "l": 2}, 1)
