"""Clients of this process: created on first use, then kept; a forked child does not use its parent's."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from sqe_chain.adapters.kafka._errors import mapped
from sqe_chain.adapters.kafka._settings import OAUTH_CB, Tokens
from sqe_chain.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from sqe_chain.adapters.kafka._settings import Settings

logger = logging.getLogger("sqe_chain.adapters.kafka")


class _DropNoise(logging.Filter):
    """Drops useless lines of librdkafka's own log.

    These are warnings about settings that are intended (experimental, or for another kind of client); and,
    unless debugging, failed connections, ten lines per second: errors raised here contain the latest one.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith(("FAIL ", "ERROR ", "REQTMOUT ")):
            return logger.isEnabledFor(logging.DEBUG)
        return not (
            "CONFWARN" in text
            and any(note in text for note in ("experimental", "producer property", "consumer property"))
        )


logger.addFilter(_DropNoise())


class Faults:
    """Collects what a client's threads report: if a broker does not answer, the error names the cause."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._refused: KafkaError | None = None
        self._latest = ""
        self.tokens: Tokens | None = None

    def __call__(self, error: KafkaError) -> None:
        """Store one report; librdkafka calls this while the client is polled."""
        if error.name() in {"_AUTHENTICATION", "_SSL"}:
            self._refused = error
        elif error.name() != "_ALL_BROKERS_DOWN":
            self._latest = self._settings.scrub(error.str())

    def raise_refusal(self) -> None:
        """Raise ConfigurationError if a broker refused the login since the last call; Unavailable, if that is for want of a token."""
        refused, self._refused = self._refused, None
        if refused is not None:
            if self.tokens is not None and self.tokens.failed:
                raise Unavailable(self.tokens.failed)
            raise mapped(refused, "Logging in", self._settings)

    def why(self) -> str:
        """The latest report as the end of a sentence; empty when there is none."""
        return f" Last report: {self._latest}." if self._latest else ""


_Driver = TypeVar("_Driver")


def connect(
    make: Callable[..., _Driver], config: dict[str, object], settings: Settings
) -> tuple[_Driver, Faults]:
    """Create a client of the driver, with a collector for the reports of its threads.

    Raises:
        ConfigurationError: a property is unknown, or the driver does not accept its value.
        Unavailable: the user's function gives no token.
    """
    faults = Faults(settings)
    if OAUTH_CB in config:
        argument = str(config.get("sasl.oauthbearer.config", ""))
        faults.tokens = Tokens(str(config[OAUTH_CB]), argument)
        config = {**config, OAUTH_CB: faults.tokens}
    try:
        return make({**config, "error_cb": faults, "logger": logger}), faults
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0] if error.args else error
        text = reason.str() if isinstance(reason, KafkaError) else str(reason)
    raise ConfigurationError(settings.scrub(f"Kafka configuration cannot be used: {text}."))


class Closable(Protocol):
    """A client that a `Pool` can close."""

    def close(self) -> None:
        """Close it."""


_Client = TypeVar("_Client", bound=Closable)


class Pool(Generic[_Client]):
    """Idle clients of this process by key.

    One thread uses a client at a time, so two concurrent readers need two clients. Clients of a parent
    process stay in the pool, unused: destroying one in a forked child would hang.
    """

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[int, Hashable], list[_Client]] = defaultdict(list)

    def take(self, key: Hashable, make: Callable[[], _Client]) -> _Client:
        """An idle client, or a new one."""
        try:
            return self._idle[os.getpid(), key].pop()  # in one step: several threads take clients
        except IndexError:
            return make()

    def give_back(self, key: Hashable, client: _Client) -> None:
        """Keep a client that works for the next `take`."""
        self._idle[os.getpid(), key].append(client)

    def close(self, chosen: Callable[[Hashable], bool] = lambda _: True) -> None:
        """Close the idle clients of this process whose key is chosen."""
        for pid, key in list(self._idle):
            if pid == os.getpid() and chosen(key):
                for client in self._idle.pop((pid, key)):
                    client.close()
