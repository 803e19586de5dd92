"""The images that docker-compose.yml names: public ones or substitutes, and the project's own."""

from __future__ import annotations

from collections.abc import Callable

from services.compose_chaos.docker import ROOT, Docker

IMAGE = "sqe-chain-services"
_PULLED_OR_BUILT_WITHIN_S = 1800.0


def provide_images(docker: Docker, note: Callable[[str], None]) -> None:
    """Pull or build missing images, and always build the project's own.

    Args:
        docker: which daemon.
        note: takes what a person should know; above all, whether these are the public images.

    Raises:
        DockerFailed: an image can neither be pulled nor built.
    """
    lines = docker.command([str(ROOT / "scripts" / "stand-in-images")], _PULLED_OR_BUILT_WITHIN_S)
    for line in lines.splitlines():
        note(line)
    # The host's network, because our own daemon gives builds none.
    docker.run(
        "build", "--quiet", "--network", "host", "--tag", IMAGE, ".", timeout_s=_PULLED_OR_BUILT_WITHIN_S
    )
    note(f"{IMAGE} is built from Dockerfile")
