"""Clients of this process and what their errors mean. A client is created on first use, then kept; a forked child makes its own."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sqe_chain.adapters.kafka._certificates import is_own_refused, reason_of
from sqe_chain.adapters.kafka._settings import OAUTH_CB, KafkaSettings, Tokens
from sqe_chain.errors import ChainError, ConfigurationError, GroupInUse, OutputRefused, Unavailable

_SLICE_S = 0.1
logger = logging.getLogger("sqe_chain.adapters.kafka")


class _DropNoise(logging.Filter):
    """Drops useless lines of librdkafka's own log: warnings about settings that are intended.

    Unless debugging, also failed connections, ten lines per second: errors raised here contain the latest one.
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


CONFIGURATION = frozenset((
    "CLUSTER_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_AUTH_DISABLED",
    "DELEGATION_TOKEN_EXPIRED", "DELEGATION_TOKEN_NOT_FOUND", "DELEGATION_TOKEN_OWNER_MISMATCH",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", "FENCED_INSTANCE_ID", "GROUP_AUTHORIZATION_FAILED",
    "ILLEGAL_GENERATION", "ILLEGAL_SASL_STATE", "INCONSISTENT_GROUP_PROTOCOL", "INVALID_CONFIG", "INVALID_GROUP_ID",
    "INVALID_PARTITIONS", "INVALID_PRINCIPAL_TYPE", "INVALID_REPLICATION_FACTOR", "INVALID_REPLICA_ASSIGNMENT",
    "INVALID_REQUEST", "INVALID_REQUIRED_ACKS", "INVALID_TRANSACTION_TIMEOUT", "NON_EMPTY_GROUP", "OFFSET_METADATA_TOO_LARGE",
    "PRINCIPAL_DESERIALIZATION_FAILURE", "REBALANCE_IN_PROGRESS", "SASL_AUTHENTICATION_FAILED", "SECURITY_DISABLED",
    "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNACCEPTABLE_CREDENTIAL", "UNKNOWN_MEMBER_ID", "UNSUPPORTED_COMPRESSION_TYPE",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UNSUPPORTED_SASL_MECHANISM", "UNSUPPORTED_VERSION", "_AUTHENTICATION",
    "_INVALID_ARG", "_NOT_CONFIGURED", "_NOT_IMPLEMENTED", "_SSL", "_UNKNOWN_PARTITION", "_UNKNOWN_PROTOCOL",
    "_UNKNOWN_TOPIC", "_UNSUPPORTED_FEATURE",
))  # fmt: skip
"""Codes for which retrying does not help, but changing settings or permissions does."""

REFUSALS = MappingProxyType(
    {
        "INVALID_TIMESTAMP": "its time is outside message.timestamp.before.max.ms and .after.max.ms, but inside by the "
        "clock here: correct the clocks of brokers and services, or widen the limits",
        "INVALID_RECORD": "a topic with cleanup.policy=compact takes no record without a key: set the policy to delete, "
        "or give outputs a key",
        "RECORD_LIST_TOO_LARGE": "its batch is larger than segment.bytes: raise that above max.message.bytes",
        "INVALID_MSG_SIZE": "the broker does not accept the size of its batch: check max.message.bytes",
        "POLICY_VIOLATION": "a policy of the brokers forbids it: ask whoever runs them",
        "_INVALID_DIFFERENT_RECORD": "another record of its batch was refused: check cleanup.policy (with compact, "
        "records without a key are refused)",
    }
)
"""Codes with which a broker refuses a record permanently, and what to do about it."""

_LOGIN = "check sasl.mechanism in --kafka-config, and user and password, or the token's issuer, audience and expiry"
_RIGHTS = MappingProxyType(
    {
        "TOPIC_AUTHORIZATION_FAILED": "grant the user DESCRIBE, DESCRIBE_CONFIGS, and READ (inputs) or WRITE (outputs) on "
        "the topic",
        "GROUP_AUTHORIZATION_FAILED": "grant the user READ on the group, which has the flow's name",
        "CLUSTER_AUTHORIZATION_FAILED": "grant the user WRITE on the output topics (and IDEMPOTENT_WRITE on the cluster, "
        "on brokers before 2.8)",
        "SASL_AUTHENTICATION_FAILED": _LOGIN,
        "_AUTHENTICATION": _LOGIN,
        "_SSL": "check security.protocol and the ssl properties in --kafka-config",
        "UNSUPPORTED_COMPRESSION_TYPE": "choose another compression.type in --kafka-config",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "grant the user WRITE on transactional ids that begin with the flow's name and a slash",
        "INVALID_TRANSACTION_TIMEOUT": "lower transaction.timeout.ms in --kafka-config, or raise the brokers' transaction.max.timeout.ms",
        "UNSUPPORTED_VERSION": "the broker is too old for this request; 2.8 or later is needed",
        "OFFSET_METADATA_TOO_LARGE": "raise the brokers' offset.metadata.max.bytes, or shorten the names of outputs",
    }
)
"""What to do about some of `CONFIGURATION`."""

