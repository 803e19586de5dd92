"""Gets what the others need, once, into the cache: pinned versions, checked by their hashes."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqe_chain.engines.java import cache_directory, java
from sqe_chain.errors import ChainError
from sqe_chain.ext.dev.jars import SLF4J_VERSION, Jars, Report, retrieve
from sqe_chain.ext.dev.lock import exclusive

HERE = Path(__file__).resolve().parent
JAVA_FILES = HERE / "kafka_streams"
OLDER_KAFKA = "4.1.0"
NEWEST_KAFKA = "4.4.0"
"""Newest version on Maven Central on 2026-11-28."""

_LOCK_TIMEOUT_S = 900
_LINES_OF_ERROR = 8
_CONNECTOR_VERSION = "5.0.0-2.2"
_FLINK_CONNECTOR = Jars(
    name="Flink-Connector-Kafka",
    version=_CONNECTOR_VERSION,
    dependencies=(("org.apache.flink", "flink-sql-connector-kafka", _CONNECTOR_VERSION),),
    main=f"flink-sql-connector-kafka-{_CONNECTOR_VERSION}.jar",
    megabytes=11,
    steps=5,
)


class Missing(Exception):
    """A system cannot take part on this machine; the text names what it lacks and how to get it."""


def python_of(directory: Path, report: Report) -> Path:
    """The Python of an environment with what a `requirements.txt` pins; installed if it is not in the cache.

    Args:
        directory: where the file is.
        report: takes lines of progress.

    Raises:
        Missing: it cannot be installed.
    """
    requirements = directory / "requirements.txt"
    name = f"{directory.name}-{_digest(requirements.read_bytes(), sys.version.encode())}"
    with _made(name, report) as target:
        if target is not None:
            report(f"{directory.name}: installing {requirements}")
            python = str(target / "bin" / "python")
            _run(sys.executable, "-m", "venv", "--without-pip", str(target))
            # With the pip of this environment: a second one would take longer to install than what it is for.
            install = ("install", "--quiet", "--disable-pip-version-check", "--require-hashes")
            _run(sys.executable, "-m", "pip", "--python", python, *install, "-r", str(requirements))
    return _cache() / name / "bin" / "python"


def node_modules(directory: Path, report: Report) -> Path:
    """What a `package-lock.json` pins, with its hashes; installed by npm if it is not in the cache.

    Args:
        directory: where the file and its `package.json` are.
        report: takes lines of progress.

    Raises:
        Missing: there is no npm, or it cannot be installed.
    """
    files = [directory / "package.json", directory / "package-lock.json"]
    name = f"{directory.name}-node-{_digest(*(file.read_bytes() for file in files))}"
    with _made(name, report) as target:
        if target is not None:
            report(f"{directory.name}: installing {files[0]}")
            for file in files:
                shutil.copy(file, target)
            options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error")
            _run("npm", "ci", "--prefix", str(target), *options)
    return _cache() / name / "node_modules"


def pinned(directory: Path) -> str:
    """Names and versions of what an environment was made for, without what that needs itself."""
    asked = (directory / "requirements.in").read_text(encoding="ascii").split()
    names = {re.split(r"[\[<>=]", line)[0] for line in asked}
    lines = (directory / "requirements.txt").read_text(encoding="ascii").splitlines()
    found = (line.split()[0].split("==") for line in lines if "==" in line)
    return ", ".join(f"{name} {version}" for name, version in found if name in names)


def kafka_streams(report: Report, version: str = OLDER_KAFKA, files: Path = JAVA_FILES) -> str:
    """The class path of our program on Kafka Streams; downloaded and compiled if it is not in the cache.

    Args:
        report: takes lines of progress.
        version: of Kafka Streams, one with a list of sums in `JAVA_FILES`.
        files: directory of the program.

    Raises:
        Missing: there is no Java or no compiler, or the jars cannot be downloaded or are not the pinned ones.
    """
    compiler = _compiler()
    wanted = _kafka_streams_jars(version)
    jars = retrieved(wanted, JAVA_FILES / f"jars-{version}.sha256", report)
    sources = sorted(files.glob("*.java"))
    name = f"{wanted.directory}-classes-{_digest(*(source.read_bytes() for source in sources))}"
    with _made(name, report) as target:
        if target is not None:
            report(f"{wanted.title}: compiling {files}")
            options = ("-Xlint:all", "-Werror", "--release", "17", "-cp", f"{jars}/*", "-d", str(target))
            _run(compiler, *options, *map(str, sources))
    return f"{_cache() / name}:{jars}/*"


def _compiler() -> str:
    """The `javac` that belongs to the `java` found."""
    try:
        program = Path(java())
    except ChainError as error:
        raise Missing(str(error)) from error
    found = shutil.which("javac", path=str(program.parent)) or shutil.which(
        "javac", path=str(program.resolve().parent)
    )
    if found is None:
        raise Missing(
            f"no javac beside {program}: this is a Java runtime without the compiler. "
            "On Debian or Ubuntu: sudo apt-get install --no-install-recommends openjdk-17-jdk-headless"
        )
    return found


def _kafka_streams_jars(version: str) -> Jars:
    return Jars(
        name="Kafka-Streams",
        version=version,
        dependencies=(
            ("org.apache.kafka", "kafka-streams", version),
            ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
        ),
        main=f"kafka-streams-{version}.jar",
        megabytes=95,
        steps=22,
    )


def flink_connector(report: Report) -> Path:
    """The jar with which Flink reads and writes Kafka; downloaded if it is not in the cache.

    Args:
        report: takes lines of progress.

    Raises:
        Missing: there is no Java, or the jar cannot be downloaded or is not the pinned one.
    """
    return retrieved(_FLINK_CONNECTOR, HERE / "flink" / "jars.sha256", report) / _FLINK_CONNECTOR.main


def retrieved(wanted: Jars, sums: Path, report: Report) -> Path:
    """The directory with these jars; downloaded if they are not in the cache.

    Args:
        wanted: what to download.
        sums: file with their hashes, as `sha256sum` writes it.
        report: takes lines of progress.

    Raises:
        Missing: there is no Java, or they cannot be downloaded or are not the pinned ones.
    """
    target = _cache() / wanted.directory
    with _exclusive(report):
        try:
            if not target.is_dir():
                retrieve(wanted, target, java(), report)
        except ChainError as error:
            raise Missing(str(error)) from error
        check_jars(target, sums)
    return target


def check_jars(directory: Path, sums: Path) -> None:
    """Compare all jars of a directory with a list as `sha256sum` writes it.

    Raises:
        Missing: a jar is missing, different, or not in the list.
    """
    lines = (line.split() for line in sums.read_text(encoding="ascii").splitlines())
    wanted = {name: checksum for checksum, name in lines}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.jar")}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise Missing(
            f"{', '.join(wrong)} in {directory} differ from {sums}. Delete that directory to download them again"
        )


# --- details ------------------------------------------------------------------------------------------


def _cache() -> Path:
    return cache_directory() / "peers"


@contextmanager
def _exclusive(report: Report) -> Iterator[None]:
    """One installation at a time."""
    directory = _cache()
    directory.mkdir(parents=True, exist_ok=True)
    lock = directory / "lock"
    with exclusive(lock, _LOCK_TIMEOUT_S, lambda: report(f"waiting for another installation in {directory}")):
        yield


@contextmanager
def _made(name: str, report: Report) -> Iterator[Path | None]:
    """A directory of the cache to fill, if it is not there yet; one that could not be filled is removed."""
    with _exclusive(report):
        target = _cache() / name
        done = target / ".done"
        if done.exists():
            yield None
            return
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        yield target
        done.touch()


def _run(*command: str) -> None:
    with TemporaryDirectory() as directory:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        except OSError as error:
            raise Missing(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_LINES_OF_ERROR:])
        raise Missing(f"{' '.join(command[:4])} … ended with status {done.returncode}:\n{tail}")


def _digest(*contents: bytes) -> str:
    digest = hashlib.blake2s(digest_size=8)
    for content in contents:
        digest.update(hashlib.blake2s(content).digest())
    return digest.hexdigest()
