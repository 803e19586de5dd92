"""Flows arrive complete in another process, whatever their functions and types are; another Python process unpacks them."""

from __future__ import annotations

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
