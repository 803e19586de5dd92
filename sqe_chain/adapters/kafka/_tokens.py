"""Login tokens from a function of the user, for SASL/OAUTHBEARER."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from sqe_chain.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

OAUTH_CB = "oauth_cb"
"""The property that names the function, as module:function."""

_RETRY_S = 10.0
"""How soon a function that has failed is asked again."""


class Tokens:
    """What a client calls for a token, when it begins and whenever one expires.

    The function is asked before the client is made, for what it raises may not pass through the driver. If it fails later, the
    driver gets the last token once more, and asks again soon: the token server may be away for a while.

    Args:
        place: the function, as module:function: ``configuration -> (token, when it expires in seconds since 1970, …)``; more
            as `oauth_cb` of confluent-kafka may return.
        argument: what the client will give it, the property sasl.oauthbearer.config.

    Attributes:
        failed: why the last call failed, as a sentence; "" when it did not.

    Raises:
        ConfigurationError: there is no such function, or it returns something else.
        Unavailable: it failed.
    """

    def __init__(self, place: str, argument: str) -> None:
        self._place, self._function = place, _imported(place)
        self.failed = ""
        self._latest: tuple[Any, ...] = ()
        self._ask(argument)
        if self.failed:
            raise Unavailable(self.failed)
        self._fresh = True

    def __call__(self, argument: str) -> tuple[Any, ...]:
        """A token, for the driver."""
        if not self._fresh:
            self._ask(argument)
        self._fresh = False
        token, expires_s, *more = self._latest
        return (token, time.time() + _RETRY_S if self.failed else expires_s, *more)

    def _ask(self, argument: str) -> None:
        try:
            given = self._function(argument)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            # Its text may hold what nobody should read.
            self.failed = f"Kafka property {OAUTH_CB}={self._place}: {type(error).__name__} was raised."
            return
        if not (isinstance(given, tuple) and [type(one) for one in given[:2]] in _SHAPES):
            found = (
                [type(one).__name__ for one in given] if isinstance(given, tuple) else type(given).__name__
            )
            raise ConfigurationError(
                f"Kafka property {OAUTH_CB}={self._place}: returned {found}. Expected (token, when it expires in seconds since 1970)."
            )
        self._latest, self.failed = given, ""


_SHAPES = [[str, int], [str, float]]


def _imported(place: str) -> Callable[[str], Any]:
    module, _, name = place.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"Kafka property {OAUTH_CB}={place}: {error}. Expected module:function, with the module on Python's path of every process."
        ) from None
    if not callable(found):
        raise ConfigurationError(
            f"Kafka property {OAUTH_CB}={place}: not a function. Expected module:function."
        )
    return found  # type: ignore[no-any-return]
