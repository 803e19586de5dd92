"""Warms an engine up while a service claims and recovers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from sqe_chain.protocol.interfaces import Engine
from sqe_chain.runtime.stop import Stop

_LOOK_S = 0.05
_END_S = 2.0


class WarmUp:
    """Runs `Engine.warm_up` in a thread, as long as the context lasts.

    Args:
        engine: the engine.
        failed: called with the reason when it fails, in that thread. It is no reason to stop: where it matters, the first
            batch meets the same.
    """

    def __init__(self, engine: Engine, failed: Callable[[Exception], None]) -> None:
        self._engine = engine
        self._failed = failed
        self._left = False
        self._thread = threading.Thread(target=self._run, name="sqe-chain warm-up", daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; what is still under way ends with the engine."""
        self._left = True
        self._thread.join(_END_S)

    def wait(self, stop: Stop) -> None:
        """Wait until it has ended, or the service is asked to stop."""
        while self._thread.is_alive() and not stop.requested:
            self._thread.join(_LOOK_S)

    def _run(self) -> None:
        try:
            self._engine.warm_up()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the service
            if not self._left:
                self._failed(error)
