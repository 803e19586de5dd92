"""Downloads the Apicurio schema registry from Maven Central, once."""

from __future__ import annotations

import shutil
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from sqe_chain.errors import Unavailable
from sqe_chain.ext.dev.jars import Report

VERSION: Final = "3.3.3"
DIRECTORY: Final = f"apicurio-{VERSION}"
_URL: Final = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
_SHA256: Final = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_MEGABYTES: Final = 159
_BLOCK: Final = 1 << 20
_TIMEOUT_S: Final = 60


def download(target: Path, report: Report) -> None:
    """Download and unpack the registry into a directory, which appears completely or not at all.

    Raises:
        Unavailable: the download failed, or is another file.
    """
    report(f"Apicurio {VERSION}: downloading about {_MEGABYTES} MB from Maven Central")
    draft = target.with_name(f"partial-{target.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    archive, digest = draft / "archive.tar.gz", sha256()
    try:
        with urlopen(_URL, timeout=_TIMEOUT_S) as answer, archive.open("wb") as file:
            while block := answer.read(_BLOCK):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != _SHA256:
            raise Unavailable(f"Apicurio {VERSION}: {_URL} is another file than expected. Try again")
        with tarfile.open(archive) as packed:
            # Python 3.11.3 and earlier have no filter; that it is this very archive, its digest has shown.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(draft)  # noqa: S202
        archive.unlink()
        draft.rename(target)
    except (OSError, tarfile.TarError) as error:
        raise Unavailable(
            f"Apicurio {VERSION} could not be downloaded from Maven Central: {error}"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
