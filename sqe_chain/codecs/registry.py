"""Finds the codec for a type: built-in ones, those of other packages, and your own.

>>> codec_for(dict).type_name, codec_for(bytes).type_name
('json:', 'bytes:')
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar, cast

from google.protobuf import descriptor_pool, message_factory

from sqe_chain.codecs.aggregates import Aggregates, aggregates_in, description_of, is_aggregates
from sqe_chain.codecs.change import Change, row_type
from sqe_chain.codecs.codec import Codec
from sqe_chain.codecs.protobuf import Protobuf
from sqe_chain.codecs.raw import Raw
from sqe_chain.codecs.window import Window, state_type
from sqe_chain.errors import ConfigurationError
from sqe_chain.wings import installed, load, needing

Value = TypeVar("Value")

ENTRY_POINTS: Final = "sqe_chain.codecs"
"""Group of entry points: name of a codec -> its class."""

_ON_THEIR_WAY = "go from one stage to another, or wait for their event time"
_RENAMED = "What was renamed is needed under its old name, too, until nothing waits; or fold again: sqe-chain rebuild"
_registered: dict[str, type[Codec[Any]]] = {}
_shipped: dict[str, type] = {}
"""Classes of scripts and notebooks, sent with the flow because a worker cannot import them."""


def register(codec: type[Codec[Any]]) -> type[Codec[Any]]:
    """Register a codec under its name. Works as a decorator of the class.

    Register it when its module is imported: workers import it, too, and need the codec.

    Raises:
        ConfigurationError: another codec has this name.
    """
    if codec.name in ("protobuf", "json", "bytes") or _registered.get(codec.name, codec) is not codec:
        raise ConfigurationError(
            f"there is already a codec {codec.name!r}; give {codec.__name__} another name"
        )
    _registered[codec.name] = codec
    # A type may have gone to another codec, before this one was known.
    _default.cache_clear()
    return codec


def codec_named(name: str) -> type[Codec[Any]]:
    """The codec of this name.

    Raises:
        ConfigurationError: there is none; the text lists the known ones.
    """
    if name == "protobuf":
        return Protobuf
    if name == "bytes":
        return Raw
    if name == "json":
        return _json()
    others = installed(ENTRY_POINTS)
    codec = _registered.get(name) or (load(ENTRY_POINTS, name) if name in others else None)
    if codec is None:
        known = ", ".join(sorted({"protobuf", "json", "bytes", *_registered, *others}))
        raise ConfigurationError(f"there is no codec {name!r}; known are: {known}")
    return codec


def codec_for(python_type: type[Value], codec: Codec[Any] | str | None = None) -> Codec[Value]:
    """The codec of a type.

    Args:
        python_type: type of the values.
        codec: a codec, which is returned as it is; the name of one; or None for the default of this type.

    Raises:
        ConfigurationError: there is no such codec, or none for this type.
    """
    if isinstance(codec, Codec):
        return codec
    return _default(cast("Hashable", python_type)) if codec is None else codec_named(codec)(python_type)


@cache
def _default(python_type: type[Any]) -> Codec[Any]:
    if Protobuf.takes(python_type):
        return Protobuf(python_type)
    if Raw.takes(python_type):
        return Raw(python_type)
    if is_aggregates(python_type):
        return _json(aggregates=True)(python_type)
    others: list[type[Codec[Any]]] = [load(ENTRY_POINTS, name) for name in installed(ENTRY_POINTS)]
    for codec in (*_registered.values(), *others):
        if codec.takes(python_type):
            return codec(python_type)
    # A struct can only exist if msgspec was imported; without it, do not demand the package for a foreign type.
    if python_type.__module__ == "builtins" or is_dataclass(python_type) or "msgspec" in sys.modules:
        json = _json()
        if json.takes(python_type):
            return json(python_type)
    raise ConfigurationError(
        f"there is no codec for {python_type.__qualname__}. Expected a protobuf message, a msgspec.Struct, a dataclass, dict, "
        "list, str, int, float, bool or bytes. Take one of them, or register a codec for it (docs/payloads.md)"
    )


def _json(*, aggregates: bool = False) -> type[Codec[Any]]:
    with needing("JSON", "json"):
        from sqe_chain.codecs.aggregate_states import AggregateStates  # noqa: PLC0415 - protobuf works without msgspec
        from sqe_chain.codecs.json_codec import Json  # noqa: PLC0415 - the same
    return AggregateStates if aggregates else Json


def tag_of(codec: Codec[Any]) -> str:
    """A name of a codec and its type, for another process of the same job; see `codec_of_tag`."""
    if isinstance(codec, Protobuf):
        return codec.type_name
    python_type = codec.python_type
    if is_aggregates(python_type):
        return (
            f"{codec.name}:{Aggregates.__module__}:{Aggregates.__qualname__}[{description_of(python_type)}]"
        )
    state = None if python_type is Window else state_type(python_type)
    held, base = (state, Window) if state is not None else (row_type(python_type), Change)
    if held is not None:
        return f"{codec.name}:{base.__module__}:{base.__qualname__}[{tag_of(codec_for(held))}]"
    return f"{codec.name}:{python_type.__module__}:{python_type.__qualname__}"


def reads_as_default(codec: Codec[Any]) -> bool:
    """Whether values that a codec has decoded are what the default codec of their type makes of them."""
    if codec.reads_default:
        return True
    kinds = (dict, list) if codec.python_type is object else (codec.python_type,)
    try:
        return codec.reads_back and all(type(codec) is type(codec_for(kind)) for kind in kinds)
    except ConfigurationError:
        return False  # the type has no default codec


_DEEPEST_PART = 20
"""Levels below a value that an error's text names."""


