"""Goal: the codecs of sqe-chain keep the contract that is shipped for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain.codecs import Codec, codec_for
from sqe_chain.codecs.json_codec import Json
from sqe_chain.testing.contracts import CodecContract


@dataclass
class Order:
    shop: str = ""
    amount: float = 0.0
    lines: list[str] = field(default_factory=list)


class TestJson(CodecContract):
    """With its one setting, without which envelopes would have another type."""

    @pytest.fixture
    def codec(self) -> Codec[Any]:
        return Json(Order, type_name="shop.Order")

    @pytest.fixture
    def values(self) -> list[Any]:
        return [Order(), Order("ü", -1.5e300, ["a", ""]), Order("\0", 0.1)]


class TestProtobuf(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec[Any]:
        return codec_for(StringValue)

    @pytest.fixture
    def values(self) -> list[Any]:
        return [StringValue(), StringValue(value="ü"), StringValue(value="\0" * 1_000)]


class TestBytes(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec[Any]:
        return codec_for(bytes)

    @pytest.fixture
    def values(self) -> list[Any]:
        return [b"", b"\0", bytes(range(256))]

    @pytest.fixture
    def refused(self) -> None:
        return None
