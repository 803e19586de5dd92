"""The names and versions in docker-compose.yml, in its substitute images and in the development servers agree."""

from __future__ import annotations

import re
from pathlib import Path

from services.compose_chaos.docker import IMAGE
from sqe_chain.ext.dev.jars import CASSANDRA, KAFKA

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
SCRIPT = (ROOT / "scripts" / "stand-in-images").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")


OBSERVING = {"prom/prometheus:v3.5.0", "grafana/grafana:12.1.0"}
"""Images of the profile `observe`, which the chaos runs do not start."""


def images() -> set[str]:
    stages = re.findall(
        r"^FROM (\S+) AS (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    bases = {base for base, _ in stages} - {name for _, name in stages}
    return (set(re.findall(r"^ +image: (\S+)", COMPOSE, re.MULTILINE)) | bases) - {IMAGE}


def test_every_public_image_has_a_substitute_and_is_in_the_docs() -> None:
    known = re.search(r"declare -A public=\((.*)\)", SCRIPT)
    assert known
    assert set(re.findall(r"\]=(\S+)", known[1])) == images() - OBSERVING
    assert {image for image in images() if f"`{image}`" not in PAGE} == set()


def test_substitute_images_have_the_version_in_their_name() -> None:
    assert f"apache/kafka:{KAFKA.version}" in images()
    assert f"cassandra:{CASSANDRA.version.rpartition('.')[0]}" in images()


def test_every_setting_is_in_the_docs() -> None:
    settings = set(re.findall(r"\$\{(\w+):-", COMPOSE))
    assert settings
    assert {name for name in settings if f"`{name}`" not in PAGE} == set()


def test_every_service_is_in_the_docs() -> None:
    body = COMPOSE.partition("\nservices:\n")[2].partition("\nvolumes:\n")[0]
    assert {
        name for name in re.findall(r"^  ([\w-]+):", body, re.MULTILINE) if f"`{name}`" not in PAGE
    } == set()
