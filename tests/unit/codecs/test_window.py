"""Goal: a window's result keeps the type of its state, through JSON, shuffles and workers."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import read, wrap
from sqe_chain.codecs import codec_for
from sqe_chain.codecs.json_codec import Json
from sqe_chain.codecs.registry import codec_of_tag, encode_with_tag, make_known, tag_of
from sqe_chain.codecs.window import Window, key_text, state_type, window_of
from sqe_chain.errors import ConfigurationError, WrongPayloadType


class Total(msgspec.Struct):
    screws: int = 0
    torque: float = 0.0


@dataclass
class Count:
    screws: int = 0


STATES: list[Any] = [Total(3, 0.5), Count(3), {"screws": 3}, [1, 2]]


def window(state: Any) -> Window[Any]:
    return window_of(type(state))("robot-7", 10, 20, state)


@pytest.mark.parametrize("state", STATES)
def test_a_value_is_found_again_by_its_tag(state: object) -> None:
    tag, data = encode_with_tag(window(state))
    found = codec_of_tag(tag).decode(data)
    assert found == window(state)
    assert type(found) is type(window(state))
    assert type(found.state) is type(state)


def test_it_is_a_row_of_json_with_the_state_inside() -> None:
    data = codec_for(Window[Total]).encode(Window[Total]("robot-7", 10, 20, Total(3)))
    assert data == b'{"key":"robot-7","start_ms":10,"end_ms":20,"state":{"screws":3,"torque":0.0}}'


def test_envelopes_name_the_state_and_readers_compare_it() -> None:
    envelope = read(wrap(window(Total(3)), key="k", timestamp_ms=1))
    assert envelope.type == "json:Window[Total]"
    assert envelope.payload_as(Window[Total]) == window(Total(3))
    assert envelope.payload_as(dict)["state"] == {"screws": 3, "torque": 0.0}
    assert envelope.payload_as(Window).state == {"screws": 3, "torque": 0.0}
    assert envelope.payload_as(window_of(dict)).state == {"screws": 3, "torque": 0.0}
    with pytest.raises(WrongPayloadType):
        envelope.payload_as(Window[Count])


def test_windows_of_plain_states_have_no_name_as_plain_states_have_none() -> None:
    envelope = read(wrap(window({"screws": 3}), key="k", timestamp_ms=1))
    assert envelope.type == "json:"
    assert envelope.payload_as(Window[Count]).state == Count(3)


def test_what_json_refuses_is_refused_inside_a_state() -> None:
    with pytest.raises(ValueError, match="NaN"):
        codec_for(Window[Total]).encode(window(Total(torque=float("nan"))))
    with pytest.raises(ConfigurationError):
        Json(Window[Int64Value])


def test_a_class_of_a_script_is_known_to_workers_inside_a_window_too() -> None:
    class Local(msgspec.Struct):
        screws: int = 0

    tag = tag_of(codec_for(Window[Local]))
    with pytest.raises(ConfigurationError, match="Local"):
        codec_of_tag(tag)
    make_known([Local])
    assert codec_of_tag(tag).python_type is Window[Local]


def test_it_is_pickled_by_the_type_of_its_state() -> None:
    assert pickle.loads(pickle.dumps(window(Total(3)))) == window(Total(3))  # noqa: S301 - our own
    codec = pickle.loads(pickle.dumps(codec_for(Window[Total])))  # noqa: S301 - our own
    assert codec.python_type is Window[Total]
    assert codec.type_name == "json:Window[Total]"


def test_only_classes_make_classes() -> None:
    state = TypeVar("state")
    assert not isinstance(Window[state], type)  # type: ignore[valid-type]
    assert (state_type(Window), state_type(Window[Total]), state_type(Total)) == (object, Total, None)


def test_the_type_of_the_state_is_known_where_a_made_class_has_the_annotations_of_its_base() -> None:
    """As in Python 3.14."""

    class Screws(msgspec.Struct):
        count: int = 0

    made = window_of(Screws)
    if sys.version_info < (3, 14):
        del made.__annotations__
    assert made.__annotations__ == Window.__annotations__
    assert state_type(made) is Screws


def test_keys_are_text() -> None:
    assert [key_text(key) for key in (b"", b"k", "ü\n".encode(), b"\xff\x00")] == ["", "k", "ü\n", "0xff00"]
