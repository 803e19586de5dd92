"""Goal: each type gets its codec, including those of users and other packages; a type without one is named in the error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain import read, wrap
from sqe_chain.codecs import Codec, codec_for, codec_named, register, registry
from sqe_chain.codecs.registry import codec_of_tag, make_known, tag_of
from sqe_chain.errors import ConfigurationError, MalformedField, WrongPayloadType


class Order(msgspec.Struct):
    robot: str = ""


@dataclass
class Reading:
    celsius: float = 0.0


class Text(Codec["Celsius"]):
    """A user's codec."""

    name = "text"

    def encode(self, value: Celsius) -> bytes:
        return f"{value.degrees}".encode()

    def decode(self, data: bytes) -> Celsius:
        return Celsius(float(data))

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return python_type is Celsius


class Celsius:
    """A class without a built-in codec."""

    def __init__(self, degrees: float = 0.0) -> None:
        self.degrees = degrees


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Text]]:
    monkeypatch.setattr(registry, "_registered", {**registry._registered})  # of other tests of this process
    register(Text)
    yield Text
    registry._default.cache_clear()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Int64Value(value=3), "google.protobuf.Int64Value"),
        (Order("r"), "json:Order"),
        (Reading(21.5), "json:Reading"),
        ({"a": 1}, "json:"),
        ("text", "json:"),
        (3, "json:"),
        (2.5, "json:"),
        (True, "json:"),
        (b"\x00\xff", "bytes:"),
    ],
)
def test_a_value_is_wrapped_and_read_by_the_codec_of_its_type(value: object, name: str) -> None:
    envelope = read(wrap(value, key="k", timestamp_ms=5), strict=True)
    assert envelope.type == name
    assert envelope.payload_as(type(value)) == value
    assert codec_of_tag(tag_of(codec_for(type(value)))).python_type is type(value)


def test_a_sequence_is_a_collection() -> None:
    envelope = read(wrap([Order("a"), Order("b")], key=None, timestamp_ms=0))
    assert envelope.payloads_as(Order) == (Order("a"), Order("b"))
    assert read(wrap([[1, 2]], key=None, timestamp_ms=0)).payload_as(list) == [1, 2]
    with pytest.raises(ValueError, match="of one type"):
        wrap([Order("a"), {"robot": "b"}], key=None, timestamp_ms=0)


def test_a_payload_of_another_type_or_form_is_refused() -> None:
    envelope = read(wrap(Order("a"), key=None, timestamp_ms=0))
    with pytest.raises(WrongPayloadType, match="is a json:Order, expected a json:Reading"):
        envelope.payload_as(Reading)
    with pytest.raises(WrongPayloadType, match=r"expected a google\.protobuf\.Int64Value"):
        envelope.payload_as(Int64Value)
    with pytest.raises(MalformedField, match="is not a json:"):
        envelope.payload_as(list)


def test_a_codec_of_a_user(text: type[Text]) -> None:
    envelope = read(wrap(Celsius(21.5), key=None, timestamp_ms=0))
    assert (envelope.type, envelope.payloads) == ("text:Celsius", (b"21.5",))
    assert envelope.payload_as(Celsius).degrees == 21.5
    assert codec_named("text") is text
    assert register(Text) is Text  # again, as when a module is loaded a second time


def test_a_name_is_given_once(text: type[Text]) -> None:
    class Other(Text):
        name = "text"

    class Own(Text):
        name = "json"

    for codec in (Other, Own):
        with pytest.raises(ConfigurationError, match=f"already a codec '{codec.name}'"):
            register(codec)


def test_a_value_without_a_codec_is_refused_by_its_type() -> None:
    for value in (Celsius(), {1}, None, 1j):
        with pytest.raises(ConfigurationError, match=f"no codec for {type(value).__name__}"):
            wrap(value, key=None, timestamp_ms=0)
    with pytest.raises(ConfigurationError, match=r"'xml'; known are: bytes, .*json, .*protobuf"):
        codec_for(dict, "xml")


def test_a_type_within_a_function_cannot_be_found_elsewhere() -> None:
    @dataclass
    class Local:
        a: int = 0

    tag = tag_of(codec_for(Local))
    with pytest.raises(ConfigurationError, match="Define it at the top of a module"):
        codec_of_tag(tag)
    make_known([Local])  # as it is done with types of a script
    assert codec_of_tag(tag).python_type is Local


@pytest.mark.parametrize("tag", ["shop.Renamed", "json:shop:Renamed"])
def test_a_type_that_records_wait_for_under_an_old_name_is_named(tag: str) -> None:
    with pytest.raises(ConfigurationError, match=r"shop\.Renamed .*under its old name"):
        codec_of_tag(tag)


def test_a_class_that_is_defined_again_under_its_name_is_the_new_one() -> None:
    def define(default: int) -> type:
        return msgspec.defstruct("Again", [("a", int, default)], module=__name__)

    for default in (1, 2):
        found = globals()["Again"] = define(default)
        assert codec_of_tag(tag_of(codec_for(found))).python_type is found
    del globals()["Again"]


def test_a_codec_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "upper.py").write_text(
        "from sqe_chain.codecs import Codec\n\n\nclass Upper(Codec[str]):\n"
        "    name = 'upper'\n\n    def encode(self, value):\n        return value.upper().encode()\n\n"
        "    def decode(self, data):\n        return data.decode().lower()\n",
        encoding="utf-8",
    )
    info = tmp_path / "upper-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: upper\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[sqe_chain.codecs]\nupper = upper:Upper\n", encoding="utf-8")
    program = (
        "from sqe_chain import read, wrap\n"
        "envelope = read(wrap('screws', key=None, timestamp_ms=0, codec='upper'))\n"
        "print(envelope.type, envelope.payloads, envelope.payload_as(str, 'upper'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "upper:str (b'SCREWS',) screws\n", done.stderr


def test_protobuf_users_need_no_msgspec() -> None:
    program = (
        "import sys\nsys.modules['msgspec'] = None\n"
        "from google.protobuf.wrappers_pb2 import Int64Value\n"
        "from sqe_chain import Flow, read, wrap\n"
        "print(read(wrap(Int64Value(value=3), key=None, timestamp_ms=0)).payload_as(Int64Value).value)\n"
        "try:\n    wrap({}, key=None, timestamp_ms=0)\nexcept Exception as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "3\nJSON needs the package 'msgspec': pip install 'sqe-chain[json]'\n", done.stderr
