"""Goal: codecs of a schema registry keep the contract of all codecs, also with settings and in another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.codecs import Codec
from sqe_chain.ext.registry import Avro, JsonSchema, ProtobufSchema
from sqe_chain.testing.contracts import CodecContract


@dataclass
class Bolt:
    robot: str = ""
    torque: float = 0.0
    lines: list[str] = field(default_factory=list)


class TestAvro(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec[Any]:
        return Avro(Bolt, namespace="robots", subject="topic-record", registry="memory://contract")

    @pytest.fixture
    def values(self) -> list[Any]:
        return [Bolt(), Bolt("ü", -1.5e300, ["a", ""]), Bolt("\0", 0.1)]


class TestJsonSchema(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec[Any]:
        return JsonSchema(Bolt, validate=True, registry="memory://contract")

    @pytest.fixture
    def values(self) -> list[Any]:
        return [Bolt(), Bolt("ü", -1.5e300, ["a", ""]), Bolt("\0", 0.1)]


class TestProtobufSchema(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec[Any]:
        return ProtobufSchema(StringValue, subject="record", registry="memory://contract")

    @pytest.fixture
    def values(self) -> list[Any]:
        return [StringValue(), StringValue(value="ü"), StringValue(value="\0" * 1_000)]
