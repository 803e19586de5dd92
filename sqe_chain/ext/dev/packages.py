"""Gets the servers' programs: jars from Maven Central, Redis and PostgreSQL from the system's packages."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqe_chain.engines.java import cache_directory, java
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev import apicurio_archive as apicurio
from sqe_chain.ext.dev.jars import CASSANDRA, KAFKA, KAFKA_VERSION, Jars, Report, kafka_jars, retrieve
from sqe_chain.ext.dev.lock import exclusive

USUAL = ("kafka", "redis", "cassandra", "postgres")
"""Servers that are fetched unless others are named."""
KINDS = (*USUAL, "apicurio")
"""Servers that can be fetched and started."""

_LOCK_TIMEOUT_S = 900
_APT_TIMEOUT_S = 300

# redis-server, and the libraries that it needs on a minimal Debian 12.
_REDIS_PACKAGES = (
    *("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "liblua5.1-0"),
    *("lua-cjson", "lua-bitop", "libhiredis0.14"),
)

# The server, and the libraries that it needs on a minimal Debian 12.
_POSTGRES_HERE = Path("/usr/lib/postgresql")  # not on the path
_POSTGRES = (
    *("postgresql-15", "postgresql-client-15", "libpq5", "libicu72", "libxml2", "libssl3"),
    *(
        "libldap-2.5-0",
        "libsasl2-2",
        "libgssapi-krb5-2",
        "libkrb5-3",
        "libk5crypto3",
        "libkrb5support0",
        "libkeyutils1",
    ),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RedisProgram:
    """How to start a redis-server."""

    path: Path  # the program
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that it needs


def fetch(report: Report = _log.info, kinds: Collection[str] = USUAL) -> None:
    """Download everything that the servers need, so that they start without a network. May be repeated.

    Raises:
        ConfigurationError: Java, pyspark or redis-server are missing and cannot be downloaded; the error names the commands to install them.
        Unavailable: a download failed; a retry continues where it ended.
    """
    report(f"Java: {java()}")
    if "kafka" in kinds:
        report(f"{KAFKA.title}: {fetch_kafka(report)}")
    if "redis" in kinds:
        report(f"Redis: {fetch_redis(report).path}")
    if "cassandra" in kinds:
        report(f"{CASSANDRA.title}: {fetch_cassandra(report)}")
    if "postgres" in kinds:
        report(f"PostgreSQL: {fetch_postgres(report)}")
    if "apicurio" in kinds:
        report(f"Apicurio: {fetch_apicurio(report)}")


def fetch_kafka(report: Report = _log.info, version: str = KAFKA_VERSION) -> Path:
    """The directory with the jars of Kafka; downloaded if they are not in the cache.

    A download appears in the cache completely or not at all; several processes may call this at the same time.

    Args:
        report: takes lines of progress.
        version: of Kafka.

    Raises:
        ConfigurationError: Java or pyspark are missing.
        Unavailable: the download failed.
    """
    return fetch_jars(kafka_jars(version), report)


def fetch_cassandra(report: Report = _log.info) -> Path:
    """The directory with the jars of Cassandra; see `fetch_kafka`."""
    return fetch_jars(CASSANDRA, report)


def fetch_redis(report: Report = _log.info) -> RedisProgram:
    """A redis-server: the one on the path, else from the cache, else unpacked there from Debian's packages.

    Nothing is installed and no service is started: packages are only unpacked.

    Raises:
        ConfigurationError: there is none, and downloading failed; the error names what to install.
    """
    installed = shutil.which("redis-server")
    if installed:
        return RedisProgram(Path(installed))
    target = _cached(
        "redis", report, lambda target: _unpack("Redis", _REDIS_PACKAGES, "redis-server", target, report)
    )
    libraries = ":".join(str(path) for path in sorted(target.glob("usr/lib/*-linux-gnu*")))
    return RedisProgram(target / "usr/bin/redis-server", {"LD_LIBRARY_PATH": libraries})


def fetch_postgres(report: Report = _log.info) -> Path:
    """The directory with the programs of PostgreSQL: of the system's newest version, else from the cache, as `fetch_redis`.

    Raises:
        ConfigurationError: there is none, and downloading failed; the error names what to install.
    """
    on_path = shutil.which("postgres")
    if on_path and Path(on_path).resolve().with_name("initdb").exists():
        return Path(on_path).resolve().parent
    installed = sorted(_POSTGRES_HERE.glob("*/bin/initdb"), key=_postgres_version)
    if installed:
        return installed[-1].parent
    target = _cached(
        "postgres", report, lambda target: _unpack("PostgreSQL", _POSTGRES, "postgresql", target, report)
    )
    return max(target.glob("usr/lib/postgresql/*/bin/initdb"), key=_postgres_version).parent


def fetch_apicurio(report: Report = _log.info) -> Path:
    """The directory with the schema registry; see `fetch_kafka`."""
    return _cached(apicurio.DIRECTORY, report, lambda target: apicurio.download(target, report))


def _postgres_version(program: Path) -> int:
    version = program.parent.parent.name
    return int(version) if version.isdecimal() else 0


def fetch_jars(jars: Jars, report: Report = _log.info) -> Path:
    """The directory with these jars; see `fetch_kafka`."""
    return _cached(jars.directory, report, lambda target: retrieve(jars, target, java(), report))


def _cached(name: str, report: Report, make: Callable[[Path], None]) -> Path:
    """A directory of the cache. If it is missing it is made, by one process at a time."""
    cache = cache_directory()
    target = cache / name
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        waiting = partial(report, f"waiting for another download into {cache}")
        with exclusive(cache / "lock", _LOCK_TIMEOUT_S, waiting):
            if not target.is_dir():
                make(target)
    return target


def _unpack(title: str, packages: Sequence[str], wanted: str, target: Path, report: Report) -> None:
    report(f"{title}: unpacking the system's packages")
    with tempfile.TemporaryDirectory(prefix="partial-", dir=target.parent) as draft:
        unpacked = Path(draft, "root")
        unpacked.mkdir()
        try:
            if os.geteuid() == 0:
                _run("apt-get", "update", cwd=draft)  # a fresh container has no package lists yet
            _run("apt-get", "download", *packages, cwd=draft)
            for package in sorted(Path(draft).glob("*.deb")):
                _run("dpkg", "-x", str(package), str(unpacked), cwd=draft)
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigurationError(
                f"no {wanted} on the path, and it could not be unpacked from Debian's packages "
                f"({error}). Install it: sudo apt-get install --no-install-recommends {wanted}"
            ) from error
        unpacked.rename(target)


def _run(*command: str, cwd: str) -> None:
    subprocess.run(command, cwd=cwd, capture_output=True, timeout=_APT_TIMEOUT_S, check=True)  # noqa: S603  no shell
