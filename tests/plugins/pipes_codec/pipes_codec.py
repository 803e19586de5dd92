"""A codec: dataclasses as their fields between pipes, ``robot-7|3``."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any, get_type_hints

from sqe_chain.codecs import Codec


class Pipes(Codec[Any]):
    """For dataclasses whose fields are texts and numbers."""

    name = "pipes"

    def encode(self, value: Any) -> bytes:
        """The fields in their order."""
        return "|".join(str(field) for field in astuple(value)).encode()

    def decode(self, data: bytes) -> Any:
        """The other way round."""
        kinds = get_type_hints(self.python_type).values()
        return self.python_type(
            *(kind(text) for kind, text in zip(kinds, data.decode().split("|"), strict=True))
        )
