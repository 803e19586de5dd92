"""Authorities and certificates that live for a test: made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate, its key, and both in one file, as PEM."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority.

    Args:
        directory: for its files; no two authorities of one name share it.
        name: its common name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = directory / f"{name}.ca.key"
        self.certificate = directory / f"{name}.ca.pem"
        ways = ("-keyout", str(self._key), "-out", str(self.certificate))
        _openssl("req", "-x509", *_KEY, *ways, "-days", "2", "-subj", f"/CN={name}")

    def issue(self, name: str, host: str = "IP:127.0.0.1", days: int = 2) -> Credentials:
        """A certificate.

        Args:
            name: its common name.
            host: for whom it is, as a subject alternative name.
            days: until it expires; -1: it has.
        """
        stem = self._directory / f"{self.certificate.name}.{name}"
        made = Credentials(*(stem.with_name(f"{stem.name}.{end}") for end in ("pem", "key", "both")))
        request, extension = stem.with_name(f"{stem.name}.csr"), stem.with_name(f"{stem.name}.ext")
        extension.write_text(f"subjectAltName={host}\n")
        _openssl("req", *_KEY, "-keyout", str(made.key), "-out", str(request), "-subj", f"/CN={name}")
        by = ("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial")
        ways = ("-extfile", str(extension), "-out", str(made.certificate))
        _openssl("x509", "-req", "-in", str(request), *by, "-days", str(days), *ways)
        made.both.write_text(made.key.read_text() + made.certificate.read_text())
        return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
