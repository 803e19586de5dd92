"""Goal: errors name exactly what is missing on a machine. Method: empty paths and caches, no network."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from sqe_chain.engines.java import java
from sqe_chain.errors import ConfigurationError
from sqe_chain.ext.dev import cache_directory, packages
from sqe_chain.ext.dev.__main__ import main
from sqe_chain.ext.dev.jars import KAFKA_VERSION


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on the path, nothing in the cache."""
    monkeypatch.setenv("SQE_CHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_a_missing_java_names_the_package() -> None:
    with pytest.raises(ConfigurationError, match="openjdk-17-jre-headless"):
        java()


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    with pytest.raises(ConfigurationError, match="/no/such/java"):
        java()


def test_a_missing_redis_names_the_package_and_leaves_no_half_of_one() -> None:
    with pytest.raises(ConfigurationError, match="apt-get install --no-install-recommends redis-server"):
        packages.fetch_redis()
    assert [path.name for path in cache_directory().iterdir()] == ["lock"]


def test_a_missing_postgres_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_POSTGRES_HERE", Path("/no/such/place"))
    with pytest.raises(ConfigurationError, match="apt-get install --no-install-recommends postgresql"):
        packages.fetch_postgres()
    assert [path.name for path in cache_directory().iterdir()] == ["lock"]


def test_a_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(packages, "java", lambda: "java")
    with pytest.raises(ConfigurationError, match=r"sqe-chain\[spark\]"):
        packages.fetch_kafka()


def test_what_is_in_the_cache_is_not_fetched_again() -> None:
    (cache_directory() / f"kafka-{KAFKA_VERSION}").mkdir(parents=True)
    assert packages.fetch_kafka() == cache_directory() / f"kafka-{KAFKA_VERSION}"


def test_the_cache_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQE_CHAIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/sqe-chain")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "sqe-chain"


def test_fetch_names_in_one_line_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch"]) == ConfigurationError.exit_status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "no java on the path" in err


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetsch"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "variable"), [("kafka", "SQE_CHAIN_KAFKA_VERSION"), ("cassandra", "SQE_CHAIN_CASSANDRA_VERSION")]
)
def test_a_variable_chooses_the_version_of_a_server(kind: str, variable: str) -> None:
    program = (
        "from sqe_chain.ext.dev.jars import CASSANDRA, KAFKA; print(KAFKA.directory, CASSANDRA.directory)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={variable: "3.9.1"}, capture_output=True, text=True, check=True)
    assert f"{kind}-3.9.1" in done.stdout.split()
