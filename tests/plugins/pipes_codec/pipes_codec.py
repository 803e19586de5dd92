"""A codec: dataclasses as their fields between pipes, ``robot-7|3``; topics may have another separator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Self, get_type_hints

from sqe_chain.codecs import Codec, Place
from sqe_chain.errors import ConfigurationError


class Pipes(Codec[Any]):
    """For dataclasses whose fields are texts and numbers.

    Args:
        python_type: the dataclass.
        separators: topic -> what is between the fields there; "|" elsewhere.
        separator: what is between the fields here.
    """

    name = "pipes"

    def __init__(
        self, python_type: type, *, separators: Mapping[str, str] | None = None, separator: str = "|"
    ) -> None:
        super().__init__(python_type)
        self.separators, self.separator = separators or {}, separator

    def at(self, place: Place) -> Self:
        """The one with the topic's separator."""
        if place.role == "key":
            raise ConfigurationError(f"keys of {place.topic!r} have no fields")
        own = self.separators.get(place.topic, self.separator)
        return type(self)(self.python_type, separators=self.separators, separator=own)

    def encode(self, value: Any) -> bytes:
        """The fields in their order."""
        fields = [str(field) for field in astuple(value)]
        if any(self.separator in field for field in fields):
            raise ValueError(f"a field holds {self.separator!r}, which is between fields")
        return self.separator.join(fields).encode()

    def decode(self, data: bytes) -> Any:
        """The other way round."""
        kinds = get_type_hints(self.python_type).values()
        fields = data.decode().split(self.separator)
        return self.python_type(*(kind(text) for kind, text in zip(kinds, fields, strict=True)))
