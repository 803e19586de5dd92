"""Sends the user's modules to workers of Spark, which share no directory with the driver: once, as one zip file."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from sqe_chain.engines.module_sources import is_installed
from sqe_chain.engines.spark.workplace import make_temporary_directory
from sqe_chain.errors import ConfigurationError

LARGEST_FILE = 1 << 20
"""Files in packages that are not Python's are sent, too, up to this size in bytes."""

LARGEST_ZIP = 64 << 20
"""Limit of the zip file in bytes: anything larger should be an installed package."""

_OWN = "sqe_chain"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same zip


def ship(session: SparkSession) -> list[str]:
    """Send the user's modules to all workers, present and future: those imported here but not installed.

    A package is sent completely, except files that are not Python's and larger than `LARGEST_FILE`. Compiled
    extension modules cannot be imported from a zip: install them.

    Returns:
        The names of the modules and packages sent.

    Raises:
        ConfigurationError: they are larger than `LARGEST_ZIP`.
    """
    files = dict(sorted(_files()))
    if not files:
        return []
    digest = blake2b(digest_size=8)
    directory = make_temporary_directory()  # it must stay: executors that join later fetch the zip from there
    target = directory / "modules.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted(
            {f"{parent}/" for name in files for parent in Path(name).parents if parent.name}
        ):
            archive.writestr(
                zipfile.ZipInfo(folder, _EPOCH), b""
            )  # packages without __init__.py are found by these entries
        for name, path in files.items():
            data = path.read_bytes()
            digest.update(name.encode() + b"\0" + data)
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    if target.stat().st_size > LARGEST_ZIP:
        raise ConfigurationError(
            f"the modules that the flow needs have {target.stat().st_size >> 20} MiB zipped ({_largest(files)} is the "
            f"largest file). Expected at most {LARGEST_ZIP >> 20} MiB. Install them on the workers as a package"
        )
    # Spark caches an artifact by its name, so other content needs another name.
    named = target.rename(directory / f"sqe-chain-{digest.hexdigest()}.zip")
    before = list(sys.path)
    session.addArtifacts(str(named), pyfile=True)
    sys.path[:] = (
        before  # addArtifacts put the zip first; the driver must keep importing the files themselves
    )
    return sorted({name.partition("/")[0].removesuffix(".py") for name in files})


def _files() -> Iterator[tuple[str, Path]]:
    """Name in the zip, and path, of every file to send."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in ("__main__", "__mp_main__", _OWN) or not isinstance(module, ModuleType):
            continue
        if not file or not file.endswith(".py") or is_installed(Path(file)) or not Path(file).is_file():
            continue
        target = name.replace(".", "/")
        if Path(file).name != "__init__.py":
            yield f"{target}.py", Path(file)
            continue
        root = Path(file).parent
        for path in root.rglob("*"):
            below = path.relative_to(root)
            if (
                any(part == "__pycache__" or part.startswith(".") for part in below.parts)
                or not path.is_file()
            ):
                continue
            if path.suffix == ".py" or path.stat().st_size <= LARGEST_FILE:
                yield f"{target}/{below.as_posix()}", path


def _largest(files: dict[str, Path]) -> str:
    return max(files, key=lambda name: files[name].stat().st_size)
