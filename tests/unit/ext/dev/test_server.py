"""Goal: a server whose start is interrupted does not go on without anybody who knows of it. Method: `sleep` as the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from sqe_chain.ext.dev.server import Server


class Interrupted(Server):
    """Its user presses Ctrl-C while it starts."""

    kind: ClassVar[str] = "sleeper"
    start_timeout_s: ClassVar[float] = 10
    stop_timeout_s: ClassVar[float] = 1

    def _prepare(self) -> None: ...

    def _command(self) -> Sequence[str]:
        return ["sleep", "60"]

    def _answers(self) -> bool:
        raise KeyboardInterrupt


def test_an_interrupted_start_leaves_no_server(tmp_path: Path) -> None:
    server = Interrupted(tmp_path, detached=True)
    try:
        with pytest.raises(KeyboardInterrupt):
            server.start()
        assert not server.running
    finally:
        server.kill()
