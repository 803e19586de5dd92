"""Downloads the jars of servers from Maven Central, once, with the Ivy inside pyspark."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.wings import needed

KAFKA_VERSION = os.environ.get("SQE_CHAIN_KAFKA_VERSION") or "4.4.0"
SLF4J_VERSION = "1.7.36"  # the version of the API in Kafka's jars
_CASSANDRA_VERSION = os.environ.get("SQE_CHAIN_CASSANDRA_VERSION") or "5.0.9"

Report = Callable[[str], None]
"""Takes one line of progress."""

_ATTEMPTS = 3
_LINES_OF_ERROR = 12
_REPORT_EVERY = 15

_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

_IVY_MODULE = """\
<ivy-module version="2.0">
  <info organisation="sqe-chain" module="{module}"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class Jars:
    """The jars of a server.

    Args:
        dependencies: organisation, name and version; Ivy adds their own dependencies.
    """

    name: str  # the server, for people
    version: str  # its version
    dependencies: tuple[tuple[str, str, str], ...]
    main: str  # the jar that must be there for a download to count as complete
    megabytes: int  # approximate size of the download
    steps: int  # approximate number of progress lines that Ivy writes

    @property
    def directory(self) -> str:
        """Name of the directory with the jars."""
        return f"{self.name.lower()}-{self.version}"

    @property
    def title(self) -> str:
        """Name and version, for people."""
        return f"{self.name} {self.version}"


def kafka_jars(version: str) -> Jars:
    """The jars of a broker of this version."""
    return Jars(
        name="Kafka",
        version=version,
        dependencies=(
            ("org.apache.kafka", "kafka_2.13", version),
            ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
        ),
        main=f"kafka_2.13-{version}.jar",
        megabytes=45,
        steps=90,
    )


KAFKA = kafka_jars(KAFKA_VERSION)
CASSANDRA = Jars(
    name="Cassandra",
    version=_CASSANDRA_VERSION,
    dependencies=(("org.apache.cassandra", "cassandra-all", _CASSANDRA_VERSION),),
    main=f"cassandra-all-{_CASSANDRA_VERSION}.jar",
    megabytes=62,
    steps=200,
)


def retrieve(jars: Jars, target: Path, java: str, report: Report) -> None:
    """Download jars into a directory, which appears completely or not at all.

    Args:
        jars: what to download.
        target: a directory that does not exist yet; Ivy's cache is created next to it.
        java: the program.
        report: takes lines of progress.

    Raises:
        ConfigurationError: pyspark, hence Ivy, is missing.
        Unavailable: the download failed several times; another attempt continues where it ended.
    """
    report(f"{jars.title}: downloading about {jars.megabytes} MB from Maven Central")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _retrieve_once(jars, target, java, report)
        except Unavailable:
            if attempt == _ATTEMPTS:
                raise
            report(f"{jars.title}: retrying")
        else:
            return


def _ivy(jars: Jars) -> Path:
    """The Ivy jar inside the pyspark package, found without importing pyspark."""
    package = importlib.util.find_spec("pyspark")
    for directory in (package.submodule_search_locations or []) if package else []:
        for jar in sorted(Path(directory, "jars").glob("ivy-*.jar")):
            return jar
    raise ConfigurationError(
        needed(f"{jars.name}'s jars come with the Ivy inside pyspark: it", "pyspark", "spark")
    )


def _retrieve_once(jars: Jars, target: Path, java: str, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="partial-", dir=target.parent) as partial:
        work = Path(partial)
        (work / "jars").mkdir()
        # Ivy's cache is outside the temporary directory, so the next attempt continues where this one failed.
        settings = _IVY_SETTINGS.format(cache=target.parent / "ivy")
        (work / "settings.xml").write_text(settings, encoding="utf-8")
        (work / "ivy.xml").write_text(_module(jars), encoding="utf-8")
        command = [java, "-cp", str(_ivy(jars)), "org.apache.ivy.Main"]
        command += ["-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        command += ["-retrieve", str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
        lines: list[str] = []
        steps = 0
        with subprocess.Popen(  # noqa: S603  arguments are ours, no shell
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as ivy:
            for line in ivy.stdout or ():
                lines.append(line)
                if line.lstrip().startswith(("found ", "[SUCCESSFUL ]")):
                    steps += 1
                    if steps % _REPORT_EVERY == 0:
                        report(f"{jars.title}: {steps} of about {jars.steps} steps")
        if ivy.returncode or not (work / "jars" / jars.main).is_file():
            tail = "".join(lines[-_LINES_OF_ERROR:]).rstrip()
            raise Unavailable(f"{jars.title} could not be downloaded from Maven Central:\n{tail}")
        (work / "jars").rename(target)


def _module(jars: Jars) -> str:
    dependencies = "\n".join(
        f'    <dependency org="{organisation}" name="{name}" rev="{version}" conf="default->default"/>'
        for organisation, name, version in jars.dependencies
    )
    return _IVY_MODULE.format(module=jars.name.lower(), dependencies=dependencies)
