"""A broker with a listener for each kind of login, all over TLS; and the properties of clients for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka.admin

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.ext.dev import KafkaServer
from tests.support.certificates import Authority, Credentials
from tests.support.issuer import AUDIENCE, CLIENT, SECRET, Issuer
from tests.support.waiting import PATIENCE_S

driver: Any = confluent_kafka.admin

USER: Final = "ann"
PASSWORD: Final = "hush-hush"  # noqa: S105 - opens nothing but a server of this test
_SECURITY: Final = "org.apache.kafka.common.security"
_LISTENERS: Final = {
    "TLS": "SSL", "MUTUAL": "SSL", "EXPIRED": "SSL", "ELSEWHERE": "SSL", "PASSWORDS": "SASL_SSL", "TOKENS": "SASL_SSL",
}  # fmt: skip
LOGINS: Final = ("tls", "mutual-tls", "plain", "scram-sha-256", "scram-sha-512", "oidc", "callback")


@dataclass(frozen=True, slots=True)
class GuardedBroker:
    """A broker, its issuer, and who has signed its certificates.

    Attributes:
        authority: of the broker's certificates, and of those that it accepts.
        stranger: another authority, which nobody here trusts.
        client: credentials of a client.
    """

    server: KafkaServer
    issuer: Issuer
    authority: Authority
    stranger: Authority
    client: Credentials

    def log(self, login: str, listener: str = "", timeout_s: float = 10.0, **changes: str | None) -> KafkaLog:
        """A log that logs in.

        Args:
            login: one of `LOGINS`.
            listener: another listener than the login's own.
            timeout_s: of the log.
            changes: properties that differ, with underscores for dots; None removes one.
        """
        config = self.config(login) | {name.replace("_", "."): value for name, value in changes.items()}
        given = {name: value for name, value in config.items() if value is not None}
        if "oauth.cb" in given:
            given["oauth_cb"] = given.pop("oauth.cb")
        return KafkaLog(self.server.address(listener or listener_of(login)), given, timeout_s=timeout_s)

    def config(self, login: str) -> dict[str, str | None]:
        """The properties of a client for one of `LOGINS`."""
        trust = {"ssl.ca.location": str(self.authority.certificate)}
        own = {
            "ssl.certificate.location": str(self.client.certificate),
            "ssl.key.location": str(self.client.key),
        }
        over_tls = {"security.protocol": "SASL_SSL", **trust}
        password = {**over_tls, "sasl.username": USER, "sasl.password": PASSWORD}
        tokens = {**over_tls, "sasl.mechanism": "OAUTHBEARER"}
        configs: dict[str, Mapping[str, str]] = {
            "tls": {"security.protocol": "SSL", **trust},
            "mutual-tls": {"security.protocol": "SSL", **trust, **own},
            "plain": {**password, "sasl.mechanism": "PLAIN"},
            "scram-sha-256": {**password, "sasl.mechanism": "SCRAM-SHA-256"},
            "scram-sha-512": {**password, "sasl.mechanism": "SCRAM-SHA-512"},
            "oidc": {
                **tokens,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": CLIENT,
                "sasl.oauthbearer.client.secret": SECRET,
                "sasl.oauthbearer.token.endpoint.url": f"{self.issuer.url}/token",
            },
            "callback": {
                **tokens,
                "oauth_cb": "tests.support.issuer:token",
                "sasl.oauthbearer.config": self.issuer.url,
            },
        }
        return dict(configs[login])


def listener_of(login: str) -> str:
    """The listener for one of `LOGINS`."""
    special = {"tls": "TLS", "mutual-tls": "MUTUAL", "oidc": "TOKENS", "callback": "TOKENS"}
    return special.get(login, "PASSWORDS")


@contextmanager
def guarded_broker(directory: Path) -> Iterator[GuardedBroker]:
    """A broker for all of `LOGINS`, with the user and an issuer."""
    authority, stranger = Authority(directory, "authority"), Authority(directory, "stranger")
    with Issuer(directory) as issuer:
        properties = _properties(authority, issuer)
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/keys"
        with KafkaServer(
            fast_boot=True, listeners=_LISTENERS, properties=properties, java_options=[allowed]
        ) as server:
            _add_user(server.bootstrap)
            yield GuardedBroker(server, issuer, authority, stranger, authority.issue("client"))


def _properties(authority: Authority, issuer: Issuer) -> dict[str, str]:
    stores = {
        "TLS": authority.issue("broker"),
        "MUTUAL": authority.issue("broker"),
        "PASSWORDS": authority.issue("broker"),
        "TOKENS": authority.issue("broker"),
        "EXPIRED": authority.issue("expired", days=-1),
        "ELSEWHERE": authority.issue("elsewhere", host="DNS:elsewhere.example"),
    }
    properties = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.certificate)}
    for listener, credentials in stores.items():
        properties[f"listener.name.{listener.lower()}.ssl.keystore.type"] = "PEM"
        properties[f"listener.name.{listener.lower()}.ssl.keystore.location"] = str(credentials.both)
    passwords, tokens = "listener.name.passwords", "listener.name.tokens"
    scram = f"{_SECURITY}.scram.ScramLoginModule required;"
    return properties | {
        "listener.name.mutual.ssl.client.auth": "required",
        f"{passwords}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{passwords}.plain.sasl.jaas.config": f'{_SECURITY}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        f"{passwords}.scram-sha-256.sasl.jaas.config": scram,
        f"{passwords}.scram-sha-512.sasl.jaas.config": scram,
        f"{tokens}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{tokens}.oauthbearer.sasl.jaas.config": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
        f"{tokens}.oauthbearer.sasl.server.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        # A session ends with its token.
        f"{tokens}.oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwt.validator.class": f"{_SECURITY}.oauthbearer.BrokerJwtValidator",
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/keys",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": issuer.url,
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }


def _add_user(bootstrap: str) -> None:
    admin = driver.AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (driver.ScramMechanism.SCRAM_SHA_256, driver.ScramMechanism.SCRAM_SHA_512):
        info = driver.ScramCredentialInfo(mechanism, 4096)
        upsert = driver.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([upsert]).values():
            done.result(PATIENCE_S)