MEMBERS = frozenset({"ILLEGAL_GENERATION", "NON_EMPTY_GROUP", "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"})
"""Codes by which a broker refuses commits for a group that has members."""


def error_for(error: KafkaError | KafkaException, doing: str, settings: KafkaSettings) -> ChainError:
    """The error to raise for an error of the driver.

    A code in neither table counts as transient. A test fails when the driver gains a code that nobody has
    classified.

    Args:
        error: the driver's error.
        doing: what was tried, as the start of a sentence: "Reading t[0] at offset 5".
        settings: for the broker's address, and to remove secrets from the text.
    """
    if isinstance(error, KafkaException):
        error = error.args[0]
    if not isinstance(error, KafkaError):  # for a bad property the driver gives a plain ValueError or text
        return ConfigurationError(settings.scrub(f"{doing} on Kafka at {settings.bootstrap}: {error}"))
    name = error.name()
    text = settings.scrub(f"{doing} on Kafka at {settings.bootstrap} failed: {error.str()} ({name})")
    if name in MEMBERS:
        return GroupInUse(
            f"{text}. The group has members: a run of the flow is alive (or was killed a few seconds ago), or other consumers use "
            "its name. Stop them, or rename the flow."
        )
    if name in REFUSALS:
        return OutputRefused(
            f"{text}: {REFUSALS[name]}. The sealed batch is published when the service starts again."
        )
    if name not in CONFIGURATION or (name == "_AUTHENTICATION" and settings.by_tokens):
        return Unavailable(f"{text}.")  # a token may have expired: `Faults` finds out
    return ConfigurationError(f"{text}: {_RIGHTS[name]}." if name in _RIGHTS else f"{text}.")


_ISSUER = "Failed to acquire SASL OAUTHBEARER token"
"""How the driver's report begins that an issuer has given no token."""
_REFUSED_BY_ISSUER = re.compile(
    r"access_denied|invalid_(client|grant|request|scope)|unauthorized_client|unsupported_grant_type|unexpired"
)
"""Answers of an issuer after which asking again does not help (RFC 6749, 5.2), and tokens that are old. Others are outages."""


