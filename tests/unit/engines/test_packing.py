"""Flows arrive complete in another process, whatever their functions and types are; another Python process unpacks them."""

from __future__ import annotations

import decimal
import importlib
import io
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.wrappers_pb2 import Int64Value

from sqe_chain.engines import packing
from sqe_chain.engines.packing import PackedFlow
from sqe_chain.errors import ConfigurationError
from sqe_chain.flow import Flow, mean, sum_
from sqe_chain.stages import Tumbling, Window


@dataclass
class State:
    """A state of windows."""

    screws: int = 0


def test_a_generated_type_goes_by_the_module_it_is_found_in() -> None:
    flow = Flow("typed")
    flow.source("t", Int64Value).to("u", partitions=1)
    codec = PackedFlow.of(flow.compile()).unpack().sources[0].codec
    assert codec is not None
    assert codec.python_type is Int64Value


def test_a_type_made_at_run_time_goes_by_its_file() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="made_at_run_time.proto", package="made", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Total")
    message.field.add(name="value", number=1, type=3, label=1)
    message.field.add(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    importlib.import_module("google.protobuf.timestamp_pb2")
    pool = descriptor_pool.Default()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("made.Total"))
    flow = Flow("typed")
    flow.source("t", made).to("u", partitions=1)
    code = (
        "import pickle, sys; flow = pickle.loads(sys.stdin.buffer.read()).unpack();"
        "print(flow.nodes[0].codec.python_type(value=7).value, flow.nodes[0].codec.type_name)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(PackedFlow.of(flow.compile())),
        capture_output=True,
        check=False,
    )
    assert found.stdout.split() == [b"7", b"made.Total"], found.stderr.decode()


