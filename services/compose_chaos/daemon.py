"""A Docker daemon: the running one, else our own, which leaves nothing behind except its images."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from services.compose_chaos.docker import Docker, DockerFailed
from sqe_chain.ext.dev import cache_directory
from sqe_chain.ext.dev.lock import exclusive

_START_WITHIN_S = 60.0
_STOP_WITHIN_S = 30.0
_OTHER_RUN_S = 900.0
_LINES_OF_ERROR = 8


class NoDocker(Exception):
    """There is no Docker daemon and none can be started; the text gives the reason, and what to do."""


@contextmanager
def daemon() -> Iterator[Docker]:
    """A working Docker: this machine's, else one that ends with the context.

    One of our own has a data directory in the cache, so its images stay for the next time. It has no bridge
    and touches neither packet filter nor forwarding. Networks of compose still work for containers among
    themselves; building images needs `--network host`.

    Raises:
        NoDocker: there is none, and none can be started.
        Unavailable: another run uses the one of our own, for too long.
    """
    theirs = Docker({})
    try:
        theirs.run("info")
    except DockerFailed as error:
        told = str(error).splitlines()[-1]
    else:
        yield theirs
        return
    if os.geteuid() != 0:
        raise NoDocker(f"no Docker daemon answers ({told}), and only root can start one")
    program = shutil.which("dockerd")
    if program is None:
        raise NoDocker(
            f"no Docker daemon answers ({told}), and dockerd is not installed (on Debian: apt-get install docker.io)"
        )
    data = cache_directory() / "docker"
    data.mkdir(parents=True, exist_ok=True)
    with exclusive(data.parent / "docker.lock", _OTHER_RUN_S), _own(program, data) as docker:
        yield docker


@contextmanager
def _own(program: str, data: Path) -> Iterator[Docker]:
    directory = Path(tempfile.mkdtemp(prefix="sqe-docker-"))  # a short path, because it holds sockets
    docker = Docker({"DOCKER_HOST": f"unix://{directory}/socket"})
    command = [
        *(program, "--data-root", str(data), "--exec-root", str(directory / "exec")),
        *("--pidfile", str(directory / "pid"), "--host", f"unix://{directory}/socket"),
        *("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
    ]
    # The kernel ends it when this process dies, however it dies; its containers end with it.
    setpriv = shutil.which("setpriv")
    bound = [setpriv, "--pdeathsig", "TERM", "--", *command] if setpriv else command
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            bound, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_until_it_answers(docker, process, log)
        _check_that_it_runs_containers(docker, directory)
        yield docker
        _empty(docker)
    finally:
        _stop(process)
        _unmount(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _wait_until_it_answers(docker: Docker, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while True:
        with suppress(DockerFailed):
            docker.run("info")
            return
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LINES_OF_ERROR:])
            raise NoDocker(f"dockerd does not start here; the end of its log:\n{tail}")
        time.sleep(0.2)


def _check_that_it_runs_containers(docker: Docker, directory: Path) -> None:
    """Check that containers can start: that the daemon runs does not prove it. Runs Docker's own init, a tiny program."""
    program = shutil.which("docker-init")
    if program is None:
        return
    with tarfile.open(directory / "probe.tar", "w") as image:
        image.add(Path(program).resolve(), "init")
    try:
        name = docker.run("import", str(directory / "probe.tar")).strip()
        docker.run("run", "--rm", "--network", "none", name, "/init", "--version")
        docker.run("image", "rm", name)
    except DockerFailed as error:
        raise NoDocker(f"dockerd starts here, but no container does:\n{error}") from None


def _empty(docker: Docker) -> None:
    """Remove containers, networks, volumes and images without a name; other images stay."""
    if left := docker.run("ps", "--all", "--quiet").split():
        docker.run("rm", "--force", "--volumes", *left)
    docker.run("network", "prune", "--force")
    docker.run("volume", "prune", "--force")
    docker.run("image", "prune", "--force")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unmount(directory: Path) -> None:
    """Unmount the namespaces that the daemon has left mounted."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        place = line.split()[1]
        if place.startswith(f"{directory}/"):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)  # noqa: S607
