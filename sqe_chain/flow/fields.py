"""Fields of values, named by paths such as ``robot`` and ``meta.ts``: the Python text that reads one, checked against a type.

Text is made, and not a function for each step, because it becomes part of a fold that is called for every message.
"""

from __future__ import annotations

import keyword
import linecache
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from types import CodeType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sqe_chain.codecs.codec import field_names
from sqe_chain.errors import FlowError, PoisonError
from sqe_chain.flow.declaration import declared_if, refused_at
from sqe_chain.flow.functions import DeclaredFunction, UserFunction

_SCALARS: Final[Mapping[int, type]] = {
    FieldDescriptor.CPPTYPE_STRING: str,
    FieldDescriptor.CPPTYPE_FLOAT: float,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_BOOL: bool,
}
_LISTED: Final = 20
"""Names of fields in an error."""


class FieldReader(NamedTuple):
    """How a field is read.

    Attributes:
        text: an expression over `value`, which gives None for what is null.
        of: type of the field; None: it is not known.
    """

    text: str
    of: type | None


def read_field(python_type: type | None, path: str, *, optional: bool = False) -> FieldReader:
    """How to read a field, by its path, of values of a type; None: the type is not known.

    Null are None, an unset protobuf field that has presence (``optional``, a message, a part of a ``oneof``), and every field of
    what is null. With `optional`, what a dict or an object does not have is null, too.

    Raises:
        FlowError: the type has no such field; the text names those it has.
    """
    text, of = "value", python_type
    for depth, name in enumerate(path.split(".")):
        if of is None:
            text = f"step({text}, {name!r}, {optional})"
        elif issubclass(of, Message):
            text, of = _of_message(text, of, name, depth)
        elif issubclass(of, Mapping):
            way = f".get({name!r})" if optional else f"[{name!r}]"
            text, of = _unless_null(text, depth, way), None
        elif optional and not _has(of, name):
            text, of = f"getattr({text}, {name!r}, None)", None
        else:
            text, of = _unless_null(text, depth, _attribute(name)), _declared_type(of, name)
    return FieldReader(text, of)


def declared_key(
    key: object, value_type: type | None, where: str, what: str = "key"
) -> DeclaredFunction | None:
    """The function that gives a key of a value: the user's, or that of the field that the user named; None if none is given.

    Args:
        key: what the user gave.
        value_type: of the values; None: it is not known.
        where: file and line of the declaration.
        what: the argument's name, for the error's text.

    Raises:
        FlowError: it is no such function, or values have no such field, or one that is neither text nor bytes.
    """
    if isinstance(key, str):
        with refused_at(f"{where}: {what}={key!r}"):
            of = read_field(value_type, key).of
        if of is not None and not issubclass(of, str | bytes):
            raise FlowError(
                f"{where}: {what}={key!r} is of type {of.__name__}, and keys are str or bytes: give a function"
            )
    return declared_value(what, key, value_type, where)


def declared_value(what: str, given: object, value_type: type | None, where: str) -> DeclaredFunction | None:
    """The same for what may be of any type.

    Raises:
        FlowError: it is no such function, or values have no such field.
    """
    if isinstance(given, str):
        with refused_at(f"{where}: {what}={given!r}"):
            return DeclaredFunction(value_of_field(value_type, given))
    return declared_if(what, given, where)


def value_of_field(python_type: type | None, path: str) -> UserFunction:
    """The function that gives a field.

    Raises:
        FlowError: the type has no such field.
    """
    text, _ = read_field(python_type, path)
    if text == f"value.{path}":
        return attrgetter(path)
    source = (
        "def field(value):\n"
        "    try:\n"
        f"        return {text}\n"
        "    except (AttributeError, KeyError, TypeError):\n"
        f"        return walk(value, {path!r})  # raises what tells more\n"
    )
    made: UserFunction = compiled(f"field {path}", source, "field", {"step": step, "walk": walk})
    return made


def walk(value: object, path: str, *, optional: bool = False) -> Any:  # noqa: ANN401 - any value
    """A field of a value, read step by step; see `read_field`.

    Raises:
        PoisonError: there is no such field.
    """
    for name in path.split("."):
        value = step(value, name, optional)
    return value


