"""A schema registry in the memory of one process, for rehearsals: it takes every schema, also one that it is only asked for."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from threading import Lock
from uuid import UUID

from sqe_chain.ext.registry.schemas import SchemaId, UnknownSchema, WrittenSchema


class MemoryRegistry:
    """A registry whose ids are 1, 2, ... in the order in which schemas come."""

    def __init__(self) -> None:
        self._schemas: list[WrittenSchema] = []
        self._subjects: dict[str, list[WrittenSchema]] = {}
        self._lock = Lock()

    def by_number(self, number: int) -> WrittenSchema:
        """See `Registry`."""
        if not 0 < number <= len(self._schemas):
            raise UnknownSchema(
                f"schema id {number}: the registry in memory has {len(self._schemas)} schemas"
            )
        return self._schemas[number - 1]

    def by_guid(self, guid: str) -> WrittenSchema:
        """See `Registry`."""
        for schema in self._schemas:
            if _guid_of(schema) == guid:
                return schema
        raise UnknownSchema(f"schema GUID {guid}: the registry in memory does not have it")

    def version(self, subject: str, version: int) -> WrittenSchema:
        """See `Registry`."""
        versions = self._subjects.get(subject, [])
        if not 0 < version <= len(versions):
            raise UnknownSchema(
                f"subject {subject!r} has {len(versions)} versions, and not version {version}"
            )
        return versions[version - 1]

    def find(self, subject: str, schema: WrittenSchema) -> SchemaId:
        """The id of a schema, which is registered by that: nobody else could do it."""
        return self.register(subject, schema)

    def register(self, subject: str, schema: WrittenSchema) -> SchemaId:
        """See `Registry`."""
        with self._lock:
            if schema not in self._schemas:
                self._schemas.append(schema)
            versions = self._subjects.setdefault(subject, [])
            if schema not in versions:
                versions.append(schema)
            return SchemaId(self._schemas.index(schema) + 1, _guid_of(schema))

    def why_incompatible(self, subject: str, schema: WrittenSchema) -> str:
        """See `Registry`; it takes every schema."""
        del subject, schema
        return ""

    def ping(self) -> None:
        """See `Registry`."""


def _guid_of(schema: WrittenSchema) -> str:
    return str(UUID(bytes=blake2b(repr(schema).encode(), digest_size=16).digest()))


@cache
def memory_registry(url: str) -> MemoryRegistry:
    """The registry of a name, one for the whole process."""
    del url
    return MemoryRegistry()
