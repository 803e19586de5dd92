"""Login tokens come from a function of the user, whose failures are those of a server that is away, and whose texts nobody sees."""

from __future__ import annotations

import time

import pytest

from sqe_chain.adapters.kafka import KafkaLog
from sqe_chain.adapters.kafka._clients import Faults
from sqe_chain.adapters.kafka._settings import Tokens, settings
from sqe_chain.errors import ChainError, ConfigurationError, Unavailable
from tests.support import login_tokens

PLACE = "tests.support.login_tokens"


class Refused:
    """The driver's report that a broker has refused a login."""

    def name(self) -> str:
        return "_AUTHENTICATION"

    def str(self) -> str:
        return "refused"

    def code(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        ("failing", Unavailable, r"oauth_cb=.*:failing: OSError was raised"),
        ("shapeless", ConfigurationError, r"returned str. Expected \(token, when it expires"),
        ("missing", ConfigurationError, r"has no attribute 'missing'.*Expected module:function"),
        ("LIVES_S", ConfigurationError, "not a function"),
    ],
)
def test_a_function_that_gives_no_token_is_named(function: str, error: type[ChainError], text: str) -> None:
    log = KafkaLog(
        "127.0.0.1:1", {"oauth_cb": f"{PLACE}:{function}", "sasl.mechanism": "OAUTHBEARER"}, timeout_s=0.2
    )
    with pytest.raises(error, match=text) as caught:
        log.describe(["t"])
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("place", [login_tokens.token, "tokens", "a:b:c", ":token", "a/b.py:token", ""])
def test_a_function_is_named_by_its_place(place: object) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected the function's place as text, module:function"):
        KafkaLog("localhost:9092", {"oauth_cb": place})  # type: ignore[dict-item]


def test_a_function_that_fails_later_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(f"{PLACE}:unsteady", "")
    first, expires_s = tokens("")
    assert expires_s > time.time() + 60
    monkeypatch.setattr(login_tokens, "broken", True)
    again, soon_s = tokens("")
    assert again == first
    assert soon_s < time.time() + 60
    faults = Faults(settings("localhost:9092", {}, 1, 1))
    faults.tokens = tokens
    faults(Refused())  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="OSError was raised"):
        faults.raise_refusal()
    monkeypatch.setattr(login_tokens, "broken", False)
    assert tokens("")[1] > time.time() + 60
    assert tokens.failed == ""