def find_refused_part(value: object) -> str:
    """The part of a value that JSON does not take, with its type, for an error's text; empty if JSON takes each."""
    path, parts = "", _parts_of(value)
    for _ in range(_DEEPEST_PART):  # what is a part of itself has no end
        refused = next(((name, part) for name, part in parts if not _is_taken(part)), None)
        if refused is None:
            break
        path, value = path + refused[0], refused[1]
        parts = _parts_of(value)
    return path and f"{path} is a {type(value).__qualname__}"


def _is_taken(value: object) -> bool:
    try:
        _json()(object).encode(value)
    except Exception:  # noqa: BLE001 - whatever a codec raises
        return False
    return True


def _parts_of(value: object) -> list[tuple[str, object]]:
    if "msgspec" not in sys.modules:
        return []
    from sqe_chain.codecs.exact_states import parts_of  # noqa: PLC0415 - as `_json`

    return list(parts_of(value))


def encode_with_tag(value: object) -> tuple[str, bytes]:
    """A value's bytes, by the codec that takes its type, and the tag by which `codec_of_tag` finds that codec again."""
    codec = codec_for(type(value))
    return tag_of(codec), codec.encode(value)


def codec_of_tag(tag: str) -> Codec[Any]:
    """The codec that `tag_of` named, in any process that can import its type or got it through `make_known`.

    The class is looked up each time: a notebook may define it again under its name.

    Raises:
        ConfigurationError: the type cannot be found.
    """
    name, colon, rest = tag.partition(":")
    if not colon:
        try:
            message = descriptor_pool.Default().FindMessageTypeByName(tag)
        except KeyError:
            raise ConfigurationError(
                f"messages of type {tag} {_ON_THEIR_WAY}, but this process has not imported that type. Import the module "
                f"that was generated from its .proto, at the top of the flow's. {_RENAMED}"
            ) from None
        return Protobuf(message_factory.GetMessageClass(message))
    module, _, qualname = rest.partition(":")
    qualname, of_another, held = qualname.partition("[")
    # Their classes are made of a description, so no process can import them.
    if (module, qualname) == (Aggregates.__module__, Aggregates.__qualname__):
        return codec_for(aggregates_in(held[:-1]))
    python_type: Any = _shipped.get(tag)
    if python_type is None:
        try:
            python_type = import_module(module)
            for part in qualname.split("."):
                python_type = getattr(python_type, part)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"values of type {module}.{qualname} {_ON_THEIR_WAY}, but this process cannot find that class: "
                f"{error}. Define it at the top of a module or script, not inside a function. {_RENAMED}"
            ) from error
    if of_another:
        python_type = python_type[codec_of_tag(held[:-1]).python_type]
    return _make(codec_named(name), python_type)


@cache
def _make(codec: type[Codec[Any]], python_type: type[Any]) -> Codec[Any]:
    """A codec is made once for each class, since making one takes longer than a small batch."""
    return codec(python_type)


def make_known(python_types: Iterable[type]) -> None:
    """Register types of a script or notebook, which this worker received with the flow."""
    for python_type in python_types:
        _shipped[tag_of(codec_for(python_type))] = python_type


def classes_of_script() -> list[type]:
    """The types with a codec that the running script or notebook defines at top level; workers cannot import them."""
    script = sys.modules.get("__main__")
    classes = (value for value in vars(script).values() if isinstance(value, type))
    return [cls for cls in classes if cls.__module__ == "__main__" and _has_codec(cls)]


def _has_codec(python_type: type) -> bool:
    try:
        return codec_for(python_type).name != "protobuf"
    except Exception:  # noqa: BLE001 - a class of the script that has nothing to do with the flow may be anything
        return False
