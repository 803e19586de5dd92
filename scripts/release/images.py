"""The images of a release: built twice and compared file by file, measured, and tried.

Runs in an environment that has the example services' packages: `python -m scripts.release.images EPOCH`.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from services.compose_chaos.daemon import NoDocker, daemon
from services.compose_chaos.docker import Docker, DockerFailed

ROOT = Path(__file__).resolve().parents[2]
NO_DOCKER = 77
MOST_MB = {"inprocess": 250, "spark": 1_400}
_BUILT_WITHIN_S = 1_800.0
_HEALTHY_WITHIN_S = 90.0
GIVEN = ("etc/hostname", "etc/hosts", "etc/resolv.conf", ".dockerenv", "dev/console", "etc/mtab")
"""Files that the daemon puts into each container."""
DATED = ("etc/ssl/certs/java/cacerts",)
"""Files of Debian's packages that hold the time of the build."""


def main() -> int:
    """Build and try both images; returns the exit status."""
    epoch = sys.argv[1]
    try:
        with daemon() as docker:
            note = docker.command([str(ROOT / "scripts" / "stand-in-images"), "python"], _BUILT_WITHIN_S)
            print(note.strip())
            for target in MOST_MB:
                print(f"image {target}: {_build_and_try(docker, target, epoch)}")
    except NoDocker as error:
        print(error)
        return NO_DOCKER
    return 0


def _build_and_try(docker: Docker, target: str, epoch: str) -> str:
    names = [f"sqe-chain:{target}", f"sqe-chain:{target}-again"]
    for name in names:
        docker.run(
            *(
                "build",
                "--quiet",
                "--network",
                "host",
                "--no-cache",
                "--build-arg",
                f"SOURCE_DATE_EPOCH={epoch}",
            ),
            *("--target", target, "--tag", name, "."),
            timeout_s=_BUILT_WITHIN_S,
        )
    first, second = (_files_of(docker, name) for name in names)
    if different := sorted(path for path in {*first, *second} if first.get(path) != second.get(path)):
        raise DockerFailed(f"two builds of image {target} differ in {different[:20]}")
    size = int(docker.run("image", "inspect", "--format", "{{.Size}}", names[0])) / 1e6
    if size > MOST_MB[target]:
        raise DockerFailed(f"image {target} has {size:.0f} MB, more than {MOST_MB[target]}")
    user = docker.run("run", "--rm", "--network", "none", names[0], "id", "-u").strip()
    if user == "0":
        raise DockerFailed(f"image {target} runs as root")
    _run_readme(docker, names[0])
    if target == "spark":
        _run_spark(docker, names[0])
    healthy_s = _seconds_until_healthy(docker, names[0])
    return f"{size:.0f} MB, user {user}, {len(first):,} files equal in two builds, README's example ran, healthy after {healthy_s:.0f} s"


def _files_of(docker: Docker, image: str) -> dict[str, tuple[object, ...]]:
    """What an image holds: path -> mode, owner, link and digest."""
    container = docker.run("create", "--network", "none", image).strip()
    files: dict[str, tuple[object, ...]] = {}
    with tempfile.TemporaryDirectory() as directory:
        docker.run("export", "--output", f"{directory}/image.tar", container)
        with tarfile.open(f"{directory}/image.tar") as archive:
            for member in archive:
                if member.name in GIVEN or member.name in DATED:
                    continue
                content = archive.extractfile(member) if member.isfile() else None
                digest = sha256(content.read()).hexdigest() if content else ""
                files[member.name] = (member.mode, member.uid, member.gid, member.linkname, digest)
    docker.run("rm", container)
    return files


def _run_readme(docker: Docker, image: str) -> None:
    docker.run(
        *("run", "--rm", "--network", "none", "--workdir", "/tmp", "--volume", f"{ROOT}:/check:ro", image),  # noqa: S108
        *("python", "-W", "error", "/check/tests/support/docs_examples.py", "/check/README.md"),
    )


def _run_spark(docker: Docker, image: str) -> None:
    program = (
        "from sqe_chain.engines.spark.session import *; from pyspark.sql import SparkSession as S; "
        "assert S.builder.master('local[1]').getOrCreate().range(5).count() == 5"
    )
    name = ("--hostname", "localhost")  # Java looks up the name of its machine
    docker.run(
        *("run", "--rm", "--network", "none", *name, "--tmpfs", "/tmp:exec", image, "python", "-c", program),  # noqa: S108
        timeout_s=_BUILT_WITHIN_S,
    )


def _seconds_until_healthy(docker: Docker, image: str) -> float:
    """How long a service takes whose broker does not answer: it waits for it, and is alive."""
    service = (
        "sqe-chain",
        "run",
        "services.fastening:standard",
        "--engine",
        "inprocess",
        "--kafka",
        "127.0.0.1:9",
    )
    container = docker.run("run", "--detach", "--network", "none", image, *service).strip()
    began = time.monotonic()
    try:
        while docker.run("inspect", "--format", "{{.State.Health.Status}}", container).strip() != "healthy":
            if time.monotonic() - began > _HEALTHY_WITHIN_S:
                raise DockerFailed(
                    f"a service in {image} is not healthy:\n{chr(10).join(docker.lines(container))}"
                )
            time.sleep(1)
    finally:
        docker.run("rm", "--force", container)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
