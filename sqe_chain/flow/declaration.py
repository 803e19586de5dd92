"""Checks of what a user declares; every error names the file and line in the user's code."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from sqe_chain.codecs import Codec, codec_for, codec_named
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.shapes import Gives, check_callable, check_fold
from sqe_chain.ports.files import Format, format_of
from sqe_chain.wings import WINGS, load

NAME_LENGTH = 120
TOPIC_LENGTH = 249
MAX_DURATION_MS = 10**15
"""Some 31,000 years: so that event times and durations, added up, stay inside 64 bits."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGE = str(Path(__file__).parents[1])


class WindowKind:
    """Base of `Tumbling`, `Hopping`, `Calendar` and `Sessions` of `sqe_chain.stages`.

    Attributes:
        overlap: whether a record may lie in several of them.
        join: whether a record may join two of them.
    """

    __slots__ = ()
    overlap: ClassVar[bool] = False
    join: ClassVar[bool] = False


class TimeGuard:
    """Base of `JumpGuard` of `sqe_chain.stages`, for modules that only pass it on."""

    __slots__ = ()
    policy: Any


def caller_line() -> str:
    """File and line of the user's call: the first frame outside this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only cheap way to name a line
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_name(what: str, name: object, where: str, length: int = NAME_LENGTH) -> None:
    """Refuse a name that stores, Kafka or a directory would not take.

    Args:
        what: what it names, for the error's text.
        name: the name.
        where: file and line of the declaration.
        length: characters allowed.

    Raises:
        FlowError: another type, empty, too long, or another alphabet.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > length or name in {".", ".."}:
        raise FlowError(
            f"{where}: {what} name {name!r}; 1 to {length} of letters, digits, '.', '_', '-', and neither '.' nor '..'"
        )


def check_topic(topic: object, where: str) -> None:
    """Refuse what Kafka does not take as a topic's name. Raises FlowError."""
    check_name("topic", topic, where, TOPIC_LENGTH)


def check_choice(what: str, found: object, choices: tuple[str | None, ...], where: str) -> None:
    """Refuse a word that is not one of the choices. Raises FlowError."""
    if not (found is None or isinstance(found, str)) or found not in choices:
        raise FlowError(f"{where}: {what}={found!r}; one of {', '.join(map(repr, choices))}")


def check_int(what: str, found: object, least: int, most: int, where: str) -> None:
    """Refuse what is not a whole number within bounds; True and False are not numbers.

    Args:
        what: name of the setting.
        found: what it was given.
        least: smallest number allowed.
        most: largest number allowed.
        where: file and line of the declaration.

    Raises:
        FlowError: another type, or out of bounds.
    """
    if type(found) is not int or not least <= found <= most:
        raise FlowError(f"{where}: {what}={found!r}; a whole number, {least} to {most}")


def check_duration(what: str, found: object, where: str, least_ms: int = 0) -> None:
    """Refuse what is not a number of whole milliseconds, `least_ms` to `MAX_DURATION_MS`. Raises FlowError."""
    if type(found) is not int or not least_ms <= found <= MAX_DURATION_MS:
        raise FlowError(f"{where}: {what}={found!r}; whole milliseconds, {least_ms} to {MAX_DURATION_MS}")


def check_bool(what: str, found: object, where: str) -> None:
    """Refuse what is neither True nor False. Raises FlowError."""
    if type(found) is not bool:
        raise FlowError(f"{where}: {what}={found!r}; True or False")


def payload_codec(
    what: str, python_type: type[Any], codec: Codec[Any] | str | None, where: str
) -> Codec[Any]:
    """The codec of payloads.

    Args:
        what: whose they are, for the error's text.
        python_type: their type.
        codec: as the user gave it: a codec, its name, or None.
        where: file and line of the declaration.

    Raises:
        FlowError: there is no such codec, or none for this type.
    """
    if codec is not None and not isinstance(codec, Codec | str):
        raise FlowError(f"{where}: {what}: codec={codec!r}; a codec, or its name")
    try:
        return codec_for(python_type, codec)
    except ConfigurationError as error:
        raise FlowError(f"{where}: {what}: {error}") from error


def format_of_files(what: str, patterns: Sequence[str], wanted: Format | None, where: str) -> Format:
    """The one format of all files of a source.

    Args:
        what: whose they are, for the error's text.
        patterns: their paths, or patterns of them.
        wanted: as the user gave it; None: the paths say it.
        where: file and line of the declaration.

    Raises:
        FlowError: the paths say nothing, or several formats.
    """
    check_choice("file_format", wanted, (None, "parquet", "csv", "jsonl"), where)
    try:
        found = sorted({format_of(pattern, wanted)[0] for pattern in patterns})
    except ConfigurationError as error:
        raise FlowError(f"{where}: {what}: {error}") from error
    if len(found) > 1:
        raise FlowError(
            f"{where}: {what} are {' and '.join(found)}; a source has one format: declare one for each, and merge their streams"
        )
    return found[0]


