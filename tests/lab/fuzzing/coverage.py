"""Which ways through the code an input takes: pairs of lines that follow each other, in the modules that read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final

import sqe_chain

PACKAGE: Final = sqe_chain.__path__[0] + "/"
Arc = tuple[str, str, int, int]
"""File, function, and two lines."""


class Coverage:
    """What was reached so far.

    Attributes:
        arcs: pairs of lines.
    """

    def __init__(self) -> None:
        self.arcs = set[Arc]()
        self._watched: dict[CodeType, bool] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note what runs meanwhile; it takes several times as long."""
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        watched = self._watched.get(code)
        if watched is None:
            watched = self._watched[code] = code.co_filename.startswith(PACKAGE)
        if not watched:
            frame.f_trace_lines = False
            return None
        file, name, arcs, last = code.co_filename, code.co_qualname, self.arcs, 0

        def line(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
            nonlocal last
            if event == "line":
                arcs.add((file, name, last, frame.f_lineno))
                last = frame.f_lineno
            elif event == "return":
                arcs.add((file, name, last, -1))
            return line

        return line