def test_what_cannot_be_sent_is_refused_by_name(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        flow = Flow("holding")
        flow.source("t", Int64Value).map(lambda value: (file, value)[1]).to("u", partitions=1)
        with pytest.raises(ConfigurationError, match=r"'holding' cannot be sent.*open them inside"):
            PackedFlow.of(flow.compile())


def test_a_class_of_windows_goes_by_the_type_of_its_state() -> None:
    sent = io.BytesIO()
    packing._FlowPickler(sent).dump((Window[State], Window))
    assert pickle.loads(sent.getvalue()) == (Window[State], Window)  # noqa: S301 - our own


def test_declared_aggregates_are_made_again_from_their_description() -> None:
    flow = Flow("declared")
    source = flow.source("t", dict)
    source.aggregate("sums", key="k.name", n=sum_("n"), m=mean("m"))
    source.map(lambda value: (value["n"], value)[1]).windowed("w", Tumbling(10), key="k.name", n=sum_("n"))
    packed = PackedFlow.of(flow.so_far())
    assert packed.digest == PackedFlow.of(flow.so_far()).digest
    code = (
        "import pickle, sys; flow = pickle.loads(sys.stdin.buffer.read()).unpack()\n"
        "value = {'k': {'name': 'R7'}, 'n': 3, 'm': 4}\n"
        "for stage in flow.stages:\n"
        "    state = stage.codec.new()\n"
        "    stage.stage_kind.fold.function(state, value)\n"
        "    print(stage.key.function(value), stage.codec.encode(state).decode())\n"
        "    try: stage.stage_kind.fold.function(state, {'n': 'x', 'm': 0})\n"
        "    except Exception as error: print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(packed), capture_output=True, check=False
    )
    refused = "n=sum_('n'): sum and mean take int and float, not str"
    assert found.stdout.decode().splitlines() == [
        'R7 {"n":3,"m":4.0,"m_sum":4,"m_count":1}',
        refused,
        'R7 {"n":3}',
        refused,
    ], found.stderr.decode()


UNPACK = (
    "import pickle, sys; packed = pickle.loads(sys.stdin.buffer.read())\n"
    "try: print(packed.unpack().nodes[1].function.function(1))\n"
    "except Exception as error: print(type(error).__name__, error)"
)


def unpack_elsewhere(packed: PackedFlow) -> str:
    found = subprocess.run(
        [sys.executable, "-B", "-c", f"import sys; sys.path[:] = {sys.path!r}; {UNPACK}"],
        input=pickle.dumps(packed),
        capture_output=True,
        check=False,
    )
    return found.stdout.decode() + found.stderr.decode()


@pytest.mark.parametrize("name", ["functions_of_user", "package_of_user.functions"])
def test_a_worker_that_would_run_newer_code_than_the_service_stops_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    if path.parent != tmp_path:
        (path.parent / "__init__.py").touch()
    path.write_text("def change(value): return value + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    for imported in {name, name.partition(".")[0]}:
        monkeypatch.setitem(sys.modules, imported, sys.modules.pop(imported))  # it goes with the test
    flow = Flow("moved-on")
    flow.source("t", dict).map(module.change).to("u", partitions=1)
    packed = PackedFlow.of(flow.compile())
    assert unpack_elsewhere(packed) == "2\n"
    for newer in ("def change(value): return value + 1000\n", "def other(value): return value\n"):
        path.write_text(newer)
        for sent in (packed, PackedFlow.of(flow.compile())):  # also where the service packs again
            found = unpack_elsewhere(sent)
            assert found.startswith("ConfigurationError "), newer
            assert f"module '{name}' has changed since the service was started" in found, newer


def test_another_process_computes_with_as_many_digits() -> None:
    flow = Flow("digits")
    flow.source("t", dict).map(lambda _: len(str(decimal.Decimal(1) / 7))).to("u", partitions=1)
    for digits in (50, 28):
        with decimal.localcontext(prec=digits):
            packed = PackedFlow.of(flow.compile())
        assert unpack_elsewhere(packed) == f"{digits + 2}\n"


SCRIPT = """
import enum, pickle, sys
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import msgspec

from sqe_chain.engines.packing import PackedFlow
from sqe_chain.flow import Flow


class Colour(enum.Enum):
    RED = "red"


class Place(NamedTuple):
    shop: str


class Extra(TypedDict):
    note: str


@dataclass
class Order:
    place: Place
    extra: Extra
    colour: Colour = Colour.RED


@dataclass
class Total:
    orders: int = 0


class Line(msgspec.Struct):
    colour: Colour


def add(total: Total, order: Order) -> None:
    assert order.colour is Colour.RED and isinstance(order.place, Place)
    total.orders += 1


for payload in (Order, Line):
    flow = Flow("of-a-script")
    flow.source("t", payload).aggregate("totals", key=lambda order: "all", state=Total, fold=add)
    source = flow.compile().sources[0].codec
    source.decode(b'{"place":["a"],"extra":{"note":"b"},"colour":"red"}')
    pickle.dump(PackedFlow.of(flow.compile()), open(sys.argv[1] + payload.__name__, "wb"))
"""


def test_types_of_a_script_arrive_after_it_has_used_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    subprocess.run([sys.executable, script, f"{tmp_path}/"], check=True)
    code = (
        "import pickle, sys; flow = pickle.loads(sys.stdin.buffer.read()).unpack(); stage = flow.stages[0]\n"
        """order = flow.sources[0].codec.decode(b'{"place":["a"],"extra":{"note":"b"},"colour":"red"}')\n"""
        "total = stage.codec.new()\n"
        "if hasattr(order, 'place'): stage.stage_kind.fold.function(total, order)\n"
        "print(stage.codec.encode(total).decode(), order.colour)"
    )
    for payload, expected in (("Order", '{"orders":1} Colour.RED'), ("Line", '{"orders":0} Colour.RED')):
        found = subprocess.run(
            [sys.executable, "-c", code],
            input=(tmp_path / payload).read_bytes(),
            capture_output=True,
            check=False,
        )
        assert found.stdout.decode().strip() == expected, found.stderr.decode()