def step(value: Any, name: str, optional: bool) -> Any:  # noqa: ANN401, FBT001 - any value; called by generated code
    """One step of a path, where the type was not known before. Of None every field is null; with `optional`, so is a missing one.

    Raises:
        PoisonError: there is no such field.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        held = value.get(name, step)  # `step` itself means "no such field": no value holds this function
    elif isinstance(value, Message):
        descriptor = value.DESCRIPTOR.fields_by_name.get(name)
        if descriptor is not None and descriptor.has_presence and not value.HasField(name):
            return None
        held = getattr(value, name, step)
    else:
        held = getattr(value, name, step)
    if held is not step:
        return held
    if optional and not isinstance(value, Message):
        return None
    raise PoisonError(missing(type(value), name, value if isinstance(value, Mapping) else None))


def missing(python_type: type, name: str, value: Mapping[str, object] | None = None) -> str:
    """The text for a field that a type does not have; `value`: the dict that lacks it."""
    names = sorted(map(str, value)) if value is not None else _names(python_type)
    known = f"; it has {', '.join(names[:_LISTED])}{', ...' if len(names) > _LISTED else ''}" if names else ""
    return f"{python_type.__qualname__} has no field {name!r}{known}"


def compiled(title: str, source: str, name: str, names: Mapping[str, object]) -> Any:  # noqa: ANN401 - a function
    """A function made from text, which `inspect.getsource` and tracebacks show, and the names that the text refers to."""
    file = f"<{title}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": __name__, "__text__": source, **names}
    exec(_code_of(file, source), scope)  # noqa: S102 - our own text; names in it were checked
    return scope[name]


@lru_cache(1_000)
def _code_of(file: str, source: str) -> CodeType:
    """The code of a text: flows that look alike have the same, and compiling takes longer than running a small batch."""
    return compile(source, file, "exec")


def _of_message(text: str, of: type[Message], name: str, depth: int) -> FieldReader:
    descriptor: Any = of.DESCRIPTOR.fields_by_name.get(name)
    if descriptor is None:
        raise FlowError(missing(of, name))
    if descriptor.has_presence and depth:
        held = f"v{depth}"
        is_set = f"({held} := {text}) is not None and {held}.HasField({name!r})"
        text = f"({held}{_attribute(name)} if {is_set} else None)"
    elif descriptor.has_presence:
        text = f"({text}{_attribute(name)} if {text}.HasField({name!r}) else None)"
    else:
        text = _unless_null(text, depth, _attribute(name))
    return FieldReader(text, _message_field(descriptor))


def _message_field(descriptor: Any) -> type | None:  # noqa: ANN401 - protobuf's description of a field
    if descriptor.is_repeated:
        return None
    if descriptor.message_type is not None:
        message_type: type = message_factory.GetMessageClass(descriptor.message_type)
        return message_type
    if descriptor.type == FieldDescriptor.TYPE_BYTES:
        return bytes
    return _SCALARS.get(descriptor.cpp_type, int)


def _attribute(name: str) -> str:
    return (
        f".{name}" if name.isidentifier() and not keyword.iskeyword(name) else f".__getattribute__({name!r})"
    )


def _unless_null(text: str, depth: int, access: str) -> str:
    """An access to what may be null; a value itself never is."""
    return f"(None if (v{depth} := {text}) is None else v{depth}{access})" if depth else f"{text}{access}"


def _declared_type(of: type, name: str) -> type | None:
    """The type of a field of a class; None if it is not known.

    Raises:
        FlowError: the class does not have it.
    """
    if not _has(of, name):
        raise FlowError(missing(of, name))
    try:
        hint = get_type_hints(of).get(name)
    except Exception:  # noqa: BLE001 - a hint may be any expression
        return None
    return _class_of(hint)


def _has(of: type, name: str) -> bool:
    names = _names(of)
    if hasattr(of, name) or name in names:
        return True
    # Attributes of other classes are seen in an object only.
    return not names and of.__module__ != "builtins"


def _names(of: type) -> list[str]:
    """The fields of a type, as far as it declares them."""
    names = list(field_names(of) or getattr(of, "_fields", ()))
    return sorted(names) if issubclass(of, Message) else names


def _class_of(hint: object) -> type | None:
    """The class that a hint names, without None."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        classes = [part for part in get_args(hint) if part is not type(None)]
        return _class_of(classes[0]) if len(classes) == 1 else None
    if isinstance(origin, type):
        return origin
    return hint if isinstance(hint, type) and hint is not object else None
