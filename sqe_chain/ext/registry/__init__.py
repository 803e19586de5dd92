"""Payloads with schemas of a registry: Avro, Protobuf and JSON Schema."""

from __future__ import annotations

from sqe_chain.wings import needing

with needing("A schema registry", "registry"):
    from sqe_chain.ext.registry.avro import Avro
    from sqe_chain.ext.registry.json_schema import JsonSchema
    from sqe_chain.ext.registry.protobuf import ProtobufSchema

__all__ = ["Avro", "JsonSchema", "ProtobufSchema"]
