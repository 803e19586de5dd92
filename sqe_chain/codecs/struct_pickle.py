"""Structs that a script or notebook defines, on their way to workers that cannot import them.

Cloudpickle takes classes apart and builds them again, but the fields of a `msgspec.Struct` lie in C: they would be
gone. So a struct is made again by `msgspec.defstruct`, first without what may refer to the class itself.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import get_annotations
from types import FunctionType
from typing import Any

import msgspec

from sqe_chain.errors import ConfigurationError

_OPTIONS = (
    *("frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults"),
    *("forbid_unknown_fields", "weakref", "dict", "cache_hash", "tag", "tag_field"),
)
_EARLY = "__post_init__"
"""Looked for by msgspec when the class is made, and not later."""

Reduced = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], None, None, Callable[[Any, Any], None]]


def is_struct(found: object) -> bool:
    """Whether this is a class of structs that a user has made."""
    return isinstance(found, type) and issubclass(found, msgspec.Struct) and found is not msgspec.Struct


def reduced(struct: type[msgspec.Struct]) -> Reduced:
    """What `pickle` needs to make the class again; see `pickle.Pickler.reducer_override`.

    Raises:
        ConfigurationError: only some of its fields are for keywords alone; that cannot be said again.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    own = [name for name in get_annotations(struct) if name in fields]
    keywords = set(own).difference(struct.__match_args__)
    if keywords and len(keywords) < len(own):
        raise ConfigurationError(
            f"{struct.__qualname__} has fields for keywords only beside others: define it in a module, not in the script"
        )
    config = struct.__struct_config__
    options = {name: getattr(config, name) for name in _OPTIONS} | {"kw_only": bool(keywords)}
    made = [(name, {"name": fields[name].encode_name, **_default(fields[name])}) for name in own]
    early = {_EARLY: struct.__dict__[_EARLY]} if _EARLY in struct.__dict__ else {}
    namespace = {**early, "__qualname__": struct.__qualname__, "__doc__": struct.__doc__}
    later: dict[str, Any] = {
        name: value
        for name, value in struct.__dict__.items()
        if isinstance(value, FunctionType | property | classmethod | staticmethod) and name not in namespace
    }
    later["__annotations__"] = {name: fields[name].type for name in own}
    arguments = (struct.__name__, made, struct.__bases__, struct.__module__, namespace, options)
    return _made, arguments, later, None, None, _completed


def _default(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    if field.default is not msgspec.NODEFAULT:
        return {"default": field.default}
    if field.default_factory is not msgspec.NODEFAULT:
        return {"default_factory": field.default_factory}
    return {}


def _made(
    name: str,
    fields: list[tuple[str, dict[str, Any]]],
    bases: tuple[type, ...],
    module: str,
    namespace: dict[str, Any],
    options: dict[str, Any],
) -> type[msgspec.Struct]:
    described = [(field, Any, msgspec.field(**what)) for field, what in fields]
    return msgspec.defstruct(name, described, bases=bases, module=module, namespace=namespace, **options)


def _completed(struct: type[msgspec.Struct], later: dict[str, Any]) -> None:
    """Methods and types of fields, which may refer to the class: msgspec asks for types when it first decodes."""
    for name, value in later.items():
        setattr(struct, name, value)
