"""Which bugs some tests find, before and after tests are cut: `python -m tests.lab.mutants.cuts tests/protocol`.

    ```
    python -m tests.lab.mutants.cuts tests/protocol --bugs 200 --write before.jsonl    before the cut
    python -m tests.lab.mutants.cuts tests/protocol --bugs 200 --compare before.jsonl  after it: fails, and lists what is lost
    ```

Bugs are drawn by `--draw` from those of `sweep`, so other numbers give bugs that no test was written for. One process collects
the tests, and learns in a fork which of them call which function, and for how long. Each bug gets a fork of its own. There the
code of the function is exchanged, and the tests that call it run, the shortest first, until one fails. So a bug costs about
a second, where a copy of the tree and a new pytest cost ten. What no test calls survives; what runs in other processes is not seen.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import functools
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest

from tests.lab.mutants import sweep
from tests.lab.mutants.edits import Operation
from tests.lab.mutants.injection import TREE, package
from tests.lab.mutants.mutant import Mutant

ROOMS: Final = (
    "/protocol/", "/features/", "/plans/", "/stages/", "/task/", "/envelope/mark", "/envelope/runs", "/envelope/replay",
)  # fmt: skip
"""Where bugs are drawn from, by parts of paths."""
LONGEST_S: Final = 20.0
"""The tests that run for a bug take this time together without it, and as many times longer as `SLOWER`; else it hangs."""
SLOWER: Final = 4.0
_HIT: Final = "__sqe_called__"
_Seen = dict[str, tuple[float, list[str]]]
"""Test -> seconds, and functions that it calls."""


class Judge:
    """A plugin of pytest that runs tests again and again, in forks.

    Args:
        bugs: to put in.
    """

    def __init__(self, bugs: Sequence[Mutant]) -> None:
        self.bugs = bugs
        self.found: dict[str, str | None] = {}
        self._failed: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge all bugs in place of running the tests once."""
        places = {place_of(bug) for bug in self.bugs}
        _show(f"{len(session.items)} tests run once, for what they call of {len(places)} functions")
        seen: _Seen = json.loads(_forked(lambda: self._learn(session, places), 3_600.0) or "{}")
        failing = [test for test, (seconds, _) in seen.items() if seconds < 0]
        _show(
            f"{len(seen)} tests, {len(failing)} of them fail without any bug and are left out: {failing[:5]}"
        )
        for bug in self.bugs:
            began = time.perf_counter()
            self.found[bug.name] = self._judged(session, bug, seen)
            _show(f"{time.perf_counter() - began:6.1f} s  {bug.name}: {self.found[bug.name] or 'SURVIVED'}")
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            self._failed = report.nodeid

    def _learn(self, session: pytest.Session, places: set[str]) -> str:
        called: set[str] = set()
        setattr(builtins, _HIT, called.add)
        for place in places:
            exchange(place, _counted(place))
        seen: _Seen = {}
        for item in session.items:
            called.clear()
            began = time.perf_counter()
            failed = self._failure(item)
            seen[item.nodeid] = -1.0 if failed else time.perf_counter() - began, sorted(called)
        return json.dumps(seen)

    def _failure(self, item: pytest.Item) -> str | None:
        self._failed = None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._failed

    def _judged(self, session: pytest.Session, bug: Mutant, seen: _Seen) -> str | None:
        place = place_of(bug)
        calling = [item for item in session.items if place in seen[item.nodeid][1]]
        left = LONGEST_S
        chosen: list[pytest.Item] = []
        for item in sorted(calling, key=lambda one: seen[one.nodeid][0]):
            left -= seen[item.nodeid][0]
            if seen[item.nodeid][0] >= 0 and (left > 0 or not chosen):
                chosen.append(item)
        if not chosen:
            return None

        def run() -> str:
            (text,) = package().mutated(bug.edits).values()
            exchange(place, text)
            for item in chosen:
                if failed := self._failure(item):
                    return failed
            return ""

        took = sum(seen[item.nodeid][0] for item in chosen)
        answer = _forked(run, SLOWER * took + LONGEST_S)
        return "a test that never ends, or ends the process" if answer is None else answer or None


def place_of(bug: Mutant) -> str:
    """The function that a bug of a sweep changes."""
    ((place, _),) = bug.edits
    return place


