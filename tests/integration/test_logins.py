"""Logins to a real broker, over TLS: right ones serve every kind of client, wrong ones end by name, and tokens that expire are renewed."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from sqe_chain.adapters import open_store
from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.engines.spark import SparkEngine, Tuning
from sqe_chain.engines.workers import Team, WorkersEngine
from sqe_chain.errors import ChainError, ConfigurationError, Unavailable
from sqe_chain.flow import Flow
from sqe_chain.plans.environment import Engine
from sqe_chain.ports import Commit, Range, StateStore
from tests.support.certificates import Authority
from tests.support.docs_examples import ROOT
from tests.support.engine_runs import INPUT_PARTITIONS, Made, Names, Run, feed, shuffled
from tests.support.issuer import AUDIENCE
from tests.support.logins import LOGINS, GuardedBroker, guarded_broker
from tests.support.waiting import PATIENCE_S, eventually, retry_until_available

LIVES_S: Final = 4.0
"""How long tokens live in tests where they expire."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with guarded_broker(tmp_path_factory.mktemp("logins")) as made:
        yield made


@pytest.fixture
def issuing(broker: GuardedBroker) -> Iterator[GuardedBroker]:
    """The broker, whose issuer a test may change."""
    yield broker
    issuer = broker.issuer
    issuer.lives_s, issuer.audience, issuer.away, issuer.genuine = 3_600.0, AUDIENCE, False, True


def use(log: KafkaLog, topic: str, count: int) -> None:
    """Use each kind of client: the admin's, a producer, consumers that read and that commit.

    Args:
        log: to use.
        topic: exists, with one partition.
        count: how many records it has.
    """
    group = f"g-{topic}"
    writer = log.writer()
    writer.write([(topic, 0, None, b"%d" % count, None, 0)])
    writer.flush()
    writer.close()
    about = log.describe([topic])[topic]
    assert log.bounds([(topic, 0)])[topic, 0].stable_end == count + 1
    blocks = log.read(Range(topic, about.topic_id, 0, 0, count + 1))
    assert [int(m.value() or b"-1") for block in blocks for m in block] == [*range(count + 1)]
    log.commit(group, {(topic, 0): Commit(count + 1, "m")})
    assert log.committed(group, [(topic, 0)]) == {(topic, 0): Commit(count + 1, "m")}


def new_topic(log: KafkaLog) -> str:
    topic = f"t-{uuid.uuid4().hex}"
    log.create_topic(topic, 1)
    return topic


@pytest.mark.few(3)
@pytest.mark.parametrize("login", LOGINS)
def test_a_login_serves_every_kind_of_client(broker: GuardedBroker, login: str) -> None:
    log = broker.log(login)
    topic = new_topic(log)
    use(log, topic, 0)
    member = log.join(f"m-{topic}", [topic])
    assert member.committed([(topic, 0)]) == {}
    member.commit({(topic, 0): Commit(1)})
    member.leave()
    writer = log.transactional_writer(f"x-{topic}", [topic])
    writer.write([(topic, 0, None, b"1", None, 0)])
    writer.commit()
    writer.close()
    log.delete_topic(topic)
    log.close()


@dataclass(frozen=True)
class Wrong:
    """A login that must fail.

    Attributes:
        login: what it would be if it were right.
        text: what the error names, as a regular expression.
        listener: another one than the login's own.
        error: its class.
        changes: of the login's properties; ``{stranger}`` and such stand for files, see `changed`.
    """

    login: str
    text: str
    listener: str = ""
    error: type[ChainError] = ConfigurationError
    changes: Mapping[str, str | None] = field(default_factory=dict)


def client_of(authority: Authority, **changes: object) -> dict[str, str | None]:
    made = authority.issue("other-client", **changes)  # type: ignore[arg-type]
    return {"ssl_certificate_location": str(made.certificate), "ssl_key_location": str(made.key)}


