"""Tokens for MSK are signed as AWS documents it, and expire when they state it, in every time zone.

The oracle is a signature of version 4 written here, from its description: it shares no code with the signer of AWS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from sqe_chain.adapters.kafka._settings import Tokens
from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.ext.logins import msk

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION = "eu-central-1"


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither files nor a machine of AWS give credentials."""
    empty = tmp_path_factory.mktemp("aws") / "none"
    for name, value in {
        "AWS_CONFIG_FILE": str(empty),
        "AWS_SHARED_CREDENTIALS_FILE": str(empty),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Tokyo"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def fields_of(token: str) -> tuple[str, dict[str, str]]:
    """Host and fields of the signed address that a token is."""
    address = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert (address.scheme, address.path) == ("https", "/")
    return address.netloc, dict(parse_qsl(address.query, strict_parsing=True))


def signature_of(host: str, fields: dict[str, str]) -> str:
    """The signature that AWS would compute for a presigned GET of these fields."""
    signed = sorted(
        (name, value) for name, value in fields.items() if name not in {"X-Amz-Signature", "User-Agent"}
    )
    query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in signed)
    nothing = hashlib.sha256(b"").hexdigest()
    request = "\n".join(("GET", "/", query, f"host:{host}\n", "host", nothing))
    _, day, region, service, kind = fields["X-Amz-Credential"].split("/")
    scope = f"{day}/{region}/{service}/{kind}"
    text = "\n".join(
        ("AWS4-HMAC-SHA256", fields["X-Amz-Date"], scope, hashlib.sha256(request.encode()).hexdigest())
    )
    key = b"AWS4" + SECRET.encode()
    for part in (day, region, service, kind, text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


@pytest.mark.usefixtures("_credentials", "_zone")
def test_a_token_is_signed_for_connecting_and_expires_when_it_states_it() -> None:
    token, expires_s = msk.token(f"region={REGION}")
    host, fields = fields_of(token)
    assert host == f"kafka.{REGION}.amazonaws.com"
    assert fields["Action"] == "kafka-cluster:Connect"
    assert fields["X-Amz-Credential"].startswith(f"{KEY}/")
    assert fields["X-Amz-Credential"].endswith(f"/{REGION}/kafka-cluster/aws4_request")
    assert fields["X-Amz-Signature"] == signature_of(host, fields)
    signed = datetime.strptime(fields["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs(signed.timestamp() - time.time()) < 300
    assert expires_s == signed.timestamp() + 900 == signed.timestamp() + int(fields["X-Amz-Expires"])


@pytest.mark.usefixtures("_credentials")
def test_a_client_takes_it_as_a_token() -> None:
    token, expires_s = Tokens("sqe_chain.ext.logins.msk:token", f"region={REGION}")("")
    assert fields_of(token)[1]["X-Amz-Expires"] == "900"
    assert expires_s > time.time() + 600


@pytest.mark.parametrize(
    "configuration", ["", "eu-central-1", "region=", "region=x,zone=y", "region=x,profile=a,role=b"]
)
def test_another_configuration_is_refused_by_name(configuration: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer\.config=.*Expected region=REGION"):
        Tokens("sqe_chain.ext.logins.msk:token", configuration)


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [(f"region={REGION}", "there are none"), (f"region={REGION},profile=absent", "ProfileNotFound.*absent")],
)
def test_without_credentials_it_is_an_outage_whose_text_names_them(configuration: str, reason: str) -> None:
    """A role's credentials may come in a moment; and a service that waits shows why."""
    with pytest.raises(Unavailable, match=rf"AWS credentials for a login to MSK: {reason}"):
        Tokens("sqe_chain.ext.logins.msk:token", configuration)
