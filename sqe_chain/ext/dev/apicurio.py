"""One Apicurio schema registry on the loopback interface, which speaks Confluent's API."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar, Final

from sqe_chain.engines.java import java
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev.packages import fetch_apicurio
from sqe_chain.ext.dev.server import HOST, JavaServer

_TIMEOUT_S: Final = 60
_LEAST_JAVA: Final = 25
"""Its classes are compiled for it."""
_INSTALLED: Final = Path("/usr/lib/jvm")
_PATH: Final = "/apis/ccompat/v7"
_PROBE_TIMEOUT_S: Final = 1.0


class ApicurioServer(JavaServer):
    """A real registry in a process of its own; arguments and errors of `JavaServer`, without `properties`.

    What was registered is on disk, and there after a restart. It takes Java 25.
    """

    kind: ClassVar[str] = "apicurio"

    @property
    def url(self) -> str:
        """Address for `--registry`. Raises ConfigurationError: the server was never started."""
        return f"registry://{HOST}:{self.port}{_PATH}"

    def _command(self) -> Sequence[str]:
        return [
            newest_java(),
            *(f"-Xmx{self._heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            f"-XX:ErrorFile={self.data_dir / 'crash.log'}",
            f"-Djava.io.tmpdir={self._scratch}",
            *(f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={self.port}"),
            *(f"-Dquarkus.management.host={HOST}", f"-Dquarkus.management.port={self._own_port}"),
            *("-Dapicurio.storage.kind=sql", "-Dapicurio.storage.sql.kind=h2"),
            f"-Dapicurio.datasource.url=jdbc:h2:file:{self.data_dir / 'registry'}",
            *("-jar", str(fetch_apicurio() / "quarkus-run.jar")),
        ]

    def _answers(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=_PROBE_TIMEOUT_S)
        try:
            connection.request("GET", f"{_PATH}/subjects")
            return connection.getresponse().status == 200  # noqa: PLR2004 - OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def newest_java() -> str:
    """A `java` of version 25 or later: the usual one, else one that is installed beside it.

    Raises:
        ConfigurationError: there is none.
    """
    usual = java()
    for program in (usual, *map(str, sorted(_INSTALLED.glob("*/bin/java"), reverse=True))):
        if _version(program) >= _LEAST_JAVA:
            return program
    raise ConfigurationError(
        f"Apicurio needs Java {_LEAST_JAVA}, and {usual} is older. Expected it in JAVA_HOME, on the path, or under {_INSTALLED}. Install it"
    )


def _version(program: str) -> int:
    shown = subprocess.run(  # noqa: S603 - no shell
        [program, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    version = re.search(r'version "(\d+)', shown.stderr)
    return int(version[1]) if version else 0
