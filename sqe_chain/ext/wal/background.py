"""Publishes a log in a thread of its own, again and again, whatever Kafka does meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Condition, Lock, Thread
from typing import Final

from sqe_chain.errors import ChainError
from sqe_chain.ext.wal.log import WriteAheadLog
from sqe_chain.ext.wal.publisher import Publisher

_MOST: Final = 512
_TOGETHER_S: Final = 0.1


class Ages:
    """When records were appended, in spans of offsets. Plain: the time is an argument.

    >>> ages = Ages()
    >>> ages.appended(end=10, now_s=100.0)
    >>> ages.appended(end=25, now_s=160.0)
    >>> ages.oldest_s(position=4, now_s=170.0), ages.oldest_s(position=10, now_s=170.0), ages.oldest_s(position=25, now_s=170.0)
    (70.0, 10.0, 0.0)
    """

    def __init__(self) -> None:
        self._spans: list[tuple[int, float]] = []

    def appended(self, end: int, now_s: float) -> None:
        """Note that everything before an offset was appended by now: seconds of a clock that does not go back."""
        spans = self._spans
        if spans and end <= spans[-1][0]:
            return
        if spans and now_s - spans[-1][1] < _TOGETHER_S:
            spans[-1] = end, spans[-1][1]
            return
        spans.append((end, now_s))
        if len(spans) > _MOST:
            # Two become one, as old as the older: then a record may seem older than it is, never younger.
            self._spans = [(spans[at + 1][0], spans[at][1]) for at in range(0, len(spans) - 1, 2)]
            if len(spans) % 2:
                self._spans.append(spans[-1])

    def oldest_s(self, position: int, now_s: float) -> float:
        """How long the record at an offset has waited, in seconds; 0: there is none."""
        while self._spans and self._spans[0][0] <= position:
            del self._spans[0]
        return max(0.0, now_s - self._spans[0][1]) if self._spans else 0.0


_LOGGER: Final = logging.getLogger("sqe_chain.ext.wal")
_SAVE_EVERY_S: Final = 1.0
_GATHER_S: Final = 0.005
_LARGE: Final = 1_000
"""Records in a batch, after which the next one begins at once."""
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0


class Background:
    """The thread. It tries until Kafka has everything; errors are kept for who asks, and logged when they change.

    Attributes:
        error: why nothing is published at the moment; None: nothing is wrong.
    """

    def __init__(self, log: WriteAheadLog, publisher: Publisher) -> None:
        self._log, self._publisher = log, publisher
        self._on_freed: Callable[[], None] = lambda: None
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._idle = False
        self._stopping = False
        self._durable = True
        self._saved_s = time.monotonic()
        self._ages = Ages()
        self._ages.appended(log.end, time.monotonic())
        self.error: ChainError | None = None
        self._thread = Thread(target=self._run, name="sqe-chain wal publish", daemon=True)

    def start(self, *, on_freed: Callable[[], None]) -> None:
        """Start the thread; `on_freed` is called after segments were deleted."""
        self._on_freed = on_freed
        self._thread.start()

    def durable(self) -> None:
        """There may be something to publish."""
        with self._lock:
            self._durable = True
            self._ages.appended(self._log.end, time.monotonic())
            if self._idle:
                self._idle = False
                self._changed.notify_all()

    def oldest_s(self) -> float:
        """How long the oldest record that waits for Kafka has waited, in seconds: since it was appended, or the log was opened."""
        with self._changed:
            return self._ages.oldest_s(self._log.position, time.monotonic())

    def wait_until_published(self, offset: int, timeout_s: float) -> bool:
        """Wait until Kafka has acknowledged everything before an offset; False: not in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._log.position < offset and self._thread.is_alive():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return self._log.position >= offset

    def stop(self) -> None:
        """End the thread after what it is just doing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._stopping:
            with self._changed:
                self._durable = False
            try:
                published = self._publisher.publish()
                self._keep()
            except Exception as error:  # noqa: BLE001 - a bug must be seen, too, and records must not wait in silence
                self._failed(error)
                self._wait(retry_s, for_error=True)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            self._recovered()
            if published:
                with self._changed:
                    self._changed.notify_all()
            else:
                self._wait(_SAVE_EVERY_S if self._log.unsaved else None, for_error=False)
            if published < _LARGE:
                self._gather()
        self._publisher.close()

    def _keep(self) -> None:
        """Note what was published, from time to time, and delete what is not needed any more."""
        if self._log.trimmable():
            self._log.trim()
            self._on_freed()
        now_s = time.monotonic()
        if now_s - self._saved_s >= _SAVE_EVERY_S:
            self._saved_s = now_s
            self._log.save()

    def _gather(self) -> None:
        """Let a few more records come: each batch costs a round trip, and time that those who append do not have."""
        with self._lock:
            if not self._stopping:
                self._changed.wait(_GATHER_S)

    def _wait(self, seconds: float | None, *, for_error: bool) -> None:
        with self._changed:
            deadline = None if seconds is None else time.monotonic() + seconds
            while not self._stopping and (for_error or not self._durable):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._idle = not for_error
                self._changed.wait(left)

    def _failed(self, error: Exception) -> None:
        named = ChainError(f"Publishing failed: {type(error).__name__}: {error}")
        kept = error if isinstance(error, ChainError) else named
        if self.error is None or str(self.error) != str(kept):
            _LOGGER.warning("Records wait in the write-ahead log: %s", kept)
        self.error = kept

    def _recovered(self) -> None:
        if self.error is not None:
            _LOGGER.info("The write-ahead log in %s is published again", self._log.files.where)
            self.error = None
