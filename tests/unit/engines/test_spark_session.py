"""Errors before a Java process starts, and the short texts made from Spark's long errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sqe_chain.engines.spark.session import check_version, gist, open_session
from sqe_chain.errors import ChainError, ConfigurationError, EngineLost


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0", "5.0.0-preview1"])
def test_spark_of_4_1_or_later_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1"])
def test_an_older_spark_is_refused_by_its_version(version: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{version}.*4\.1"):
        check_version(version)


def test_a_missing_java_is_reported_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"Java 17.*apt install"):
        open_session("local[1]")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME=.*no bin/java"):
        open_session("local[1]")


def test_of_an_error_in_python_the_line_below_the_trace_is_shown() -> None:
    text = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in f
    g()
ModuleNotFoundError: No module named 'mine'

\tat org.apache.spark.Thing(Thing.scala:1)"""
    assert gist(RuntimeError(text)) == "ModuleNotFoundError: No module named 'mine'"


def test_of_another_error_the_beginning_is_shown() -> None:
    assert gist(RuntimeError("Job aborted\n  because of this\nand that")) == "Job aborted because of this"
    assert gist(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(("ends", "expected"), [("kill -9 $$", EngineLost), ("exit 1", ConfigurationError)])
def test_a_java_that_is_killed_while_it_starts_is_no_wrong_setting(
    tmp_path: Path, ends: str, expected: type[ChainError]
) -> None:
    """A supervisor starts the service again after the first, and not after the second."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    # Spark's script asks Java for its command line first: an empty line, then words that end with NUL.
    launcher = r"""case "$*" in *launcher.Main*) printf '\n%s\0now\0' "$0"; exit;; esac"""
    java.write_text(f"#!/bin/sh\n{launcher}\n{ends}\n")
    java.chmod(0o755)
    program = (
        "from sqe_chain.engines.spark.session import open_session\n"
        "try:\n    open_session('local[1]')\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[-1] == expected.__name__, done.stderr
