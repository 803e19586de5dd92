"""Bounds and headers of every answer: no large body is read, and a page runs no code of others."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MOST_BODY: Final = 64 << 10
_SECURITY: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _TooLarge(Exception):
    """A body that is larger than any that is needed."""


class Bounded:
    """Refuses bodies of more than 64 KiB, however they come, and adds the headers of `_SECURITY`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        taken, begun = 0, False

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > _MOST_BODY:
                raise _TooLarge
            return message

        async def secured(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message).update(_SECURITY)
            await send(message)

        too_large = PlainTextResponse(
            f"a body has at most {_MOST_BODY} bytes\n", 413, {"Connection": "close"}
        )
        if not length.isdigit() or int(length) > _MOST_BODY:
            await too_large(scope, receive, secured)
            return
        try:
            await self._app(scope, bounded, secured)
        except _TooLarge:
            if not begun:
                await too_large(scope, receive, secured)
