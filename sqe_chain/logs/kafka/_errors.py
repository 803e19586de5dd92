"""Kafka's error codes to this project's errors: the one place where that is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from sqe_chain.errors import ChainError, ConfigurationError, Unavailable

if TYPE_CHECKING:
    from sqe_chain.logs.kafka._settings import Settings

CONFIGURATION = frozenset(
    {
        "CLUSTER_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTH_DISABLED",
        "DELEGATION_TOKEN_EXPIRED",
        "DELEGATION_TOKEN_NOT_FOUND",
        "DELEGATION_TOKEN_OWNER_MISMATCH",
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        "FENCED_INSTANCE_ID",
        "GROUP_AUTHORIZATION_FAILED",
        "ILLEGAL_GENERATION",
        "ILLEGAL_SASL_STATE",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_CONFIG",
        "INVALID_GROUP_ID",
        "INVALID_PARTITIONS",
        "INVALID_PRINCIPAL_TYPE",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_REPLICA_ASSIGNMENT",
        "INVALID_REQUEST",
        "INVALID_REQUIRED_ACKS",
        "INVALID_TIMESTAMP",
        "NON_EMPTY_GROUP",
        "OFFSET_METADATA_TOO_LARGE",
        "POLICY_VIOLATION",
        "PRINCIPAL_DESERIALIZATION_FAILURE",
        "REBALANCE_IN_PROGRESS",
        "SASL_AUTHENTICATION_FAILED",
        "SECURITY_DISABLED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNACCEPTABLE_CREDENTIAL",
        "UNKNOWN_MEMBER_ID",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_SASL_MECHANISM",
        "UNSUPPORTED_VERSION",
        "_AUTHENTICATION",
        "_INVALID_ARG",
        "_NOT_CONFIGURED",
        "_NOT_IMPLEMENTED",
        "_SSL",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_PROTOCOL",
        "_UNKNOWN_TOPIC",
        "_UNSUPPORTED_FEATURE",
    }
)
"""Codes that trying again does not mend; after all others, trying again is right."""

MEMBERS = frozenset({"ILLEGAL_GENERATION", "NON_EMPTY_GROUP", "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"})
"""Codes by which a broker refuses commits for a group that has members."""


def mapped(error: KafkaError | KafkaException, doing: str, settings: Settings) -> ChainError:
    """The error to raise for one of the driver's.

    A test fails when the driver gains a code that nobody has judged yet.

    Args:
        error: what the driver gave.
        doing: what was tried, to begin a sentence with: "Reading t[0] at offset 5".
        settings: names the broker, and knows what must not be shown.
    """
    if isinstance(error, KafkaException):
        error = error.args[0]
    if not isinstance(error, KafkaError):  # a bad property makes a plain ValueError or text
        return ConfigurationError(settings.scrub(f"{doing} on Kafka at {settings.bootstrap}: {error}"))
    name = error.name()
    text = settings.scrub(f"{doing} on Kafka at {settings.bootstrap} failed: {error.str()} ({name})")
    if name in MEMBERS:
        return ConfigurationError(
            f"{text}. The group has members: other consumers use its name. Stop them or rename the flow."
        )
    return ConfigurationError(f"{text}.") if name in CONFIGURATION else Unavailable(f"{text}.")
