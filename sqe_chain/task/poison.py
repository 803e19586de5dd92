"""An input that cannot be processed: its exclusion, and where in the user's code it failed.

Poison is what decoding and user code raise, and what no topic would take. Errors of a store, of Kafka or of
this library are never poison. Each is raised where no user code runs, and nothing there is caught. Nor is an outage of what
user code needs: it goes on as `Unavailable`, and the attempt is repeated.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from sqe_chain.codecs.registry import find_refused_part
from sqe_chain.errors import PoisonError, text_of
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.context import Origin
from sqe_chain.flow.nodes import Node, StageNode
from sqe_chain.flow.stored import named_key
from sqe_chain.flow.units import unpack_key_and_id
from sqe_chain.stages.user_code import UserCodeError
from sqe_chain.task.compiler import got
from sqe_chain.task.exclusion import TEXT_LIMIT, Exclusion
from sqe_chain.task.operator_text import TITLE

_TEXT: Final = f"<{TITLE}"
_OURS: Final = str(Path(__file__).parents[1]) + "/", _TEXT
_ENCODING: Final = re.compile(r"\be(\d+)\((\w+)\)")
"""Where the text of operators encodes a value: node and variable."""
_CAUSES: Final = 4
"""Errors of a chain of causes that are looked at: a user may have tied a knot."""
# A frame here is not shown as the user's place, unless none of the user's own is there.
_LIBRARIES: Final = tuple(
    {f"{path}/" for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib", "platlib")}
)


class Judged(Exception):
    """A failure that is described already: what failed goes on to other records, and its variables with it.

    Args:
        exclusion: how its input is skipped.
    """

    def __init__(self, exclusion: Exclusion) -> None:
        super().__init__(exclusion.text)
        self.exclusion = exclusion


def exclusion_of(
    flow: CompiledFlow,
    origin: Origin,
    error: Exception,
    stage: StageNode | None = None,
    key: bytes | None = None,
) -> Exclusion:
    """How an input is skipped, under the flow's policy.

    Args:
        flow: the flow.
        origin: the input.
        error: why.
        stage: the stage that it came to; None: it came to none.
        key: the key of its unit there; None: it had none.

    Raises:
        PoisonError: the policy is `stop`. An error that is one keeps its class.
        Unavailable: what failed could not reach what it needs.
    """
    if isinstance(error, Judged):
        return error.exclusion
    raised = error.raised if isinstance(error, UserCodeError) else error
    raise_outage(raised, str(origin))
    name, text = type(raised).__name__, text_of(raised).rstrip(".")
    if flow.poison == "stop":
        kind = type(raised) if isinstance(raised, PoisonError) else PoisonError
        where = place_of(flow, raised, stage, key)
        stopped = kind(
            f"flow {flow.name!r}: {origin} cannot be processed: {name}: {text}{where}. Fix the code. To "
            "pass over the record, declare poison='dead_letter' for one run; other policies are 'skip' and 'park'"
        )
        raise stopped.at(origin.tp.topic, origin.tp.partition, origin.offset) from raised
    tp, frame = origin.tp, own_frame(raised)
    where = f", at {Path(frame[0]).name}:{frame[1]} in {frame[2]}" if frame else ""
    where += _unit_in(flow, raised, stage, key, text)
    value = _value_in(flow, raised)
    where += value and f" ({value})"
    kept = text[: TEXT_LIMIT - len(where)] + where
    return Exclusion(tp.topic, tp.partition, origin.offset, flow.poison, name, kept[:TEXT_LIMIT])


def place_of(
    flow: CompiledFlow,
    error: BaseException,
    stage: StageNode | None = None,
    key: bytes | None = None,
    named: str = "",
) -> str:
    """Where user code failed, or which value its codec did not take, and with which unit: to follow the text of the error.

    Args:
        flow: the flow.
        error: what was raised.
        stage: the stage that had the unit; None: no stage had it.
        key: its key; None: it had none, or nobody knows it.
        named: the text before the error; what it names is not repeated.
    """
    place = place_in_user_code(flow, error)
    return (place and f", at {place}") + _unit_in(flow, error, stage, key, named + text_of(error) + place)


def _unit_in(
    flow: CompiledFlow, error: BaseException, stage: StageNode | None, key: bytes | None, text: str
) -> str:
    """Stage and key of the unit that failed, as far as the text does not name them."""
    if key and stage is not None and stage.traits.spread == "id":
        key, _ = unpack_key_and_id(key)
    key = _key_in(flow, error) or key
    named = [f"stage {stage.name!r}"] if stage is not None else []
    named += [named_key(key)] if key else []
    return "".join(f", {name}" for name in named if name not in text)


def _key_in(flow: CompiledFlow, error: BaseException) -> bytes | None:
    """The key of the value that the operators had when they failed; None where they had none, or nobody asked for it."""
    key = None
    for frame, line in _in_text(error):
        keys = [frame.f_locals.get("k")]
        encoded = _encoded_at(flow, frame, line)
        if encoded is not None and not (
            isinstance(encoded[0], StageNode) and encoded[0].traits.identity is not None
        ):
            keys.append(frame.f_locals.get(f"k{encoded[0].index}"))
        key = next((last for last in reversed(keys) if isinstance(last, bytes)), key)
    return key


def _in_text(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    return ((frame, line) for frame, line in _frames(error) if frame.f_code.co_filename.startswith(_TEXT))


def _encoded_at(flow: CompiledFlow, frame: FrameType, line: int) -> tuple[Node, str] | None:
    """The node whose value a line of the text encodes, and the name of its variable."""
    encoded = _ENCODING.search(frame.f_globals["__text__"].splitlines()[line - 1])
    # An error that is raised again has old frames, too.
    if encoded is None or int(encoded[1]) >= len(flow.nodes):
        return None
    return flow.nodes[int(encoded[1])], encoded[2]


def place_in_user_code(flow: CompiledFlow, error: BaseException) -> str:
    """File, line and function where user code failed, and the node that called it, or the value that its codec did not take.

    In the user's own files if one is among the frames, else in a library that they call. Empty if it did not fail there.
    """
    frame, value = own_frame(error), _value_in(flow, error)
    if frame is None:
        return value
    file, line, function = frame
    nodes = {code: node for node in flow.nodes for code in _codes_of(node)}
    called = next((nodes[frame.f_code] for frame, _ in _frames(error) if frame.f_code in nodes), None)
    node = f"{called.called}, declared at {called.declared_at}" if called is not None else value
    return f"{file}:{line} in {function}{node and f' ({node})'}"


def _value_in(flow: CompiledFlow, error: BaseException) -> str:
    """The value that its codec did not take, or not read: its type, where it came, and who had made it; empty if none did."""
    text = next(iter(getattr(error, "__notes__", ())), "")
    for frame, line in _in_text(error):
        encoded = _encoded_at(flow, frame, line)
        if encoded is not None:
            node, name = encoded
            value = frame.f_locals.get(name)
            text = got(flow, node, type(value).__name__, ", which got")
            part = find_refused_part(value)
            text += part and f": {part}"
    return text


def own_frame(error: BaseException) -> tuple[str, int, str] | None:
    """File, line and function of the innermost frame of the user's; None when no user code ran."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_qualname.replace(".<locals>", ""))
        for frame, line in _frames(error)
        if not frame.f_code.co_filename.startswith(_OURS)
    ]
    own = [frame for frame in frames if not frame[0].startswith(_LIBRARIES)] or frames
    return own[-1] if own else None


def _frames(error: BaseException | None) -> Iterator[tuple[FrameType, int]]:
    """Frames and lines that an error went through, and those of its cause, where ours names the user's."""
    for _ in range(_CAUSES):
        trace = None if error is None else error.__traceback__
        while trace is not None:
            yield trace.tb_frame, trace.tb_lineno
            trace = trace.tb_next
        error = error and error.__cause__


def _codes_of(node: Node) -> Iterator[CodeType]:
    for function in node.functions:
        inner: Any = function
        while isinstance(inner, partial):
            inner = inner.func
        code = getattr(inner, "__code__", None)
        if isinstance(code, CodeType):
            yield code
