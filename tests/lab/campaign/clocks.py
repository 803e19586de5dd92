"""Other clocks for a process: libfaketime is loaded before it, so that every program of it reads a time of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sqe_chain.engines.java import cache_directory

_INSTALLED: Final = Path("/usr/lib")
_PACKAGE: Final = "libfaketime"
_LIBRARY: Final = "libfaketimeMT.so.1"
_APT_TIMEOUT_S: Final = 300


def library() -> Path | None:
    """The library: the system's, else unpacked from Debian's package into the cache; None: there is neither."""
    for place in (_INSTALLED, cache_directory() / _PACKAGE):
        found = next(place.glob(f"**/faketime/{_LIBRARY}"), None)
        if found is not None:
            return found
    with tempfile.TemporaryDirectory() as draft:
        try:
            for command in (
                ["apt-get", "download", _PACKAGE],
                ["sh", "-c", 'dpkg -x ./*.deb "$0"', str(cache_directory() / _PACKAGE)],
            ):
                subprocess.run(command, cwd=draft, check=True, capture_output=True, timeout=_APT_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError):
            return None
    return next((cache_directory() / _PACKAGE).glob(f"**/faketime/{_LIBRARY}"), None)


def ahead_by(seconds: int, loaded: Path) -> Mapping[str, str]:
    """Environment variables of a process whose clock is ahead by that much, or behind.

    Args:
        seconds: of all wall clocks; monotonic clocks stay.
        loaded: the library.
    """
    return {
        "LD_PRELOAD": os.fspath(loaded),
        "FAKETIME": f"{seconds:+d}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # what the library called it before 0.9.10
    }
