"""Faults around each call by which a sink reads or writes its table: every file, and every commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any, Final

from sqe_chain.ports import Sink
from sqe_chain.testing.faults import FaultScript

_READS: Final = frozenset({"snapshot", "chunks"})
_WRITES: Final = frozenset({"create", "add_columns", "put", "commit"})


class FaultyDirectory:
    """A table's directory with injected faults.

    Args:
        inner: a `TableDirectory`.
        script: the faults.
    """

    def __init__(self, inner: object, script: FaultScript) -> None:
        self._inner = inner
        self._script = script

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        found = getattr(self._inner, name)
        if name in _READS:
            return self._reading(found)
        return self._writing(name, found) if name in _WRITES else found

    def _reading(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: object, **named: object) -> object:
            self._script.before("table")
            found = call(*arguments, **named)
            self._script.after("table")
            return found

        return called

    def _writing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: object, **named: object) -> object:
            script = self._script
            script.before("table", write=True)
            number = script.write(f"{self._inner!r}: {name} {named.get('what', '')}".rstrip())
            found = call(*arguments, **named)
            script.took_effect("table", name, *arguments)
            script.done(number)
            script.after("table", write=True)
            return found

        return called


def faulty_sink(sink: Sink, script: FaultScript) -> Sink:
    """The sink, with faults around each call of its table's directory; another kind of sink as it is.

    Args:
        sink: of a stage.
        script: the faults.
    """
    found: Any = sink
    wrappable = is_dataclass(found) and hasattr(found, "directory")
    if not wrappable:
        return sink
    wrapped: Sink = replace(found, directory=FaultyDirectory(found.directory, script))
    return wrapped
