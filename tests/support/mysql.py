"""A real MySQL, for Debezium: its newest version in Debian, which `make mysql` puts into the cache."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from sqe_chain.ext.dev import cache_directory
from sqe_chain.ext.dev.server import HOST, Server
from tests.support.other_debian import program_of
from tests.support.waiting import PATIENCE_S

ROOT: Final = cache_directory() / "mysql"
_SHARED: Final = ROOT / "usr/share/mysql"


def _program(path: str) -> list[str]:
    return program_of(ROOT, path, "make mysql")


class MySqlServer(Server):
    """One MySQL with a binlog of rows, and a database `shop`; it is `root`'s, without a password.

    Raises:
        NotHere: it is not in the cache.
    """

    kind: ClassVar[str] = "mysql"
    start_timeout_s: ClassVar[float] = PATIENCE_S
    stop_timeout_s: ClassVar[float] = PATIENCE_S

    def __init__(self) -> None:
        super().__init__(None, None)
        self._daemon = [
            *_program("usr/sbin/mysqld"),
            "--no-defaults",
            "--user=root",
            "--secure-file-priv=",
            f"--datadir={self.data_dir}/data",
            f"--lc-messages-dir={_SHARED}",
            f"--character-sets-dir={_SHARED}/charsets",
        ]
        self._client = [*_program("usr/bin/mysql"), "--no-defaults", "--protocol=tcp", "--user=root"]

    def execute(self, *statements: str) -> list[list[str]]:
        """Run statements in one session, and give the rows that they return, as texts.

        Raises:
            subprocess.CalledProcessError: one was refused.
        """
        done = subprocess.run(
            [
                *self._client,
                f"--host={HOST}",
                f"--port={self.port}",
                "--batch",
                "--skip-column-names",
                "shop",
            ],
            input=";\n".join(statements),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        return [line.split("\t") for line in done.stdout.splitlines()]

    def _prepare(self) -> None:
        if Path(self.data_dir, "data").exists():
            return
        first = self.data_dir / "first.sql"
        first.write_text("CREATE DATABASE shop;\n")
        subprocess.run(
            [*self._daemon, "--initialize-insecure", f"--init-file={first}"],
            capture_output=True,
            check=True,
            timeout=PATIENCE_S,
        )

    def _command(self) -> Sequence[str]:
        return [
            *self._daemon,
            f"--port={self.port}",
            f"--bind-address={HOST}",
            f"--socket={self.data_dir}/socket",
            "--mysqlx=OFF",
            "--server-id=7",
        ]

    def _answers(self) -> bool:
        try:
            return self.execute("SELECT 1") == [["1"]]
        except subprocess.SubprocessError:
            return False
