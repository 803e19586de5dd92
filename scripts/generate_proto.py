"""Generate `sqe_chain/_proto` from `proto/` and `services/_proto` from `services/proto`.

With `--check`, only report whether they are up to date.

Needs grpcio-tools (the compiler) and mypy-protobuf (the type stubs); users of the library need
neither. The files keep their full name in protobuf's registry (`sqe_chain/v1/envelope.proto`), so
that they cannot clash with an `envelope.proto` of somebody else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Build:
    """One run of the compiler.

    Attributes:
        include: directory that the sources' names, as protobuf's registry knows them, start from.
        sources: those names.
        target: where the generated code is checked in.
    """

    include: Path
    sources: tuple[str, ...]
    target: Path


BUILDS = (
    Build(
        ROOT / "proto",
        (
            "sqe_chain/v1/envelope.proto",
            "sqe_chain/v1/head.proto",
            "sqe_chain/v1/filters.proto",
            "sqe_chain/v1/windows.proto",
            "sqe_chain/v1/joins.proto",
            "sqe_chain/v1/timers.proto",
            "sqe_chain/v1/dropped.proto",
            "sqe_chain/v1/window_result.proto",
        ),
        ROOT / "sqe_chain" / "_proto",
    ),
    Build(ROOT, ("services/proto/fastening.proto",), ROOT / "services" / "_proto"),
)


def generate(build: Build, target: Path) -> list[Path]:
    """Write the generated modules and stubs of one build into `target`; returns their paths.

    Raises:
        RuntimeError: the compiler refused a file; its reason is on stderr.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        status = protoc.main(
            [
                "protoc",
                f"-I{build.include}",
                f"-I{resources.files('grpc_tools') / '_proto'}",
                f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
                f"--python_out={temporary}",
                f"--mypy_out=quiet:{temporary}",
                *build.sources,
            ]
        )
        if status != 0:
            message = f"protoc ended with status {status}"
            raise RuntimeError(message)
        made = sorted(Path(temporary).rglob("*_pb2.py*"))
        return [Path(shutil.copy(path, target / path.name)) for path in made]


def differences() -> list[Path]:
    """The checked-in files that differ from the compiler's current output."""
    stale = []
    for build in BUILDS:
        with tempfile.TemporaryDirectory() as temporary:
            for fresh in generate(build, Path(temporary)):
                checked_in = build.target / fresh.name
                if not checked_in.exists() or checked_in.read_bytes() != fresh.read_bytes():
                    stale.append(checked_in)
    return stale


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; status 1 on a difference")
    if parser.parse_args().check:
        stale = differences()
        for path in stale:
            sys.stderr.write(f"{path} is out of date: run `make proto`\n")
        return 1 if stale else 0
    for build in BUILDS:
        generate(build, build.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
