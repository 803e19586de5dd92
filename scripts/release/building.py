"""Archives and the bill of materials, each made twice under different circumstances and compared byte for byte."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class Different(Exception):
    """Two builds of one commit gave different files; the text names them."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the package in it.

    Attributes:
        path: its directory.
    """

    path: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The directory of its packages."""
        return next(self.path.glob("lib/python*/site-packages"))


class Tools:
    """The programs that build, in an environment of their own, and two clones of the last commit.

    Args:
        root: the repository.
        directory: where everything is made.

    Attributes:
        epoch: time of the commit, in seconds since 1970; all files get it.
        python: interpreter of that environment.
        first: a clone of the last commit.
        second: another one, elsewhere.
    """

    def __init__(self, root: Path, directory: Path) -> None:
        self.directory = directory
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.python = Installed(directory / "tools").python
        self.call(sys.executable, "-m", "venv", str(directory / "tools"))
        lock = root / "scripts" / "release" / "tools.lock"
        self.call(str(self.python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock))
        self.first = directory / "first"
        self.second = directory / "second" / "under-a-longer-path"
        for clone, mask in ((self.first, 0o022), (self.second, 0o077)):
            self.call("git", "clone", "--quiet", str(root), str(clone), mask=mask)
        self.epoch = int(self.call("git", "-C", str(self.first), "log", "-1", "--format=%ct"))
        self.environment["SOURCE_DATE_EPOCH"] = str(self.epoch)

    def call(self, *command: str, mask: int = 0o022, **variables: str) -> str:
        """Run a program and return what it writes; what goes wrong is shown.

        Args:
            command: the program and its arguments.
            mask: permissions that new files do not get.
            variables: additions to its environment.
        """
        done = subprocess.run(
            command,
            cwd=self.directory,  # not the repository, whose package would hide the installed one
            env={**self.environment, **variables},
            umask=mask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nfailed with status {done.returncode}: {' '.join(command)}")
        return done.stdout

    def run_module(self, module: str, *arguments: str, mask: int = 0o022, **variables: str) -> str:
        """Run a module of the tools; see `call`."""
        return self.call(str(self.python), "-m", module, *arguments, mask=mask, **variables)

    def install(self, name: str, archive: Path, extras: str) -> Installed:
        """Install an archive into a new, empty environment, with the versions that the tests ran with.

        Args:
            name: of the environment.
            archive: wheel or source archive.
            extras: separated by commas.
        """
        installed = Installed(self.directory / "environments" / name)
        self.run_module("uv", "venv", "--quiet", "--python", sys.executable, str(installed.path))
        self.run_module(
            *("uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", str(installed.python)),
            *("--constraint", str(self.first / "requirements.lock")),
            f"sqe-chain[{extras}] @ {archive.as_uri()}" if extras else str(archive),
        )
        return installed


def build_twice(tools: Tools, files: Path) -> tuple[Path, Path]:
    """Build wheel and source archive from both clones, and keep them if they are equal.

    Args:
        tools: what builds.
        files: where the release is put together.

    Returns:
        The wheel and the source archive.

    Raises:
        Different: the builds differ.
    """
    other = tools.directory / "other-files"
    tools.run_module("build", "--no-isolation", "--outdir", str(files), str(tools.first))
    tools.run_module(
        *("build", "--no-isolation", "--outdir", str(other), str(tools.second)),
        mask=0o077,
        TZ="Pacific/Kiritimati",
        LC_ALL="C",
        PYTHONHASHSEED="7",
    )
    (wheel,), (source,) = files.glob("*.whl"), files.glob("*.tar.gz")
    if not wheel.name.endswith("-py3-none-any.whl"):
        raise Different(f"{wheel.name} is not pure Python")
    compare([(file, other / file.name) for file in (wheel, source)])
    print(f"{wheel.name} and {source.name}: two builds are equal, byte for byte")
    return wheel, source


def check_page(tools: Tools, wheel: Path) -> None:
    """Show the README in the metadata of the wheel as an index does; what an index would refuse ends the release."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    page = tools.directory / "index-page.md"
    page.write_text(str(metadata.get_payload()), encoding="utf-8")
    tools.run_module("readme_renderer", "--output", str(page.with_suffix(".html")), str(page))
    addresses = metadata.get_all("Project-URL", [])
    if not addresses:
        print(
            "THE PAGE HAS NO LINKS TO THE REPOSITORY: pyproject.toml names no `home`. Set it before you publish."
        )
    print(f"The page of an index is in {page.with_suffix('.html')}, with {len(addresses)} addresses")


def write_materials(tools: Tools, environments: Sequence[Installed], files: Path) -> None:
    """Write the bill of materials of the package with all extras, once from each environment.

    Raises:
        Different: they differ.
    """
    made = []
    for number, environment in enumerate(environments):
        made.append(file := (files, tools.directory)[number] / "sqe-chain.cdx.json")
        tools.run_module(
            *(
                "cyclonedx_py",
                "environment",
                "--output-reproducible",
                "--mc-type",
                "library",
                "--short-PURLs",
            ),
            *("--pyproject", str(tools.first / "pyproject.toml"), "--output-file", str(file)),
            str(environment.python),
        )
    compare([(made[0], file) for file in made[1:]])
    print("sqe-chain.cdx.json: two environments give the same bill of materials")


def compare(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Compare files byte for byte.

    Raises:
        Different: one pair differs.
    """
    for first, second in pairs:
        if first.read_bytes() != second.read_bytes():
            raise Different(f"{first} and {second} differ, though both were built from the same commit")
