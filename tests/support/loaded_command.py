"""Processes of `sqe-chain` that begin as copies of one that has it loaded, because loading is most of what a short life costs.

Apart from that they are as the command starts them: processes with arguments, environment, directory, output, signals and
exit status of their own. `test_loaded_command`, `test_stopping`, the demo and the commands in pages test how the command
itself starts.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final

from sqe_chain.ext.dev.process import ProcessIdentity, wait_until

COMMAND: Final = Path(sys.executable).with_name("sqe-chain")

_LOADED = (
    *("cli.commands", "cli.run", "cli.load", "cli.rebuild", "cli.loading"),
    *("adapters.kafka", "adapters.redis", "adapters.sqlite", "engines.inprocess"),
)
"""What most services load; a copy loads anything else by itself."""
_LOADERS = 2
"""Copies of one process put strings into sets in one order: a service and its successor should not always do."""
_PR_SET_PDEATHSIG = 1


class Copy:
    """A process of the command.

    Attributes:
        identity: pid and start time.
        parent: the id of the process that it is a copy of.
    """

    def __init__(self, loader: _Loader, pid: int) -> None:
        self._loader, self.parent = loader, loader.pid
        self._status: int | None = None
        found = ProcessIdentity.of(pid)  # there until its parent, the loader, is asked whether it has ended
        assert found is not None
        self.identity = found

    @property
    def pid(self) -> int:
        """Its id, also that of its session and process group."""
        return self.identity.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self._status is None and not self.identity.alive():
            self._status = self._loader.ask({"ended": self.pid})
        return self._status

    def wait(self, timeout_s: float) -> int:
        """Wait until it has exited; returns its exit status."""
        assert wait_until(lambda: self.poll() is not None, timeout_s), f"it still runs after {timeout_s} s"
        assert self._status is not None
        return self._status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it alone; does nothing when it has exited."""
        if self.poll() is None:
            os.kill(self.pid, number)


class _Loader:
    """The process that has the command loaded. It ends with this one, and its copies with it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        atexit.register(self._close)

    def ask(self, request: Mapping[str, object]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        assert answer is None or isinstance(answer, int)
        return answer

    def _close(self) -> None:
        self._process.communicate()


@cache
def _loader(_number: int) -> _Loader:
    return _Loader()


_chosen = random.Random(0)


def start(
    arguments: Sequence[str],
    *,
    output: Path,
    errors: Path | None = None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Copy:
    """Start the command in a session and process group of its own, bound to this process.

    Args:
        arguments: of the command.
        output: file that its standard output is appended to.
        errors: the same for its standard error; None: that file, too.
        directory: where it works; None: where this process does.
        environment: added to this process's environment.
    """
    loader = _loader(_chosen.randrange(_LOADERS))
    pid = loader.ask(
        {
            "arguments": list(arguments),
            "output": str(output),
            "errors": str(errors or output),
            "directory": str(directory or Path.cwd()),
            "environment": {**os.environ, **(environment or {})},
        }
    )
    assert pid is not None
    return Copy(loader, pid)


def finished(arguments: Sequence[str], directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run the command until it exits.

    Args:
        arguments: of the command.
        directory: where it works.
        timeout_s: how long it may take.
    """
    with TemporaryDirectory() as scratch:
        output, errors = Path(scratch, "output"), Path(scratch, "errors")
        status = start(arguments, output=output, errors=errors, directory=directory).wait(timeout_s)
        return subprocess.CompletedProcess([*arguments], status, output.read_text(), errors.read_text())


def _serve() -> bool:
    """Make copies as long as somebody asks for them. Returns whether this process is one."""
    own = os.getpid()
    for line in sys.stdin:
        request, answer = json.loads(line), None
        if "ended" in request:
            ended, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            ready, held = os.pipe()
            answer = os.fork()
            if answer == 0:
                _become(request, own)
                os.close(ready)
                os.close(held)
                return True
            os.close(held)
            # Ends when the copy closes it: before that, signals to its process group were lost.
            os.read(ready, 1)
            os.close(ready)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return False


def _become(request: Mapping[str, object], parent: int) -> None:
    """Take over what the interpreter takes from outside when it starts."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for target, path in enumerate((os.devnull, request["output"], request["errors"])):
        os.dup2(os.open(str(path), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), target)
    os.chdir(str(request["directory"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    sys.argv = [str(COMMAND), *request["arguments"]]  # type: ignore[misc]
    sys.path[:0] = [str(COMMAND.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    for name in _LOADED:
        import_module(f"sqe_chain.{name}")
    gc.collect()
    gc.freeze()
    if _serve():
        from sqe_chain.cli import main

        main()