def row_codec(what: str, codec: Codec[Any], file_format: Format, where: str) -> Codec[Any]:
    """The codec that reads rows of files as payloads.

    Args:
        what: whose they are, for the error's text.
        codec: of the payloads' type.
        file_format: of the files; CSV has texts only.
        where: file and line of the declaration.

    Raises:
        FlowError: values of this type are not made of columns, or a package is missing.
    """
    try:
        codec_of_rows: Codec[Any] = load(WINGS, "file-rows", "files")(
            codec, csv=file_format == "csv", typed=file_format == "parquet"
        )
    except ConfigurationError as error:
        raise FlowError(f"{where}: {what}: {error}") from error
    return codec_of_rows


def state_codec(name: str, state: object, codec: Codec[Any] | str | None, where: str) -> Codec[Any]:
    """The codec of a stage's states.

    Args:
        name: of the stage, for the error's text.
        state: type of the states, as the user gave it.
        codec: see `payload_codec`.
        where: file and line of the declaration.

    Raises:
        FlowError: it is not a type, no codec takes it, or its values cannot be states.
    """
    what = f"state of stage {name!r}"
    if not isinstance(state, type):
        raise FlowError(
            f"{where}: {what} must be a type: a protobuf message, a struct, a dataclass, dict; got {state!r}"
        )
    found = payload_codec(what, state, codec, where)
    if reason := found.check_state():
        raise FlowError(f"{where}: {what}: {state.__qualname__} cannot be one: {reason}")
    return found


def output_codec(topic: str, codec: object, where: str) -> Codec[Any] | type[Codec[Any]] | None:
    """The codec of an output: the user's codec, the class of the codec that the user named, or None for neither.

    Raises:
        FlowError: there is no codec of this name, or its encoding is not deterministic.
    """
    if codec is None:
        return None
    try:
        found = codec_named(codec) if isinstance(codec, str) else codec
    except ConfigurationError as error:
        raise FlowError(f"{where}: output to {topic!r}: {error}") from error
    if not isinstance(found, Codec) and not (isinstance(found, type) and issubclass(found, Codec)):
        raise FlowError(f"{where}: output to {topic!r}: codec={codec!r}; a codec, or its name")
    if not found.deterministic:
        raise FlowError(
            f"{where}: output to {topic!r}: codec {found.name!r} does not always give the same bytes, so a batch that is "
            "repeated would publish something else; choose a deterministic codec"
        )
    return found


def check_windows(found: object, where: str, *, overlap: bool) -> WindowKind:
    """Refuse what is not a kind of windows.

    Args:
        found: the argument that a stage was given.
        where: file and line of the declaration.
        overlap: whether windows may overlap.

    Raises:
        FlowError: it is not a kind of windows, or its windows overlap and must not.
    """
    kinds = f"Tumbling(...), {'Hopping(...), ' if overlap else ''}Calendar(...) or Sessions(...)"
    if not isinstance(found, WindowKind) or (found.overlap and not overlap):
        raise FlowError(f"{where}: windows={found!r}; {kinds} of sqe_chain.stages")
    return found


LateValues = Literal["drop", "stop"]
"""What becomes of values whose time has passed; see `Stream.windowed`."""


def check_guard(found: object, where: str) -> None:
    """Refuse what is not a guard of stream time.

    Args:
        found: the argument that a stage was given; None: no guard.
        where: file and line of the declaration.

    Raises:
        FlowError: it is neither a guard nor None.
    """
    if found is not None and not isinstance(found, TimeGuard):
        raise FlowError(f"{where}: guard={found!r}; a JumpGuard of sqe_chain.stages, or None")


def wants_context(function: UserFunction | None, plain: int, where: str) -> bool:
    """Whether a function takes one positional argument more than `plain`.

    Raises:
        FlowError: it takes fewer than `plain`, or more than `plain + 1`.
    """
    if function is None:
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # some built-ins have no signature; they do not take a context either
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    if len(positional) < plain or len(required) > plain + 1:
        name = getattr(function, "__name__", type(function).__name__)
        raise FlowError(f"{where}: {name} must take {plain} argument(s), or {plain + 1} with the context")
    return len(required) == plain + 1


def declared(what: str, function: Any, plain: int, where: str, gives: Gives = "one") -> DeclaredFunction:  # noqa: ANN401 - it is checked here
    """A function that the user gave.

    Args:
        what: its argument's name, for the error's text.
        function: the function.
        plain: positional arguments that it takes without the context.
        where: file and line of the declaration.
        gives: what it returns.

    Raises:
        FlowError: it cannot be called, takes other arguments, or cannot give that.
    """
    check_callable(what, function, where, gives)
    return DeclaredFunction(function, wants_context(function, plain, where))


def declared_fold(what: str, function: Any, states: Codec[Any], where: str, gives: Gives) -> DeclaredFunction:  # noqa: ANN401 - it is checked here
    """A function of the user that takes the state first, and changes it in place.

    Args:
        what: its argument's name, for the error's text.
        function: the function.
        states: codec of the states.
        where: file and line of the declaration.
        gives: what it returns.

    Raises:
        FlowError: see `declared`; or its code shows that what it makes of the state is lost.
    """
    found = declared(what, function, 2, where, gives)
    check_fold(what, function, states.python_type, where)
    return found
