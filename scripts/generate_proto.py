"""Generate `sqe_chain/_proto` from `proto/`, or with `--check` say whether it is up to date.

Needs grpcio-tools (the compiler) and mypy-protobuf (the type stubs); users of the library need
neither. The files keep their full name in protobuf's registry (`sqe_chain/v1/envelope.proto`), so
that they cannot clash with an `envelope.proto` of somebody else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("sqe_chain/v1/envelope.proto", "sqe_chain/v1/head.proto")
TARGET = ROOT / "sqe_chain" / "_proto"


def generate(target: Path) -> list[Path]:
    """Write the generated modules and stubs into `target`; returns their paths.

    Raises:
        RuntimeError: the compiler refused a file; it has said why on stderr.
    """
    target.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory() as temporary:
        status = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'proto'}",
                f"-I{resources.files('grpc_tools') / '_proto'}",
                f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
                f"--python_out={temporary}",
                f"--mypy_out=quiet:{temporary}",
                *SOURCES,
            ]
        )
        if status != 0:
            message = f"protoc ended with status {status}"
            raise RuntimeError(message)
        for path in sorted(Path(temporary).rglob("*_pb2.py*")):
            written.append(Path(shutil.copy(path, target / path.name)))
    return written


def differences() -> list[str]:
    """Names of the checked-in files that differ from what the compiler makes now."""
    with tempfile.TemporaryDirectory() as temporary:
        fresh = generate(Path(temporary))
        return [
            path.name
            for path in fresh
            if not (TARGET / path.name).exists() or (TARGET / path.name).read_bytes() != path.read_bytes()
        ]


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; status 1 on a difference")
    if parser.parse_args().check:
        stale = differences()
        for name in stale:
            sys.stderr.write(f"{TARGET / name} is out of date: run `make proto`\n")
        return 1 if stale else 0
    generate(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
