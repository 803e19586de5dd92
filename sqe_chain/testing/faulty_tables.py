"""Faults around each call by which a sink reads or writes its table: every file, and every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, Final

from sqe_chain.ports import Sink
from sqe_chain.testing.faults import FaultScript

_READS: Final = frozenset(
    {"snapshot", "snapshot_again", "written", "absent", "lost", "definition", "heads", "sets", "index_of"}
)
_WRITES: Final = frozenset(
    {"create", "add_columns", "put", "commit", "replace", "overwrite", "define", "compare_and_set"}
)


class FaultyStorage:
    """The place of a table with injected faults.

    Args:
        inner: a `Storage`, or the rows of one.
        script: the faults.
    """

    def __init__(self, inner: Any, script: FaultScript) -> None:  # noqa: ANN401 - either
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


class FaultyRows(FaultyStorage):
    """The rows of a table of chunks with injected faults: also between one chunk and the next, which are written in no order."""

    def write_pieces(self, chunks: Iterable[Sequence[object]]) -> None:
        """See `ChunkRows`."""
        for one in chunks:
            self._writing("write_pieces", self._inner.write_pieces)([one])

    def write_index(self, part: int, rows: Sequence[object]) -> None:
        """See `ChunkRows`."""
        for one in rows:
            self._writing("write_index", self._inner.write_index)(part, [one])


def faulty_sink(sink: Sink, script: FaultScript) -> Sink:
    """The sink, with faults around each call of the place of its table, and there of each row; another kind of sink as it is.

    Args:
        sink: of a stage.
        script: the faults.
    """
    found: Any = sink
    wrappable = is_dataclass(found) and hasattr(found, "storage")
    if not wrappable:
        return sink
    storage = found.storage
    if hasattr(storage, "rows"):  # of chunks: a crash between any two rows is one of its own
        storage = replace(storage, rows=FaultyRows(storage.rows, script))
    else:
        storage = FaultyStorage(storage, script)
    wrapped: Sink = replace(found, storage=storage)
    return wrapped
