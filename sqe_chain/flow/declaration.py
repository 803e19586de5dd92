"""Checks of what a user declares; every error names the file and line in the user's code."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from sqe_chain.codecs import Codec, codec_for, codec_named
from sqe_chain.errors import ConfigurationError, FlowError
from sqe_chain.flow.functions import DeclaredFunction, UserFunction
from sqe_chain.flow.shapes import Gives, check_callable, check_fold
from sqe_chain.ports.files import Format, format_of
from sqe_chain.wings import WINGS, load

_NAME_LENGTH = 120
TOPIC_LENGTH = 249
MAX_PARTITIONS = 100_000
"""Of an output; more than any Kafka cluster can have, so a larger number is a typing error."""
MAX_DURATION_MS = 10**15
"""Some 31,000 years: so that event times and durations, added up, stay inside 64 bits."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGE = str(Path(__file__).parents[1])


class WindowShape:
    """Base of `Tumbling`, `Hopping`, `Calendar` and `Sessions` of `sqe_chain.stages`.

    Attributes:
        overlap: whether a record may lie in several of them.
        merges: whether a record may make one of two.
    """

    __slots__ = ()
    overlap: ClassVar[bool] = False
    merges: ClassVar[bool] = False


class TimeGuard:
    """Base of `JumpGuard` of `sqe_chain.stages`, for modules that only pass it on."""

    __slots__ = ()
    policy: Any


def caller_line() -> str:
    """File and line of the user's call: the first frame outside this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only cheap way to name a line
    # "<string>" is the `__init__` that `dataclass` has generated for `Flow`.
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == "<string>"
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_name(what: str, name: object, where: str, length: int = _NAME_LENGTH) -> None:
    """Refuse a name that stores, Kafka or a directory would not take, or a longer one. Raises FlowError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > length or name in {".", ".."}:
        raise FlowError(
            f"{where}: {what} name {name!r}; 1 to {length} of letters, digits, '.', '_', '-', and neither '.' nor '..'"
        )


def check_topic(topic: object, where: str) -> None:
    """Refuse what Kafka does not take as a topic's name. Raises FlowError."""
    check_name("topic", topic, where, TOPIC_LENGTH)


def check_choice(what: str, given: object, choices: tuple[str | None, ...], where: str) -> None:
    """Refuse a word that is not one of the choices. Raises FlowError."""
    if not (given is None or isinstance(given, str)) or given not in choices:
        raise FlowError(f"{where}: {what}={given!r}; one of {', '.join(map(repr, choices))}")


def check_int(what: str, given: object, least: int, most: int, where: str) -> None:
    """Refuse what is not a whole number within bounds; True and False are not numbers. Raises FlowError."""
    if type(given) is not int or not least <= given <= most:
        raise FlowError(f"{where}: {what}={given!r}; a whole number, {least} to {most}")


def check_duration(what: str, given: object, where: str, least_ms: int = 0) -> None:
    """Refuse what is not a number of whole milliseconds, `least_ms` to `MAX_DURATION_MS`. Raises FlowError."""
    if type(given) is not int or not least_ms <= given <= MAX_DURATION_MS:
        raise FlowError(f"{where}: {what}={given!r}; whole milliseconds, {least_ms} to {MAX_DURATION_MS}")


def check_bool(what: str, given: object, where: str) -> None:
    """Refuse what is neither True nor False. Raises FlowError."""
    if type(given) is not bool:
        raise FlowError(f"{where}: {what}={given!r}; True or False")


@contextmanager
def refused_at(where: str) -> Iterator[None]:
    """Raise FlowError, with the place of the declaration, for settings that the code inside refuses."""
    try:
        yield
    except (ConfigurationError, FlowError) as error:
        raise FlowError(f"{where}: {error}") from error


def payload_codec(
    what: str, python_type: type[Any], codec: Codec[Any] | str | None, where: str
) -> Codec[Any]:
    """The codec of payloads.

    Args:
        what: the owner of the payloads, for the error's text.
        python_type: their type.
        codec: as the user gave it: a codec, its name, or None.
        where: file and line of the declaration.

    Raises:
        FlowError: there is no such codec, or none for this type.
    """
    if codec is not None and not isinstance(codec, Codec | str):
        raise FlowError(f"{where}: {what}: codec={codec!r}; a codec, or its name")
    with refused_at(f"{where}: {what}"):
        return codec_for(python_type, codec)


def format_of_files(what: str, patterns: Sequence[str], wanted: Format | None, where: str) -> Format:
    """The one format of all files of a source: `wanted`, or what their paths show.

    Raises:
        FlowError: the paths show none, or several.
    """
    check_choice("file_format", wanted, (None, "parquet", "csv", "jsonl"), where)
    with refused_at(f"{where}: {what}"):
        formats = sorted({format_of(pattern, wanted)[0] for pattern in patterns})
    if len(formats) > 1:
        raise FlowError(
            f"{where}: {what} are {' and '.join(formats)}; a source has one format: declare one for each, and merge their streams"
        )
    return formats[0]


