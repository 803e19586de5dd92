"""Which user code is sent to workers, and how; another Python process acts as the worker."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sqe_chain.engines.packing import PackedFlow
from sqe_chain.engines.spark import shipping
from sqe_chain.errors import ConfigurationError


class Session:
    """A session that records what is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def addArtifacts(self, *path: str, pyfile: bool) -> None:  # noqa: N802 - Spark's name
        assert pyfile
        sys.path.insert(1, path[0])  # as PySpark does
        self.sent += path


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of a user with a data file, and a package without `__init__.py` inside."""
    package = tmp_path / "shipped_flows"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "data.txt").write_text("42")
    (package / "large.bin").write_bytes(bytes(shipping.LARGEST_FILE + 1))
    (package / "deep" / "steps.py").write_text("def add(total, value):\n    total.value += value.value\n")
    (package / "counting.py").write_text(
        textwrap.dedent(
            """
            from google.protobuf.wrappers_pb2 import Int64Value
            from sqe_chain.flow import Flow
            from shipped_flows.deep.steps import add

            flow = Flow("shipped")
            flow.source("numbers", Int64Value).map(lambda value: Int64Value(value=value.value * 2)).aggregate(
                "sums", key=str, state=Int64Value, fold=add
            )
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("shipped_flows.counting")
    for name in [name for name in sys.modules if name.partition(".")[0] == "shipped_flows"]:
        del sys.modules[name]


def test_a_worker_elsewhere_runs_what_was_shipped(user_module: ModuleType, tmp_path: Path) -> None:
    session, before = Session(), list(sys.path)
    sent = shipping.ship(session)  # type: ignore[arg-type]
    assert "shipped_flows" in sent
    assert "sqe_chain" not in sent
    assert sys.path == before, "the driver goes on with the modules themselves"
    packed = tmp_path / "flow"
    packed.write_bytes(pickle.dumps(PackedFlow.of(user_module.flow)))
    worker = textwrap.dedent(
        f"""
        import pathlib, pickle, sys
        sys.path.insert(1, {session.sent[0]!r})
        flow = pickle.loads(pathlib.Path({str(packed)!r}).read_bytes()).unpack()
        _, double, stage = flow.nodes
        total = stage.codec.python_type(value=1)
        stage.stage_kind.fold.function(total, double.function.function(stage.codec.python_type(value=20)))
        import importlib.resources, shipped_flows
        files = sorted(entry.name for entry in importlib.resources.files(shipped_flows).iterdir())
        print(total.value, flow.name, shipped_flows.__file__.startswith({session.sent[0]!r}), "large.bin" in files, "data.txt" in files)
        """
    )
    found = subprocess.run(
        [sys.executable, "-c", worker], cwd=tmp_path / "..", capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == ["41", "shipped", "True", "False", "True"], found.stderr


def test_the_same_files_give_the_same_name(user_module: ModuleType) -> None:
    first, second = Session(), Session()
    shipping.ship(first)  # type: ignore[arg-type]
    shipping.ship(second)  # type: ignore[arg-type]
    assert Path(first.sent[0]).name == Path(second.sent[0]).name
    assert Path(first.sent[0]).read_bytes() == Path(second.sent[0]).read_bytes()


def test_too_much_is_refused(user_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "LARGEST_ZIP", 100)
    with pytest.raises(ConfigurationError, match="Install them on the workers"):
        shipping.ship(Session())  # type: ignore[arg-type]


def test_a_module_that_a_worker_misses_is_named(user_module: ModuleType, tmp_path: Path) -> None:
    code = (
        "import pickle, sys; packed = pickle.loads(sys.stdin.buffer.read())\n"
        "try: packed.unpack()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(PackedFlow.of(user_module.flow)),
        capture_output=True,
        cwd=tmp_path / "..",
        check=False,
    )
    assert found.stdout.decode().startswith("ConfigurationError a worker cannot import"), (
        found.stderr.decode()
    )
    assert "shipped_flows" in found.stdout.decode()
