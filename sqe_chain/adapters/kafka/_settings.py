"""The settings of clients: addresses, the user's properties, and the ones exactness depends on."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqe_chain.errors import ChainError, ConfigurationError, Unavailable

OAUTH_CB = "oauth_cb"
"""The property that names the function, as module:function."""

_RETRY_S = 10.0
"""How soon a function that has failed is asked again."""


class Tokens:
    """What a client calls for a token, when it begins and whenever one expires.

    The function is asked before the client is made, for its exceptions may not pass through the driver. If it fails later, the
    driver gets the last token again, and asks again soon: the token server may be away for a while.

    Args:
        place: the function, as module:function: ``configuration -> (token, when it expires in seconds since 1970, …)``; more
            as `oauth_cb` of confluent-kafka may return.
        argument: what the client will give it, the property sasl.oauthbearer.config.

    Attributes:
        failed: why the last call failed, as a sentence; "" when it did not.

    Raises:
        ConfigurationError: there is no such function, it returns something else, or it has raised this.
        Unavailable: it failed.
    """

    def __init__(self, place: str, argument: str) -> None:
        self._place, self._function = place, _import_function(place)
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
            given = self._check(self._function(argument))
        except Exception as error:
            if isinstance(error, ConfigurationError) and not self._latest:
                raise
            # Texts of others may hold what nobody should read.
            why = str(error) if isinstance(error, ChainError) else f"{type(error).__name__} was raised."
            self.failed = f"Kafka property {OAUTH_CB}={self._place}: {why}"
        else:
            self._latest, self.failed = given, ""

    def _check(self, given: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code may return anything
        if not (isinstance(given, tuple) and [type(value) for value in given[:2]] in _SHAPES):
            kinds = (
                [type(value).__name__ for value in given]
                if isinstance(given, tuple)
                else type(given).__name__
            )
            raise ConfigurationError(
                f"Kafka property {OAUTH_CB}={self._place}: returned {kinds}. Expected (token, when it expires in seconds since 1970)."
            )
        left_s = given[1] - time.time()
        if left_s <= 0:
            raise ConfigurationError(
                f"Kafka property {OAUTH_CB}={self._place}: the token that it returned expired {-left_s:.0f} s ago. Expected one that is "
                "valid. Check the clocks of this machine and of the issuer."
            )
        return given


_SHAPES = [[str, int], [str, float]]


def _import_function(place: str) -> Callable[[str], Any]:
    module, _, name = place.partition(":")
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"Kafka property {OAUTH_CB}={place}: {error}. Expected module:function, with the module on Python's path of every process."
        ) from None
    if not callable(function):
        raise ConfigurationError(
            f"Kafka property {OAUTH_CB}={place}: not a function. Expected module:function."
        )
    return function  # type: ignore[no-any-return]


REFUSED = {
    "acks": "an output counts as written when all in-sync replicas have it",
    "auto.offset.reset": "a lost position must stop the service, not jump",
    "check.crcs": "a damaged record must be noticed",
    "delivery.report.only.error": "the writer depends on it",
    "delivery.timeout.ms": "a record given up in the middle would be a hole",
    "enable.auto.commit": "offsets are committed last, by the protocol",
    "enable.auto.offset.store": "offsets are committed last, by the protocol",
    "enable.gapless.guarantee": "outputs must land without holes",
    "enable.idempotence": "outputs must land in order and once",
    "enable.partition.eof": "the reader depends on it",
    "fetch.message.max.bytes": "set max.partition.fetch.bytes instead",
    "group.id": "the group is the flow's name",
    "group.instance.id": "partitions are assigned by the driver",
    "group.protocol": "partitions are assigned by the driver",
    "isolation.level": "records of open and aborted transactions must not be counted",
    "max.in.flight": "two requests in flight may land swapped",
    "max.in.flight.requests.per.connection": "two requests in flight may land swapped",
    "message.max.bytes": "it follows the topic's max.message.bytes",
    "message.send.max.retries": "a record given up in the middle would be a hole",
    "message.timeout.ms": "a record given up in the middle would be a hole",
    "metadata.broker.list": "brokers are given by --kafka",
    "bootstrap.servers": "brokers are given by --kafka",
    "on_delivery": "the writer depends on it",
    "queuing.strategy": "outputs must keep their order",
    "request.required.acks": "an output counts as written when all in-sync replicas have it",
    "retries": "a record given up in the middle would be a hole",
    "transactional.id": "declare Flow(transactional=True) for outputs in transactions; the ids are the flow's",
}
"""Properties a user may not set, and why."""

_SECRET = re.compile(
    r"password|secret|token|credential|jaas|\.key\b|\.pem$|oauthbearer\.config", re.IGNORECASE
)

_COMMON = {
    "log.connection.close": "false",  # brokers close idle connections: not worth a line
    "reconnect.backoff.max.ms": "1000",  # notice within a second that a broker is back
}

READER = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",
    "check.crcs": "true",
    "isolation.level": "read_committed",
    "enable.partition.eof": "true",
    "group.id": "sqe-chain-reader",  # librdkafka requires one; this consumer never joins or commits
}
READER_TUNING = {
    "fetch.queue.backoff.ms": "2",  # the default, 1,000, caps a consumer at 0.3 M messages/s
    "queued.min.messages": "2000",  # records fetched beyond the end of a range are discarded
    "queued.max.messages.kbytes": "32768",
    "max.partition.fetch.bytes": "1048576",
    "fetch.wait.max.ms": "3",  # an empty answer signals the end of a partition; do not wait 500 ms for it
    "fetch.error.backoff.ms": "50",
    "max.poll.interval.ms": "86400000",  # a cached consumer is idle between batches
}
MEMBER = {
    "group.instance.id": "sqe-chain",  # one for all runs of a flow: so a newer one takes the place of an older one
    "group.protocol": "classic",  # KIP-848 refuses the newer one instead, until the session of the older one has ended
    "partition.assignment.strategy": "range",
    "max.poll.interval.ms": "86400000",  # it is polled when something is committed
}
MEMBER_TUNING = {
    "session.timeout.ms": "10000",  # for so long a run that was killed counts as alive
    "heartbeat.interval.ms": "2000",
}
WRITER = {
    "acks": "all",
    "enable.idempotence": "true",
    "enable.gapless.guarantee": "true",
    "max.in.flight.requests.per.connection": "1",
    "message.timeout.ms": "0",  # never drop one record and send the next; the flush has its own time limit
}
WRITER_TUNING = {
    "linger.ms": "5",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "50000",  # of each of several producers, as the bytes
    "retry.backoff.ms": "100",
}
TRANSACTIONAL_RETRY_MS = 250
"""`retry.backoff.ms` of producers with transactions; a commit that was answered sooner was sent once: see `_transactions`."""
TRANSACTIONAL_TUNING = {
    "transaction.timeout.ms": "60000",  # if nobody starts the service again, readers wait so long
}


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings:
    """All settings of the clients of one log; hashable: the key in the pools of a process.

    Attributes:
        bootstrap: `host:port`, several separated by commas.
        config: the user's librdkafka properties, sorted; may hold secrets.
        timeout_s: how long a request to the broker may take.
        flush_s: how long a flush may take.
    """

    bootstrap: str
    config: tuple[tuple[str, str], ...]
    timeout_s: float
    flush_s: float

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.config)
        return f"KafkaSettings({self.bootstrap!r}, config of [{names}])"

    @property
    def by_tokens(self) -> bool:
        """Whether clients log in with tokens, which expire."""
        given = dict(self.config)
        return given.get("sasl.mechanism", given.get("sasl.mechanisms", "")).upper() == "OAUTHBEARER"

    def scrub(self, text: str) -> str:
        """The text without the values of the secret properties."""
        for name, value in self.config:
            if value and _SECRET.search(name):
                text = text.replace(value, "***")
        return text

    def client(self, fixed: Mapping[str, str], tuning: Mapping[str, str]) -> dict[str, object]:
        """The properties of one client: the user's override tuning, and fixed ones override the user's."""
        return {**_COMMON, **tuning, **dict(self.config), **fixed, "bootstrap.servers": self.bootstrap}


def settings(bootstrap: str, config: Mapping[str, str], timeout_s: float, flush_s: float) -> KafkaSettings:
    """Settings, checked. Raises ConfigurationError: no broker, a timeout that is not positive, or a property that is refused."""
    if not bootstrap.strip():
        raise ConfigurationError("No Kafka broker given; expected host:port, several separated by commas.")
    if timeout_s <= 0 or flush_s <= 0:
        raise ConfigurationError(f"Kafka timeouts must be positive; found {timeout_s} s and {flush_s} s.")
    place = config.get(OAUTH_CB, "module:function")
    if not (isinstance(place, str) and _PLACE.fullmatch(place)):
        raise ConfigurationError(
            f"Kafka property {OAUTH_CB}={place!r}. Expected the function's place as text, module:function: every process imports it."
        )
    for name in sorted(config):
        if name in REFUSED:
            raise ConfigurationError(
                f"Kafka property {name!r} cannot be set: {REFUSED[name]}. Remove it from the configuration."
            )
    return KafkaSettings(bootstrap.strip(), tuple(sorted(config.items())), timeout_s, flush_s)


_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LINE = re.compile(r"([A-Za-z][\w.]*)\s*=\s*(.*)")
_NAME = re.compile(r"\$\{(\w+)\}")


def load_config(path: str | Path) -> dict[str, str]:
    """Read librdkafka properties from a file, for `KafkaLog`.

    Each line is `name=value`; empty lines and lines that begin with `#` are skipped. `${NAME}` in a value is replaced by the
    environment variable of that name, so that secrets can stay out of the file.

    Args:
        path: the file, UTF-8.

    Raises:
        ConfigurationError: the file cannot be read, or a line is not of that form. The text has the line number, never the value.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Kafka configuration {path} cannot be read: {error}") from None
    config: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        where = f"Kafka configuration {path}, line {number}"
        match = _LINE.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"{where}: expected name=value.")
        name, value = match.groups()
        if name in config:
            raise ConfigurationError(f"{where}: {name} is set twice.")
        if not value:
            raise ConfigurationError(f"{where}: {name} has no value.")
        for variable in _NAME.findall(value):
            if variable not in os.environ:
                raise ConfigurationError(
                    f"{where}: the environment variable {variable} for {name} is not set."
                )
        config[name] = _NAME.sub(lambda match: os.environ[match.group(1)], value)
    return config
