"""Maps Kafka's error codes to errors of this library."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from sqe_chain.errors import ChainError, ConfigurationError, OutputRefused, Unavailable

if TYPE_CHECKING:
    from sqe_chain.adapters.kafka._settings import Settings

CONFIGURATION = frozenset((
    "CLUSTER_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_AUTH_DISABLED",
    "DELEGATION_TOKEN_EXPIRED", "DELEGATION_TOKEN_NOT_FOUND", "DELEGATION_TOKEN_OWNER_MISMATCH",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", "FENCED_INSTANCE_ID", "GROUP_AUTHORIZATION_FAILED",
    "ILLEGAL_GENERATION", "ILLEGAL_SASL_STATE", "INCONSISTENT_GROUP_PROTOCOL", "INVALID_CONFIG", "INVALID_GROUP_ID",
    "INVALID_PARTITIONS", "INVALID_PRINCIPAL_TYPE", "INVALID_REPLICATION_FACTOR", "INVALID_REPLICA_ASSIGNMENT",
    "INVALID_REQUEST", "INVALID_REQUIRED_ACKS", "NON_EMPTY_GROUP", "OFFSET_METADATA_TOO_LARGE",
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

_RIGHTS = MappingProxyType(
    {
        "TOPIC_AUTHORIZATION_FAILED": "grant the user DESCRIBE, DESCRIBE_CONFIGS, and READ (inputs) or WRITE (outputs) on "
        "the topic",
        "GROUP_AUTHORIZATION_FAILED": "grant the user READ on the group, which has the flow's name",
        "CLUSTER_AUTHORIZATION_FAILED": "grant the user what it asked for on the cluster (IDEMPOTENT_WRITE on brokers "
        "before 2.8)",
        "SASL_AUTHENTICATION_FAILED": "check sasl.mechanism, user and password in --kafka-config",
        "_AUTHENTICATION": "check sasl.mechanism, user and password in --kafka-config",
        "_SSL": "check security.protocol and the ssl properties in --kafka-config",
        "UNSUPPORTED_COMPRESSION_TYPE": "choose another compression.type in --kafka-config",
        "UNSUPPORTED_VERSION": "the broker is too old for this request; 2.8 or later is needed",
        "OFFSET_METADATA_TOO_LARGE": "raise the brokers' offset.metadata.max.bytes, or shorten the names of outputs",
    }
)
"""What to do about some of `CONFIGURATION`."""

MEMBERS = frozenset({"ILLEGAL_GENERATION", "NON_EMPTY_GROUP", "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"})
"""Codes by which a broker refuses commits for a group that has members."""


def mapped(error: KafkaError | KafkaException, doing: str, settings: Settings) -> ChainError:
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
        return ConfigurationError(
            f"{text}. The group has members: other consumers use its name. Stop them or rename the flow."
        )
    if name in REFUSALS:
        return OutputRefused(
            f"{text}: {REFUSALS[name]}. The sealed batch is published when the service starts again."
        )
    if name not in CONFIGURATION:
        return Unavailable(f"{text}.")
    return ConfigurationError(f"{text}: {_RIGHTS[name]}." if name in _RIGHTS else f"{text}.")
