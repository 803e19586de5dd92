"""An issuer of tokens: a token endpoint for client credentials, and its public key, over HTTP.

Tokens are JSON Web Tokens signed by RSA keys of openssl. Workers import this module for `token`.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

CLIENT: Final = "totals"
SECRET: Final = "hush-hush"  # noqa: S105 - opens nothing but a server of this test
AUDIENCE: Final = "kafka"
_EXPONENT: Final = "AQAB"


class Issuer:
    """Issues tokens while the block lasts.

    Args:
        directory: for its keys.

    Attributes:
        lives_s: of the tokens from now on.
        audience: of the tokens from now on.
        away: whether it hangs up without an answer.
        genuine: whether it signs with the key that it publishes.
        issued: how many tokens it has given.
    """

    def __init__(self, directory: Path) -> None:
        self._keys = [_key(directory / f"{name}.key") for name in ("genuine", "other")]
        self.lives_s = 3_600.0
        self.audience = AUDIENCE
        self.away = False
        self.genuine = True
        self.issued = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Its own name, as tokens have it."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def token(self) -> dict[str, object]:
        """What the token endpoint answers."""
        self.issued += 1
        now_s = time.time()
        claims: dict[str, object] = {"sub": CLIENT, "iss": self.url, "aud": self.audience}
        claims |= {"iat": now_s, "exp": now_s + self.lives_s}
        signed = ".".join(map(_part, ({"alg": "RS256", "typ": "JWT", "kid": "1"}, claims)))
        signature = _openssl(
            "dgst", "-sha256", "-sign", str(self._keys[not self.genuine]), data=signed.encode()
        )
        token = f"{signed}.{_base64(signature)}"
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.lives_s}

    def keys(self) -> dict[str, object]:
        """Its public key as a JSON Web Key Set."""
        modulus = _openssl("rsa", "-noout", "-modulus", "-in", str(self._keys[0])).decode().strip()
        number = bytes.fromhex(modulus.partition("=")[2])
        key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": _base64(number), "e": _EXPONENT}
        return {"keys": [key]}


def _handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, issuer.keys())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            if issuer.away:
                self.close_connection = True
            elif self.headers.get("Authorization") != f"Basic {login}":
                self._answer(401, {"error": "invalid_client"})
            else:
                self._answer(200, issuer.token())

        def _answer(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def token(url: str) -> tuple[str, float]:
    """A token for `oauth_cb`, by way of the issuer at this URL."""
    login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
    form = urllib.parse.urlencode({"grant_type": "client_credentials"}).encode()
    request = urllib.request.Request(f"{url}/token", form, {"Authorization": f"Basic {login}"})  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - ours
        given: dict[str, Any] = json.load(answer)
    return str(given["access_token"]), time.time() + float(given["expires_in"])


def _key(path: Path) -> Path:
    _openssl("genrsa", "-out", str(path), "2048")
    return path


def _part(content: object) -> str:
    return _base64(json.dumps(content).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _openssl(*arguments: str, data: bytes = b"") -> bytes:
    done = subprocess.run(["openssl", *arguments], input=data, check=True, capture_output=True)
    return done.stdout
