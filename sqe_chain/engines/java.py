"""Java on this machine, and class archives: the classes that a Java program loads, mapped from a file instead of parsed at each start.

Java calls this application class-data sharing. It halves the time until Spark or Kafka are ready.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqe_chain.errors import ConfigurationError

_SILENT = "-Xlog:cds*=off"  # Java goes on without an archive that it cannot use; nobody need hear of it


def cache_directory() -> Path:
    """The directory for downloads: `$SQE_CHAIN_CACHE`, else `sqe-chain` in the user's cache directory."""
    own = os.environ.get("SQE_CHAIN_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "sqe-chain"


def java() -> str:
    """Path of the `java` program: in `$JAVA_HOME`, else on the path.

    Raises:
        ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the path"
        message = (
            f"no java {where}; Kafka and Spark need Java 17 or later. "
            "On Debian or Ubuntu: sudo apt-get install --no-install-recommends openjdk-17-jre-headless"
        )
        raise ConfigurationError(message)
    return java


@dataclass(frozen=True)
class ClassArchive:
    """The archive of one program, for one installation of it (its jars) and of Java."""

    name: str
    jars: Path

    @property
    def path(self) -> Path:
        """Its file in the cache, whether it exists or not.

        Raises:
            ConfigurationError: there is no Java.
        """
        program = Path(java()).resolve()
        made_of = [f"{path} {path.stat().st_mtime_ns}" for path in (self.jars, program)]
        digest = hashlib.blake2s("\n".join(made_of).encode(), digest_size=8).hexdigest()
        return cache_directory() / "classes" / f"{self.name}-{digest}.jsa"

    def options(self) -> list[str]:
        """Options for Java: to use the archive if it exists, else none."""
        path = self.path
        return [f"-XX:SharedArchiveFile={path}", _SILENT] if path.exists() else []

    @contextmanager
    def made(self) -> Iterator[list[str]]:
        """Options for Java with which the program writes the archive when it ends, within this context.

        An older one is removed; the new one appears completely or not at all.
        """
        path = self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            yield [f"-XX:ArchiveClassesAtExit={partial}", _SILENT]
            if partial.exists():
                partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
