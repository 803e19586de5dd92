"""Bytes as they are."""

from __future__ import annotations

from typing import ClassVar

from sqe_chain.codecs.codec import Codec
from sqe_chain.errors import ConfigurationError


class Raw(Codec[bytes]):
    """Bytes as they are."""

    name: ClassVar[str] = "bytes"
    reads_back = True

    def __init__(self, python_type: type[bytes] = bytes) -> None:
        super().__init__(python_type)
        if python_type is not bytes:
            raise ConfigurationError(f"codec 'bytes' takes bytes, not {python_type!r}")

    def encode(self, value: bytes) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data

    @classmethod
    def takes(cls, python_type: type) -> bool:
        return python_type is bytes

    @property
    def type_name(self) -> str:
        return f"{self.name}:"

    def check_state(self) -> str:
        return "a fold changes its state in place, and bytes cannot be changed"
