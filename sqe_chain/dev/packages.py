"""Where the servers come from: Kafka's jars from Maven Central, Redis from the system's packages."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqe_chain.dev.lock import exclusive
from sqe_chain.errors import ConfigurationError, Unavailable

KAFKA_VERSION = "4.1.0"
SLF4J_VERSION = "1.7.36"  # the API version that Kafka's jars bring

Report = Callable[[str], None]
"""Takes one line of progress."""

_LOCK_TIMEOUT_S = 900
_DOWNLOAD_ATTEMPTS = 3
_APT_TIMEOUT_S = 300
_LINES_OF_ERROR = 12
_REPORT_EVERY = 15

_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

_IVY_MODULE = f"""\
<ivy-module version="2.0">
  <info organisation="sqe-chain" module="kafka"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="{SLF4J_VERSION}" conf="default->default"/>
  </dependencies>
</ivy-module>
"""

# redis-server and what it links to beyond a minimal Debian 12.
_REDIS_PACKAGES = (
    *("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "liblua5.1-0"),
    *("lua-cjson", "lua-bitop", "libhiredis0.14"),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RedisProgram:
    """A redis-server that can be started.

    Args:
        path: the program.
        environment: variables that it needs.
    """

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def cache_directory() -> Path:
    """Where downloads are kept: `$SQE_CHAIN_CACHE`, else `sqe-chain` in the user's cache directory."""
    own = os.environ.get("SQE_CHAIN_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "sqe-chain"


def fetch(report: Report = _log.info) -> None:
    """Get everything that the servers need, so that starting them needs no network. May be repeated.

    Args:
        report: takes lines of progress.

    Raises:
        ConfigurationError: Java, pyspark or redis-server are missing and cannot be got; says how.
        Unavailable: a download failed; trying again goes on where it ended.
    """
    report(f"Java: {java()}")
    report(f"Kafka {KAFKA_VERSION}: {fetch_kafka(report)}")
    report(f"Redis: {fetch_redis(report).path}")


def java() -> str:
    """Path of the `java` program: in `$JAVA_HOME`, else on the path.

    Raises:
        ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on the path"
        message = (
            f"no java {where}; Kafka and Spark need Java 17 or later. "
            "On Debian or Ubuntu: sudo apt-get install --no-install-recommends openjdk-17-jre-headless"
        )
        raise ConfigurationError(message)
    return found


def fetch_kafka(report: Report = _log.info) -> Path:
    """Directory with the jars of Kafka, downloaded when it is not in the cache.

    The download appears in the cache as a whole or not at all; several processes may ask at once.

    Args:
        report: takes lines of progress.

    Raises:
        ConfigurationError: Java or pyspark are missing.
        Unavailable: the download failed.
    """
    target = cache_directory() / f"kafka-{KAFKA_VERSION}"
    if target.is_dir():
        return target
    with _locked(report):
        if not target.is_dir():
            report(f"Kafka {KAFKA_VERSION}: downloading about 45 MB from Maven Central")
            for attempt in range(1, _DOWNLOAD_ATTEMPTS + 1):
                try:
                    _retrieve_jars(target, report)
                    break
                except Unavailable:
                    if attempt == _DOWNLOAD_ATTEMPTS:
                        raise
                    report(f"Kafka {KAFKA_VERSION}: trying again")
    return target


def fetch_redis(report: Report = _log.info) -> RedisProgram:
    """A redis-server: on the path, else from the cache, else unpacked there from Debian's packages.

    Nothing is installed and no service is started: packages are only unpacked.

    Args:
        report: takes lines of progress.

    Raises:
        ConfigurationError: none was found and none could be got; says what to install.
    """
    installed = shutil.which("redis-server")
    if installed:
        return RedisProgram(Path(installed))
    target = cache_directory() / "redis"
    if not target.is_dir():
        with _locked(report):
            if not target.is_dir():
                report("Redis: unpacking the system's packages")
                _unpack_redis(target)
    libraries = ":".join(str(path) for path in sorted(target.glob("usr/lib/*-linux-gnu*")))
    return RedisProgram(target / "usr/bin/redis-server", {"LD_LIBRARY_PATH": libraries})


@contextmanager
def _locked(report: Report) -> Iterator[None]:
    """One download at a time into the cache."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(
        directory / "lock", _LOCK_TIMEOUT_S, lambda: report(f"waiting for another download into {directory}")
    ):
        yield


def _ivy() -> Path:
    """The Ivy jar inside the pyspark package, found without importing pyspark."""
    found = importlib.util.find_spec("pyspark")
    for place in (found.submodule_search_locations or []) if found else []:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    message = (
        "Kafka's jars are fetched by the Ivy inside pyspark, which is missing: pip install 'sqe-chain[spark]'"
    )
    raise ConfigurationError(message)


def _retrieve_jars(target: Path, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="partial-", dir=target.parent) as partial:
        work = Path(partial)
        (work / "jars").mkdir()
        # Ivy's own cache outlives a failure: the next attempt goes on where this one ended.
        settings = _IVY_SETTINGS.format(cache=target.parent / "ivy")
        (work / "settings.xml").write_text(settings, encoding="utf-8")
        (work / "ivy.xml").write_text(_IVY_MODULE, encoding="utf-8")
        command = [java(), "-cp", str(_ivy()), "org.apache.ivy.Main"]
        command += ["-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        command += ["-retrieve", str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
        lines: list[str] = []
        found = 0
        with subprocess.Popen(  # noqa: S603  arguments are ours, no shell
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as ivy:
            for line in ivy.stdout or ():
                lines.append(line)
                if line.lstrip().startswith(("found ", "[SUCCESSFUL ]")):
                    found += 1
                    if found % _REPORT_EVERY == 0:
                        report(f"Kafka {KAFKA_VERSION}: {found} of about 90 steps")
        complete = (work / "jars" / f"kafka_2.13-{KAFKA_VERSION}.jar").is_file()
        if ivy.returncode or not complete:
            tail = "".join(lines[-_LINES_OF_ERROR:]).rstrip()
            message = f"Kafka {KAFKA_VERSION} could not be downloaded from Maven Central:\n{tail}"
            raise Unavailable(message)
        (work / "jars").rename(target)


def _unpack_redis(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="partial-", dir=target.parent) as partial:
        unpacked = Path(partial, "root")
        unpacked.mkdir()
        try:
            if os.geteuid() == 0:
                _run("apt-get", "update", cwd=partial)  # a fresh container knows no packages yet
            _run("apt-get", "download", *_REDIS_PACKAGES, cwd=partial)
            for package in sorted(Path(partial).glob("*.deb")):
                _run("dpkg", "-x", str(package), str(unpacked), cwd=partial)
        except (OSError, subprocess.SubprocessError) as error:
            message = (
                "no redis-server on the path, and it could not be unpacked from Debian's packages "
                f"({error}). Install it: sudo apt-get install --no-install-recommends redis-server"
            )
            raise ConfigurationError(message) from error
        unpacked.rename(target)


def _run(*command: str, cwd: str) -> None:
    subprocess.run(command, cwd=cwd, capture_output=True, timeout=_APT_TIMEOUT_S, check=True)  # noqa: S603  no shell