REFUSED = "refuses the certificate of this client"
PASSWORD = {"sasl_password": "hush-wrong"}
WRONG: dict[str, Callable[[GuardedBroker], Wrong]] = {
    "password, PLAIN": lambda _: Wrong("plain", r"Logging in.*check.*password", changes=PASSWORD),
    "password, SCRAM-256": lambda _: Wrong("scram-sha-256", r"Logging in.*check.*password", changes=PASSWORD),
    "password, SCRAM-512": lambda _: Wrong("scram-sha-512", r"Logging in.*check.*password", changes=PASSWORD),
    "authority": lambda broker: Wrong(
        "tls",
        "unable to get local issuer certificate|self-signed",
        changes={"ssl_ca_location": str(broker.stranger.certificate)},
    ),
    "expired certificate": lambda _: Wrong("tls", "certificate has expired", "EXPIRED"),
    "host name": lambda _: Wrong("tls", "certificate is not valid for '127.0.0.1'", "ELSEWHERE"),
    "no client certificate": lambda _: Wrong("tls", REFUSED, "MUTUAL"),
    "client certificate of a stranger": lambda broker: Wrong(
        "mutual-tls", REFUSED, changes=client_of(broker.stranger)
    ),
    "expired client certificate": lambda broker: Wrong(
        "mutual-tls", REFUSED, changes=client_of(broker.authority, days=-1)
    ),
    "file of the authority": lambda _: Wrong(
        "tls", "ssl.ca.location", changes={"ssl_ca_location": "/absent.pem"}
    ),
    "client secret": lambda _: Wrong(
        "oidc",
        "token.*invalid_client.*check.*issuer",
        changes={"sasl_oauthbearer_client_secret": "hush-wrong"},
    ),
    "token endpoint": lambda _: Wrong(
        "oidc",
        "token",
        error=Unavailable,
        changes={"sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:9/token"},
    ),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_login_ends_by_name(broker: GuardedBroker, wrong: str) -> None:
    """At each kind of client, and long before the log's time limit."""
    case = WRONG[wrong](broker)
    check_refusals(broker, case)


def check_refusals(broker: GuardedBroker, case: Wrong) -> None:
    log = broker.log(
        case.login, case.listener, 60.0 if case.error is ConfigurationError else 3.0, **case.changes
    )
    calls: list[Callable[[], object]] = [
        lambda: log.describe(["t"]),
        lambda: list(log.read(Range("t", b"", 0, 0, 2))),
        lambda: log.committed("g", [("t", 0)]),
        lambda: log.join("g", ["t"]),
    ]
    begun = time.monotonic()
    for call in calls:
        with pytest.raises(case.error, match=case.text) as caught:
            call()
        assert "hush" not in str(caught.value)
    log.close()
    assert time.monotonic() - begun < PATIENCE_S / 3  # else each waits for `timeout_s`


@pytest.mark.few(1)
@pytest.mark.parametrize("login", ["oidc", "callback"])
def test_tokens_that_expire_while_nothing_is_sent_are_renewed(issuing: GuardedBroker, login: str) -> None:
    issuer = issuing.issuer
    issuer.lives_s = LIVES_S
    log = issuing.log(login)
    topic = new_topic(log)
    use(log, topic, 0)
    member = log.join(f"m-{topic}", [topic])
    member.committed([(topic, 0)])
    wait_until_expired()
    issued = issuer.issued
    use(log, topic, 1)
    member.commit({(topic, 0): Commit(1)})
    member.leave()
    log.close()
    assert issuer.issued >= issued > 0


@pytest.mark.release
@pytest.mark.parametrize("login", ["oidc", "callback"])
def test_an_issuer_that_is_away_is_an_outage(issuing: GuardedBroker, login: str) -> None:
    """For clients that have a token, and for those that begin; and it ends when the issuer answers again."""
    issuer = issuing.issuer
    issuer.lives_s = LIVES_S
    log = issuing.log(login)
    topic = new_topic(log)
    use(log, topic, 0)
    issuer.away = True
    wait_until_expired()
    new = issuing.log(login, client_id="another one")
    for ask in (log.describe, new.describe):
        with pytest.raises(Unavailable, match="token"):
            ask([topic])
    with pytest.raises(Unavailable):
        log.committed(f"g-{topic}", [(topic, 0)])
    with pytest.raises(Unavailable):
        use(log, topic, 1)
    issuer.away, issuer.lives_s = False, 3_600.0
    for each in (log, new):
        assert retry_until_available(partial(each.describe, [topic]))
    count = retry_until_available(partial(log.bounds, [(topic, 0)]))[topic, 0].stable_end
    retry_until_available(partial(log.committed, f"g-{topic}", [(topic, 0)]))
    about = log.describe([topic])[topic]
    # A client that was refused meanwhile reports it once, and is replaced.
    retry_until_available(lambda: list(log.read(Range(topic, about.topic_id, 0, 0, count))))
    use(log, topic, count)
    log.close()
    new.close()


def wait_until_expired() -> None:
    """Wait until all tokens issued so far have expired, and with them the sessions of connections."""
    expired_s = time.time() + LIVES_S + 1
    eventually(lambda: time.time() > expired_s, "tokens have expired")


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["workers", "spark"])
@pytest.mark.parametrize("login", LOGINS)
def test_tasks_log_in_and_renew_their_tokens(
    issuing: GuardedBroker, login: str, engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Workers read and publish by connections of their own."""
    issuing.issuer.lives_s = LIVES_S
    log, feeder = issuing.log(login), issuing.log("tls")
    prefix = uuid.uuid4().hex[:8]
    names = Names(f"f-{prefix}", (f"{prefix}.one", f"{prefix}.two"))
    for topic in names.inputs:
        log.create_topic(topic, INPUT_PARTITIONS)
    feed(feeder, names.inputs, 0, 40)
    made: Made
    with ExitStack() as stack:
        if engine == "spark":
            session = request.getfixturevalue("spark")
            tuning = Tuning(inline_bytes=0, records_per_task=1, small_records=0)
            made = partial(_on_spark, session, tuning)
        else:
            team = Team(2, "workers of a test")
            stack.callback(team.close)
            made = partial(_on_workers, team)
        run = Run(shuffled(names), log, open_store(f"sqlite://{tmp_path}/s.db"), made)
        run.until_caught_up()
        feed(feeder, names.inputs, 51, 40)
        if login in {"oidc", "callback"}:
            wait_until_expired()
        run.until_caught_up()
        assert sum(record[0] == ".a" for record in run.published()) == 80
    log.close()
    feeder.close()


def _on_spark(
    session: SparkSession, tuning: Tuning, flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]
) -> Engine:
    return SparkEngine(flow.compile(), log, stores, session, tuning=tuning)


def _on_workers(team: Team, flow: Flow, log: KafkaLog, stores: Mapping[str, StateStore]) -> Engine:
    return WorkersEngine(flow.compile(), log, stores, team)


TOKENS_REFUSED: dict[str, dict[str, object]] = {
    "audience": {"audience": "another"},
    "signature": {"genuine": False},
    "expiry": {"lives_s": -60.0},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("wrong", TOKENS_REFUSED)
@pytest.mark.parametrize("login", ["oidc", "callback"])
def test_a_token_that_the_broker_refuses_ends_by_name(issuing: GuardedBroker, login: str, wrong: str) -> None:
    for name, value in TOKENS_REFUSED[wrong].items():
        setattr(issuing.issuer, name, value)
    check_refusals(issuing, Wrong(login, "Logging in.*token|the token that it returned expired"))


def test_the_docs_show_the_properties_that_are_tried_here(broker: GuardedBroker) -> None:
    shown = properties_by_heading()
    for login, heading in HEADINGS.items():
        assert shown[heading] == set(broker.config(login)), heading


HEADINGS = {
    "tls": "TLS",
    "mutual-tls": "TLS with a certificate of the client",
    "plain": "Password (PLAIN)",
    "scram-sha-512": "Password (SCRAM)",
    "oidc": "Tokens of an issuer (OIDC)",
    "callback": "Tokens of a function",
}


def properties_by_heading() -> dict[str, set[str]]:
    """Heading in docs/logins.md -> names of the properties in the first block below it."""
    text = (ROOT / "docs" / "logins.md").read_text("utf-8")
    parts = (part.partition("\n") for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:])
    blocks = {heading: re.search(r"```properties\n(.*?)```", body, re.DOTALL) for heading, _, body in parts}
    return {
        heading: {line.partition("=")[0] for line in block[1].splitlines()}
        for heading, block in blocks.items()
        if block
    }
