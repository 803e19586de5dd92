"""Goal: an author outside can run the shipped contracts on a store and a codec of their own, and finds what is wrong with it.

The packages of tests/plugins are such: they are installed, and know nothing of these tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sqe_chain.codecs import Codec, codec_named
from sqe_chain.flow import Stream
from sqe_chain.stages import Tumbling
from sqe_chain.testing.contracts import CodecContract, StageContract, StoreContract
from tests.support.plugins import install


@dataclass
class Report:
    robot: str = ""
    screws: int = 0


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with install(tmp_path, monkeypatch):
        yield


class TestFolderStore(StoreContract):
    @pytest.fixture
    def url(self, installed: None, tmp_path: Path) -> str:
        return f"folder://{tmp_path}/states"


class TestPipes(CodecContract):
    topics = ("reports", "reports.checked")

    @pytest.fixture
    def codec(self, installed: None) -> Codec[Any]:
        make: Any = codec_named("pipes")
        codec: Codec[Any] = make(Report, separators={"reports": ";"})
        return codec

    @pytest.fixture
    def values(self) -> list[Any]:
        return [Report("a", 1), Report("ü", -(2**70)), Report()]


def name_of(report: Report) -> str:
    return report.robot


class TestKeepFirst(StageContract):
    @pytest.fixture
    def declare(self) -> Callable[[Stream[Any]], Stream[Any]]:
        return lambda stream: stream.stage("first", "keep-first", key=name_of, count=2)

    @pytest.fixture
    def inputs(self) -> Sequence[tuple[str, Any]]:
        return [(robot, Report(robot, 1 << number)) for number, robot in enumerate("aabbbacc")]


class TestDistinct(TestKeepFirst):
    """A kind of sqe-chain itself, which works on blocks. Its rows name topics by their ids."""

    rows_differ = True

    @pytest.fixture
    def declare(self) -> Callable[[Stream[Any]], Stream[Any]]:
        return lambda stream: stream.stage("once", "distinct", key=name_of, windows=Tumbling(3_600_000))
