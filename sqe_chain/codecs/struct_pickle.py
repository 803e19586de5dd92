"""Sends structs that a script or notebook defines to workers, which cannot import them.

Cloudpickle rebuilds a class from its attributes, but the fields of a `msgspec.Struct` are stored in C and would be
lost. So a worker creates the struct with `msgspec.defstruct`, and adds whatever may refer to the class itself later.
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
"""msgspec looks for it when the class is created, and never again."""

Reduced = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], None, None, Callable[[Any, Any], None]]


def is_struct(value: object) -> bool:
    """Whether this is a user's subclass of `msgspec.Struct`."""
    return isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct


def reduce_struct(struct: type[msgspec.Struct]) -> Reduced:
    """The arguments with which `pickle` creates the class again; see `pickle.Pickler.reducer_override`.

    Raises:
        ConfigurationError: only some of its fields are keyword-only; `defstruct` cannot express that.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    own = [name for name in get_annotations(struct) if name in fields]
    keywords = set(own).difference(struct.__match_args__)
    if keywords and len(keywords) < len(own):
        raise ConfigurationError(
            f"{struct.__qualname__} has keyword-only fields and others: define it in a module, not in the script"
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
    return _create, arguments, later, None, None, _complete


def _default(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    if field.default is not msgspec.NODEFAULT:
        return {"default": field.default}
    if field.default_factory is not msgspec.NODEFAULT:
        return {"default_factory": field.default_factory}
    return {}


def _create(
    name: str,
    fields: list[tuple[str, dict[str, Any]]],
    bases: tuple[type, ...],
    module: str,
    namespace: dict[str, Any],
    options: dict[str, Any],
) -> type[msgspec.Struct]:
    described = [(field, Any, msgspec.field(**what)) for field, what in fields]
    return msgspec.defstruct(name, described, bases=bases, module=module, namespace=namespace, **options)


def _complete(struct: type[msgspec.Struct], later: dict[str, Any]) -> None:
    """Add methods and field types, which may refer to the class. In time: msgspec reads types at its first decode."""
    for name, value in later.items():
        setattr(struct, name, value)
