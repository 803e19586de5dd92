"""Commits of a run, in the background of its next batch where nothing waits for them.

A broker takes a few milliseconds for a commit, most of which it waits for others to write together. A commit that lags costs
repeated work after a crash, and nothing else. So a service without stages, whose small batches take no longer, begins the next
batch while a commit is under way. At most one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqe_chain.errors import ChainError, Unavailable
from sqe_chain.protocol.retrying import Retry

Action = Callable[[], None]


@dataclass(slots=True)
class Committing:
    """Sends the commits of a run, in order. Used by one thread.

    Args:
        retry: repeats a commit that got no answer.
    """

    retry: Retry
    _pool: Executor | None = None
    _sent: tuple[Future[None], Action] | None = None
    _then: list[Action] = field(default_factory=list)

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """In this context `commit` does not wait for the broker; `settle` does. The caller settles before it ends."""
        with ThreadPoolExecutor(1, "sqe-chain commit") as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    def commit(self, action: Action) -> None:
        """Commit, when the commit before is acknowledged.

        Args:
            action: the commit; safe to repeat.

        Raises:
            ChainError: what the action raises, or that of the commit before; `Unavailable` only when asked to stop.
        """
        self.settle()
        if self._pool is None:
            self.retry.call("commit", action)
        else:
            self._sent = self._pool.submit(action), action

    def then(self, action: Action) -> None:
        """Call this as soon as it is known that all commits so far are acknowledged: at once, or when they are settled."""
        if self._sent is None:
            action()
        else:
            self._then.append(action)

    def settle(self) -> None:
        """Wait until what was committed is acknowledged.

        Raises:
            ChainError: as `commit`.
        """
        if self._sent is not None:
            (future, action), self._sent = self._sent, None
            try:
                future.result()
            except Unavailable:
                self.retry.call("commit", action)
            self._acknowledged()

    def leave(self) -> None:
        """The same at the end of a run, which must not wait for a broker that is away: without an answer the commit lags."""
        if self._sent is not None:
            (future, _), self._sent = self._sent, None
            with suppress(ChainError):
                future.result()
                self._acknowledged()

    def _acknowledged(self) -> None:
        then, self._then = self._then, []
        for action in then:
            action()