def exchange(place: str, text: str) -> bool:
    """Give a function of the running package other code; others that have its object see that, too.

    Args:
        place: the function.
        text: of its file, with the new code.

    Returns:
        Whether it could be done: not for what a decorator hides.
    """
    file, _ = package().find(place)
    qualified = place.rpartition(":")[2]
    name = ".".join(file.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
    function = _function(importlib.import_module(name), qualified)
    codes = [one for one in _codes(compile(text, str(file), "exec")) if one.co_qualname == qualified]
    if function is None or len(codes) != 1 or codes[0].co_freevars != function.__code__.co_freevars:
        return False
    function.__code__ = codes[0]
    return True


def _counted(place: str) -> str:
    """The file of a function that notes each call of it."""

    def change(tree: ast.AST) -> None:
        assert isinstance(tree, ast.FunctionDef)
        tree.body[0:0] = ast.parse(f"{_HIT}({place!r})").body

    (text,) = package().mutated([(place, Operation("count", change))]).values()
    return text


def _function(owner: object, qualified: str) -> FunctionType | None:
    found: Any = owner
    for name in qualified.split("."):
        found = found.__dict__.get(name)
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        inner = [getattr(found, name, None) for name in ("__wrapped__", "__func__", "fget", "func")]
        found = next((one for one in inner if one is not None), None)
        if found is None or isinstance(found, functools.partial):
            return None
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _forked(work: Callable[[], str], seconds: float) -> str | None:
    """Do work in a fork, in silence; None when it took too long, or ended in another way than by returning."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setpgid(0, 0)
            os.close(reading)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            answer = work().encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(answer + b"\n")
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    until, parts = time.monotonic() + seconds, []
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (part := os.read(reading, 1 << 16)):
            break
        parts.append(part)
        if part.endswith(b"\n"):
            break
    os.close(reading)
    # What tests have started, and has not ended, ends with them.
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    answer = b"".join(parts)
    return answer[:-1].decode() if answer.endswith(b"\n") else None


def drawn(only: Sequence[str], count: int, draw: int) -> list[Mutant]:
    """Bugs of the package, always the same for the same arguments.

    Args:
        only: parts of paths, perhaps with a name behind a colon; bugs are drawn from files that have one of them.
        count: how many.
        draw: other numbers draw others.
    """
    paths = [text.partition(":")[0] for text in only]
    files = [file for file in package().files() if any(path in str(file) for path in paths)]
    return sweep.made(only, count, files=files, draw=draw)


def lost(before: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """Bugs that were found before and are not found now, with the test that found them."""
    return [f"{name}: {test}" for name, test in before.items() if test and name in now and not now[name]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge bugs.

    Returns:
        Exit status: 1 when some are lost.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.mutants.cuts", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("tests", nargs="+", help="as pytest names them; other options go to pytest, too")
    add(
        "--only",
        action="append",
        default=[],
        help="parts of paths of the package, with a function or without: task/gate:Gate.take",
    )
    add("--bugs", type=int, default=100, help="how many")
    add("--draw", type=int, default=0, help="another number draws other bugs")
    add("--suite", default="commit", help="everything, commit, fast")
    add("--write", type=Path, help="file for what was found")
    add("--compare", type=Path, help="what was found before: only bugs that were found then are judged")
    options, others = parser.parse_known_args(arguments)
    bugs = drawn(options.only or ROOMS, options.bugs, options.draw)
    before: dict[str, str | None] = json.loads(options.compare.read_text()) if options.compare else {}
    if before:
        bugs = [bug for bug in bugs if before.get(bug.name)]
    judge = Judge(bugs)
    quiet = ["-q", "-s", "-p", "no:cacheprovider", "--suite", options.suite]
    pytest.main([*quiet, *options.tests, *others], [judge])
    if options.write:
        options.write.write_text(json.dumps(judge.found, indent=1) + "\n")
    survived = [name for name, test in judge.found.items() if test is None]
    gone = lost(before, judge.found)
    _show(
        f"{len(judge.found)} bugs, {len(survived)} survived"
        + (f", {len(gone)} found before" if before else "")
    )
    for text in gone:
        _show(f"  LOST {text}")
    return 1 if gone or not judge.found else 0


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