def row_codec(what: str, codec: Codec[Any], file_format: Format, where: str) -> Codec[Any]:
    """The codec that reads rows of files as payloads of a codec; CSV has texts only.

    Raises:
        FlowError: such values are not made of columns, or a package is missing.
    """
    with refused_at(f"{where}: {what}"):
        codec_of_rows: Codec[Any] = load(WINGS, "file-rows", "files")(
            codec, csv=file_format == "csv", typed=file_format == "parquet"
        )
    return codec_of_rows


def state_codec(name: str, state: object, codec: Codec[Any] | str | None, where: str) -> Codec[Any]:
    """The codec of the states of the stage with this name, as `payload_codec`.

    Raises:
        FlowError: the type is none, no codec takes it, or its values cannot be states.
    """
    what = f"state of stage {name!r}"
    if not isinstance(state, type):
        raise FlowError(
            f"{where}: {what} must be a type: a protobuf message, a struct, a dataclass, dict; got {state!r}"
        )
    states = payload_codec(what, state, codec, where)
    if reason := states.check_state():
        raise FlowError(f"{where}: {what}: {state.__qualname__} cannot be one: {reason}")
    return states


def output_codec(topic: str, codec: object, where: str) -> Codec[Any] | type[Codec[Any]] | None:
    """The codec of an output: the user's codec, the class of the codec that the user named, or None for neither.

    Raises:
        FlowError: there is no codec of this name, or its encoding is not deterministic.
    """
    if codec is None:
        return None
    with refused_at(f"{where}: output to {topic!r}"):
        chosen = codec_named(codec) if isinstance(codec, str) else codec
    if not isinstance(chosen, Codec) and not (isinstance(chosen, type) and issubclass(chosen, Codec)):
        raise FlowError(f"{where}: output to {topic!r}: codec={codec!r}; a codec, or its name")
    if not chosen.deterministic:
        raise FlowError(
            f"{where}: output to {topic!r}: codec {chosen.name!r} does not always give the same bytes. A batch that is "
            "repeated would publish something else. Choose a deterministic codec"
        )
    return chosen


def check_windows(windows: object, where: str, *, overlap: bool) -> WindowShape:
    """Refuse what is not a kind of windows, or windows that overlap and must not. Raises FlowError."""
    kinds = f"Tumbling(...), {'Hopping(...), ' if overlap else ''}Calendar(...) or Sessions(...)"
    if not isinstance(windows, WindowShape) or (windows.overlap and not overlap):
        raise FlowError(f"{where}: windows={windows!r}; {kinds} of sqe_chain.stages")
    return windows


LateValues = Literal["drop", "stop"]
"""What becomes of values whose time has passed; see `Stream.windowed`."""


def check_guard(guard: object, where: str) -> None:
    """Refuse what is neither a guard of stream time nor None. Raises FlowError."""
    if guard is not None and not isinstance(guard, TimeGuard):
        raise FlowError(f"{where}: guard={guard!r}; a JumpGuard of sqe_chain.stages, or None")


def _wants_context(function: UserFunction, plain: int, where: str) -> bool:
    """Whether a function takes one positional argument more than `plain`.

    Raises:
        FlowError: it takes fewer than `plain`, or more than `plain + 1`, or one by its name alone.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # some built-ins have no signature; they do not take a context either
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    by_name = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    if by_name or len(required) > plain + 1 or (len(positional) < plain and not any_number):
        name = getattr(function, "__name__", type(function).__name__)
        raise FlowError(
            f"{where}: {name} must take {plain} argument(s) by position, or {plain + 1} with the context"
        )
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
    return DeclaredFunction(function, _wants_context(function, plain, where))


def declared_plain(what: str, function: Any, plain: int, where: str) -> DeclaredFunction:  # noqa: ANN401 - it is checked here
    """A function that is called without the context, as `declared`."""
    checked = declared(what, function, plain, where)
    if checked.takes_context:
        raise FlowError(f"{where}: {what} must take {plain} argument(s), and no context")
    return checked


def declared_if(what: str, function: Any, where: str) -> DeclaredFunction | None:  # noqa: ANN401 - it is checked here
    """A function of a value that the user may give, as `declared`; None if it is not given."""
    return None if function is None else declared(what, function, 1, where)


def declared_fold(what: str, function: Any, states: Codec[Any], where: str, gives: Gives) -> DeclaredFunction:  # noqa: ANN401 - it is checked here
    """A function of the user that takes the state first, and changes it, as `declared`.

    Raises:
        FlowError: see `declared`; or its code shows that what it makes of the state is lost.
    """
    fold = declared(what, function, 2, where, gives)
    check_fold(what, function, states.python_type, where)
    return fold
