"""Login tokens that Kafka accepts without a token server: not signed."""

from __future__ import annotations

import base64
import json
import time

LIVES_S = 3_600
broken = False
"""Whether `unsteady` fails."""


def token(configuration: str) -> tuple[str, float]:
    """A token for ann, or for nobody where that is asked for."""
    now_s = time.time()
    claims = {"iat": now_s, "exp": now_s + LIVES_S}
    if configuration != "nobody":
        claims["sub"] = "ann"  # type: ignore[assignment]
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims)
    ]
    return ".".join((*parts, "")), now_s + LIVES_S


def failing(configuration: str) -> tuple[str, float]:
    """Raises what nobody should read."""
    raise OSError(f"no answer, and here is a secret: hush {configuration}")


def unsteady(configuration: str) -> tuple[str, float]:
    """A token, or an error while `broken` is set."""
    return failing(configuration) if broken else token(configuration)


def shapeless(configuration: str) -> str:
    """Returns something else."""
    return f"hush {configuration}"