class Faults:
    """Collects what a client's threads report: if a broker does not answer, the error names the cause."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._refused: KafkaError | None = None
        self._latest = ""
        self._no_token = (
            ""  # the latest reason of an issuer that is away; a token that was given before may still count
        )
        self.tokens: Tokens | None = None

    def __call__(self, error: KafkaError) -> None:
        """Store one report; librdkafka calls this while the client is polled."""
        text = self._settings.scrub(error.str())
        if _ISSUER in text and not _REFUSED_BY_ISSUER.search(text):
            self._latest = self._no_token = text
        elif error.name() in {"_AUTHENTICATION", "_SSL"} or is_own_refused(text):
            self._refused = error
        elif error.name() != "_ALL_BROKERS_DOWN":
            self._latest = text

    def raise_refusal(self) -> None:
        """Raise ConfigurationError if a broker or issuer has refused the login since the last call; Unavailable, if there was no token."""
        refused = self.take_refusal()
        if refused is None:
            return
        away = self._no_token or (self.tokens.failed if self.tokens is not None else "")
        if away:  # the broker has refused a token that has expired since
            raise Unavailable(away)
        if self._settings.by_tokens:
            refused = refuse_anew(self._settings)
        if refused is not None:
            raise login_error(refused, self._settings)

    def take_refusal(self) -> KafkaError | None:
        """The latest refusal since the last call."""
        refused, self._refused = self._refused, None
        return refused

    def why(self) -> str:
        """The latest report as the end of a sentence; empty when there is none."""
        return f" Last report: {self._latest}." if self._latest else ""


def login_error(refused: KafkaError, settings: KafkaSettings) -> ChainError:
    """The error for a login that was refused; for one by TLS also why."""
    reason = reason_of(refused.str(), settings)
    if not reason and refused.name() != "_SSL":
        reason = f" ({refused.name()})"
    advice = _RIGHTS["_AUTHENTICATION" if refused.name() == "_AUTHENTICATION" else "_SSL"]
    text = settings.scrub(f"Logging in on Kafka at {settings.bootstrap} failed: {refused.str()}{reason}")
    return ConfigurationError(f"{text}: {advice}.")


class KafkaClient:
    """A client of the driver, and what its threads report.

    Args:
        settings: of the log.
        make: the driver's class.
        config: its properties.

    Attributes:
        driver: the driver's client.

    Raises:
        ConfigurationError: a property is unknown, or the driver does not accept its value.
        Unavailable: the user's function gives no token.
    """

    def __init__(self, settings: KafkaSettings, make: Callable[..., Any], config: dict[str, object]) -> None:
        self._settings = settings
        self._connect(make, config)

    def _connect(self, make: Callable[..., Any], config: dict[str, object]) -> None:
        self._faults = Faults(self._settings)
        if OAUTH_CB in config:
            argument = str(config.get("sasl.oauthbearer.config", ""))
            self._faults.tokens = Tokens(str(config[OAUTH_CB]), argument)
            config = {**config, OAUTH_CB: self._faults.tokens}
        try:
            self.driver: Any = make({**config, "error_cb": self._faults, "logger": logger})
        except (KafkaException, ValueError, TypeError) as error:
            reason = error.args[0] if error.args else error
            text = reason.str() if isinstance(reason, KafkaError) else str(reason)
        else:
            return
        raise ConfigurationError(self._settings.scrub(f"Kafka configuration cannot be used: {text}."))

    def close(self) -> None:
        """Close the driver's client."""
        with suppress(KafkaException, RuntimeError):
            self.driver.close()

    def _serve(self, wait_s: float, doing: str) -> None:
        """Serve the reports and logs of the client's threads; raise their error."""
        try:
            self.driver.poll(wait_s)
        except KafkaException as error:
            raise error_for(error, doing, self._settings) from None

    def poll_refusal(self) -> KafkaError | None:
        """How the broker has refused the login since the last call."""
        self.driver.poll(0)
        return self._faults.take_refusal()

    def _protocol(self) -> str:
        return dict(self._settings.config).get("security.protocol", "PLAINTEXT").upper()

    def no_answer(self, doing: str) -> Unavailable:
        """The error after waiting too long."""
        issuer = " Does the issuer of its tokens answer?" if self._settings.by_tokens else ""
        return Unavailable(
            f"{doing}: Kafka at {self._settings.bootstrap} did not answer within {self._settings.timeout_s:g} s."
            f"{self._faults.why()} Is it running, reachable from here, and is security.protocol={self._protocol()} right?{issuer}"
        )


def refuse_anew(settings: KafkaSettings) -> KafkaError | None:
    """How the broker refuses a new client; None: it does not.

    A client that is idle is refused when its token expires, or when the broker asks for a new one at that moment. It logs in again by
    itself. So only what a new client meets is a refusal.

    Raises:
        Unavailable: neither the broker nor the issuer gives an answer.
    """
    client = KafkaClient(settings, AdminClient, settings.client({}, {}))
    answer = client.driver.describe_cluster(request_timeout=settings.timeout_s)
    deadline = time.monotonic() + settings.timeout_s
    while time.monotonic() < deadline:
        with suppress(FutureTimeout, KafkaException):
            answer.result(_SLICE_S)
            return None
        refused = client.poll_refusal()
        if refused is not None:
            return refused
    raise client.no_answer("Logging in")


class Closable(Protocol):
    """A client that a `Pool` can close."""

    def close(self) -> None:
        """Close it."""


_Client = TypeVar("_Client", bound=Closable)


class Pool(Generic[_Client]):
    """Idle clients of this process by key. One thread uses a client at a time.

    Clients of a parent process stay in the pool, unused: destroying one in a forked child would hang.
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
