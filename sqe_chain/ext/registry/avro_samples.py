"""Records of an Avro schema that together take each branch of its unions and each symbol of its enums.

Whether a reader reads all that a schema can write is found by trying. So the rules of resolution are those of the library that reads,
and are written nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from typing import Any, Final

from sqe_chain.ext.registry.frames import zigzag

_TEXT: Final = b"\2a"
_UUID: Final = b"\x48" + b"00000000-0000-0000-0000-000000000001"
_PLAIN: Final[dict[str, bytes]] = {
    "null": b"",
    "boolean": b"\1",
    "int": b"\2",
    "long": b"\2",
    # No whole numbers: a reader of ints takes those.
    "float": pack("<f", 0.5),
    "double": pack("<d", 0.5),
    "bytes": b"\2\1",
    "string": _TEXT,
}
_ONE, _END, _EMPTY = b"\2", b"\0", b"\0"
_MOST: Final = 1_000
"""Samples of a schema: of a larger one not all branches are taken."""


def samples_of(schema: Any, named: Mapping[str, Any]) -> list[bytes]:  # noqa: ANN401 - a parsed schema
    r"""Records of a schema, encoded.

    >>> samples_of({"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}, {})
    [b'\x00', b'\x02\x02']

    Args:
        schema: as parsed by fastavro.
        named: full name -> the types that it refers to by name.

    Raises:
        ValueError: it has no finite record, or a type that is not known.
    """
    samples = _Sampler(named).of(schema)
    if not samples:
        raise ValueError("the schema has no finite record")
    return samples


class _Sampler:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._within = set[str]()
        self._made: dict[str, list[bytes]] = {}

    def of(self, schema: Any) -> list[bytes]:  # noqa: ANN401 - a parsed schema
        """Samples of a type; none: only a record within itself would do."""
        if isinstance(schema, list):
            pairs = ((zigzag(number), branch) for number, branch in enumerate(schema))
            return [begin + sample for begin, branch in pairs for sample in self.of(branch)][:_MOST]
        if isinstance(schema, str):
            return [_PLAIN[schema]] if schema in _PLAIN else self.of(self._type(schema))
        return self._made_of(schema, schema["type"])

    def _made_of(self, schema: Any, kind: Any) -> list[bytes]:  # noqa: ANN401 - see `of`
        match kind:
            case "record":
                return self._record(schema)
            case "array":
                samples = [_ONE + item + _END for item in self.of(schema["items"])] or [_EMPTY]
            case "map":
                samples = [_ONE + _TEXT + value + _END for value in self.of(schema["values"])] or [_EMPTY]
            case "enum":
                samples = [zigzag(number) for number in range(len(schema["symbols"]))]
            case "fixed":
                samples = [bytes(schema["size"])]
            case _:
                samples = [_UUID] if schema.get("logicalType") == "uuid" else self.of(kind)
        return samples

    def _record(self, schema: Any) -> list[bytes]:  # noqa: ANN401 - see `of`
        """The first has the first sample of each field; each other one has another sample of one field."""
        name = schema["name"]
        if name in self._made or name in self._within:
            return self._made.get(name, [])
        self._within.add(name)
        fields = [self.of(field["type"]) for field in schema["fields"]]
        self._within.discard(name)
        if not all(fields):
            return []
        first = [samples[0] for samples in fields]
        others = (
            [*first[:number], sample, *first[number + 1 :]]
            for number, samples in enumerate(fields)
            for sample in samples[1:]
        )
        made = self._made[name] = [b"".join(first), *map(b"".join, others)][:_MOST]
        return made

    def _type(self, name: str) -> Any:  # noqa: ANN401 - see `of`
        if name not in self._named:
            raise ValueError(f"type {name} of the schema is not known")
        return self._named[name]
