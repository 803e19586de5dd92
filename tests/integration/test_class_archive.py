"""Goal: Java takes classes from an archive if it can, and starts without a word if it cannot. Method: real Java."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from sqe_chain.engines.java import ClassArchive, java
from sqe_chain.engines.spark import session
from sqe_chain.ext.dev import kafka

pytestmark = pytest.mark.release

JARS = Path(pyspark.__file__).parent / "jars"
LOADED = "org.apache.ivy.Main source: "


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    monkeypatch.setenv("SQE_CHAIN_CACHE", str(tmp_path))
    return ClassArchive("ivy", JARS)


def ivy(*options: str) -> str:
    """Everything that a short program prints."""
    (jar,) = JARS.glob("ivy-*.jar")
    command = [java(), *options, "-cp", str(jar), "org.apache.ivy.Main", "-version"]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout


def test_classes_come_from_the_archive(archive: ClassArchive) -> None:
    assert archive.options() == []
    assert f"{LOADED}file:" in ivy("-Xlog:class+load", *archive.options())
    with archive.made() as options:
        printed = ivy(*options)
        assert archive.options() == []  # not before it is complete
    assert [found.name for found in archive.path.parent.iterdir()] == [archive.path.name]
    assert f"{LOADED}shared objects file (top)" in ivy("-Xlog:class+load", *archive.options())
    assert ivy(*archive.options()) == printed == ivy()


def test_a_broken_archive_is_passed_over(archive: ClassArchive) -> None:
    with archive.made() as options:
        ivy(*options)
    archive.path.chmod(0o600)
    archive.path.write_bytes(b"no archive")
    assert ivy(*archive.options()) == ivy()


def test_one_that_could_not_be_made_leaves_nothing(archive: ClassArchive) -> None:
    with pytest.raises(subprocess.CalledProcessError), archive.made() as options:
        ivy(*options, "-XX:NoSuchOption")
    with archive.made():
        pass  # the program was killed
    assert archive.options() == []
    assert list(archive.path.parent.iterdir()) == []


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_brokers_take_theirs() -> None:
    archive = kafka.class_archive()
    assert archive.path.exists() or kafka.archive_classes() == archive.path
    with kafka.KafkaServer(fast_boot=True) as server:
        assert str(archive.path) in mapped(server.identity.pid)


@pytest.mark.skipif(
    not session.class_archive().path.exists(), reason="python -m sqe_chain.ext.dev warm was never called"
)
def test_spark_takes_its_own(spark: SparkSession) -> None:
    java_process: Any = spark.sparkContext._gateway
    assert str(session.class_archive().path) in mapped(java_process.proc.pid)


def test_another_installation_has_another_archive(archive: ClassArchive, tmp_path: Path) -> None:
    assert ClassArchive("ivy", tmp_path).path != archive.path
