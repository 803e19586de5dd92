"""What rehearsals look at while a flow runs: values that their codec changes, and functions that change a value they only look at.

Production pays nothing for it: a flow that is watched is compiled apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol

from sqe_chain.codecs import codec_for
from sqe_chain.errors.outage import raise_outage
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.flow.nodes import FilterNode, KeyByNode, KeyedNode, Node

Passing = tuple[str, Callable[[Any], Any], Callable[[Any], Any]]
"""Of values on their way into a stage or a function: their tag, their encoding, and what reads that."""


class Watcher(Protocol):
    """What looks on while functions run."""

    def passed(self, node: Node, value: object, read: object) -> None:
        """A value has passed its codec on its way into a stage or function."""

    def changed(self, node: Node, function: Any) -> None:  # noqa: ANN401 - of the user
        """A function has changed a value that goes on to others."""


_WATCHER: Final[ContextVar[Watcher | None]] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let somebody look at all flows that run meanwhile in this thread."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def is_watched() -> bool:
    """Whether somebody looks."""
    return _WATCHER.get() is not None


def watched_names(flow: CompiledFlow, nodes: tuple[Node, ...], names: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a text, with what is looked at in place of the functions themselves."""
    watched = {**names, "passing": partial(_passing, flow, names["passing"])}
    for node in nodes:
        for name in (f"f{node.index}", f"key{node.index}", f"beats{node.index}", f"identity{node.index}"):
            looks = isinstance(node, FilterNode | KeyByNode) or (
                isinstance(node, KeyedNode) and name[0] != "f"
            )
            if looks and name in names:
                value_at = 1 if name.startswith("identity") else 0  # the clock comes first
                watched[name] = partial(_look, node, names[name], value_at)
    return watched


def _passing(
    flow: CompiledFlow, passing: Callable[[int, object], Passing], index: int, value: object
) -> Passing:
    tag, encode, decode = passing(index, value)

    def encode_watched(value: object) -> Any:  # noqa: ANN401 - bytes, or what nobody can change as it is
        data, watcher = encode(value), _WATCHER.get()
        if watcher is not None:
            with suppress(Exception):  # what cannot be read back fails where it is read
                watcher.passed(flow.nodes[index], value, decode(data))
        return data

    return tag, encode_watched, decode


def _look(node: Node, function: Any, value_at: int, *arguments: Any) -> Any:  # noqa: ANN401 - of the user
    before = _bytes_of(arguments[value_at])
    result, watcher = function(*arguments), _WATCHER.get()
    if watcher is not None and before != _bytes_of(arguments[value_at]):
        watcher.changed(node, function)
    return result


def _bytes_of(value: Any) -> bytes | None:  # noqa: ANN401 - any value
    try:
        return codec_for(type(value)).encode(value)
    except Exception as error:  # noqa: BLE001 - whatever a codec raises
        raise_outage(error, f"a {type(value).__qualname__}")
        return None
