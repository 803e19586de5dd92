"""What processes do: the commands of the product, from one rest to the next."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqe_chain.errors import ChainError
from sqe_chain.operations.moving import export_states, import_states
from sqe_chain.operations.parked import ParkedWork
from sqe_chain.operations.rebuild import Rebuild
from sqe_chain.protocol.batch import FlowRun
from sqe_chain.protocol.services import service_of
from tests.lab.explorer.calls import FILE, Question

if TYPE_CHECKING:
    from tests.lab.explorer.runs import Outside

EXPORT = "export"
"""Name of the file into which states are exported."""


@dataclass(frozen=True, slots=True)
class Service:
    """``sqe-chain run``: claims, recovers, and makes batches until nothing is left to do; then it gives the claim back."""

    def step(self, outside: Outside, state: Any) -> Any:
        """See `Program.step`; a service rests between batches."""
        if state is None:
            env = outside.env
            state = service_of(env)
            with _leaving(state):
                state.start()
            return state
        with _leaving(state):
            if state.batch().worked:
                return state
        with suppress(ChainError):  # without an answer the next run waits until the heartbeat has stopped
            state.leave()
        return None


@dataclass(slots=True)
class _leaving:  # noqa: N801 - a context
    """A service that stops gives its claim back, as `runtime.service` does."""

    service: FlowRun

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ChainError):
            with suppress(ChainError):
                self.service.leave()


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """``sqe-chain rebuild``.

    Attributes:
        resume: ``--resume``.
    """

    resume: bool = False

    def step(self, outside: Outside, _state: Any) -> Any:
        Rebuild(outside.env, outside.engine, resume=self.resume).run()


@dataclass(frozen=True, slots=True)
class Releasing:
    """``sqe-chain failed release``."""

    def step(self, outside: Outside, _state: Any) -> Any:
        ParkedWork(outside.env).run()


@dataclass(frozen=True, slots=True)
class Exporting:
    """``sqe-chain state export``."""

    def step(self, outside: Outside, _state: Any) -> Any:
        """See `Program.step`. The file is there as a whole or not at all."""
        lines = tuple(export_states(outside.env))
        outside.ask(Question.of(FILE, "save", EXPORT, lines))


@dataclass(frozen=True, slots=True)
class Importing:
    """``sqe-chain state import``."""

    def step(self, outside: Outside, _state: Any) -> Any:
        import_states(outside.env, outside.ask(Question.of(FILE, "load", EXPORT)) or ())
