"""Goal: states of declared aggregates are the same class everywhere, and are read back by what was added to them later."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest

from sqe_chain import read, wrap
from sqe_chain.codecs import codec_for
from sqe_chain.codecs.aggregates import AggregatePart, Aggregates, aggregates_of
from sqe_chain.codecs.json_codec import Json
from sqe_chain.codecs.registry import codec_of_tag, encode_with_tag, tag_of
from sqe_chain.codecs.window import Window, window_of

PARTS = (
    AggregatePart("events", "count"),
    AggregatePart("screws", "sum", "int"),
    AggregatePart("speed", "mean"),
    AggregatePart("top", "max"),
)
TOTALS: Any = aggregates_of(PARTS)
STATE = TOTALS(events=3, screws=7, speed=1.5, speed_sum=3, speed_count=2, top="x")


class Own(msgspec.Struct):
    events: int = 0
    screws: int | float = 0


def codec_of(*parts: AggregatePart) -> Any:
    return codec_for(aggregates_of(parts))


def difference(was: tuple[AggregatePart, ...], now: tuple[AggregatePart, ...]) -> str:
    """What is wrong with states of `was` for a stage that declares `now`."""
    before = codec_of(*was)
    found: str = codec_of(*now).misread(before.type_name, before.shape())
    return found


def test_a_class_for_each_set_of_parts() -> None:
    assert aggregates_of(PARTS) is TOTALS
    assert aggregates_of(PARTS[:1]) is not TOTALS
    assert TOTALS() == TOTALS(events=0, screws=0, speed=None, speed_sum=0, speed_count=0, top=None), (
        "the beginning of a key"
    )
    with pytest.raises(AttributeError):
        STATE.evnets = 1


def test_a_class_and_its_states_survive_pickle() -> None:
    assert pickle.loads(pickle.dumps(TOTALS)) is TOTALS  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(Aggregates)) is Aggregates  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(STATE)) == STATE  # noqa: S301 - our own
    assert copy.deepcopy(STATE) == STATE


def test_codecs_survive_it_too() -> None:
    found = pickle.loads(pickle.dumps(codec_for(TOTALS)))  # noqa: S301 - our own
    assert found.decode(found.encode(STATE)) == STATE
    assert found.python_type is TOTALS
    assert found.self_checking


@pytest.mark.parametrize("value", [STATE, window_of(TOTALS)("R7", 0, 10, STATE)])
def test_values_are_found_again_by_their_tag(value: object) -> None:
    tag, data = encode_with_tag(value)
    found = codec_of_tag(tag)
    assert found.decode(data) == value
    assert found.python_type is type(value)
    assert tag_of(found) == tag


def test_tags_that_wait_in_stores_stay_as_they_are() -> None:
    assert tag_of(codec_for(TOTALS)) == (
        "json:sqe_chain.codecs.aggregates:Aggregates[events=count,screws=sum.int,speed=mean,top=max]"
    )


def test_as_json_they_are_named_by_nobody_so_that_every_reader_understands_them() -> None:
    envelope = read(wrap(STATE, key="k", timestamp_ms=1))
    assert envelope.type == "json:"
    assert envelope.payloads == (
        b'{"events":3,"screws":7,"speed":1.5,"speed_sum":3,"speed_count":2,"top":"x"}',
    )
    assert envelope.payload_as(Own) == Own(3, 7)
    window = read(wrap(window_of(TOTALS)("R7", 0, 10, STATE), key="k", timestamp_ms=1))
    assert window.type == "json:"
    assert window.payload_as(Window[Own]).state == Own(3, 7)


def test_infinity_is_refused_although_no_state_is_read_back() -> None:
    with pytest.raises(ValueError, match="NaN and infinity"):
        codec_for(TOTALS).encode_state(TOTALS(screws=float("inf")))


def test_an_aggregate_that_is_added_begins_where_a_new_key_begins() -> None:
    old = codec_of(*PARTS[:1]).encode(aggregates_of(PARTS[:1])(events=3))
    assert codec_for(TOTALS).decode(old) == TOTALS(events=3)
    assert difference(PARTS[:1], PARTS) == ""


def test_order_and_known_types_may_change() -> None:
    other = (PARTS[2]._replace(of="float"), *PARTS[:2], PARTS[3])
    assert difference(PARTS, other) == difference(other, PARTS) == ""


def test_none_may_go_and_none_may_become_another() -> None:
    assert difference(PARTS, PARTS[1:]) == "aggregate 'events' is gone (count)"
    least = (*PARTS[:3], AggregatePart("top", "min"))
    assert difference(PARTS, least) == "aggregate 'top' was max, now it is min"
    assert (
        difference((AggregatePart("n", "sum"),), (AggregatePart("n", "count"),))
        == "aggregate 'n' was sum, now it is count"
    )
    assert "gone" in difference((AggregatePart("n", "sum"),), (AggregatePart("m", "sum"),)), (
        "another name is another aggregate"
    )


def test_nor_may_a_mean_take_over_the_sum_of_another() -> None:
    assert "'speed_sum' is gone" in difference(
        (AggregatePart("speed_sum", "sum"),), (AggregatePart("speed", "mean"),)
    )


def test_a_fold_of_ones_own_may_take_over_and_not_the_other_way_round() -> None:
    declared = codec_of(*PARTS[:2])
    own: Any = Json(Own)
    assert own.misread(declared.type_name, declared.shape()) == ""
    assert own.decode(declared.encode(aggregates_of(PARTS[:2])(events=3, screws=7))) == Own(3, 7)
    for other in (own, Json(dict)):
        assert "folded by another function" in declared.misread(other.type_name, other.shape())
    assert codec_for(dict).misread(declared.type_name, declared.shape()), "no dict"


def test_columns_of_tables_are_numbers_where_aggregates_are() -> None:
    parts = (
        *PARTS,
        AggregatePart("lowest", "min", "float"),
        AggregatePart("latest", "last", "str"),
        AggregatePart("torque", "sum"),
    )
    codec = codec_of(*parts)
    state = aggregates_of(parts)(events=3, screws=7, top=["x"], latest="é", torque=2)
    assert [(field.name, field.kind, field.of(state)) for field in codec.fields()] == [
        ("events", "int64", 3),
        ("screws", "int64", 7),
        ("speed", "float64", None),
        ("speed_sum", "float64", 0.0),
        ("speed_count", "int64", 0),
        ("top", "other", '["x"]'),
        ("lowest", "float64", None),
        ("latest", "text", "é"),
        ("torque", "float64", 2.0),
    ]
