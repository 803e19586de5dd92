"""Tokens for Amazon MSK with IAM: ``oauth_cb=sqe_chain.ext.logins.msk:token``.

The signer of AWS makes them on this machine, with the credentials that boto3 finds. MSK was never asked whether it accepts them.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from sqe_chain.errors import ConfigurationError, Unavailable
from sqe_chain.wings import needing

with needing("A login by sqe_chain.ext.logins.msk", "msk"):
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

_FORM: Final = "region=REGION, and either profile=NAME or role=ARN or neither, separated by commas"


def token(configuration: str) -> tuple[str, float]:
    """A token for a client's login.

    Args:
        configuration: the property `sasl.oauthbearer.config`: ``region=eu-central-1``, ``region=eu-central-1,profile=prod`` or
            ``region=eu-central-1,role=arn:aws:iam::123456789012:role/totals``.

    Returns:
        The token, and when it expires in seconds since 1970: 15 minutes later.

    Raises:
        ConfigurationError: the package of the signer is missing, or the configuration has another form.
        Unavailable: AWS gives no credentials: there are none here, or their service does not answer.
    """
    options = _read(configuration)
    region = options["region"]
    try:
        if "profile" in options:
            made, _ = MSKAuthTokenProvider.generate_auth_token_from_profile(region, options["profile"])
        elif "role" in options:
            made, _ = MSKAuthTokenProvider.generate_auth_token_from_role_arn(region, options["role"])
        else:
            made, _ = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # noqa: BLE001 - boto3 has many classes; where there are no credentials, the signer stumbles over None
        reason = "there are none" if isinstance(error, AttributeError) else f"{type(error).__name__}: {error}"
        raise Unavailable(
            f"AWS credentials for a login to MSK: {reason}. Expected those of an environment, a profile or a role. Give this process some."
        ) from None
    return made, _expiry_s(made)


def _read(configuration: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in configuration.replace(" ", "").split(",")]
    options = {name: value for name, _, value in pairs}
    if (
        "region" not in options
        or not all(options.values())
        or not options.keys() <= {"region", "profile", "role"}
    ):
        raise ConfigurationError(f"Kafka property sasl.oauthbearer.config={configuration}. Expected {_FORM}.")
    if {"profile", "role"} <= options.keys():
        raise ConfigurationError(
            f"Kafka property sasl.oauthbearer.config={configuration}: both. Expected {_FORM}."
        )
    return options


def _expiry_s(made: str) -> float:
    """When a token expires, by the token itself: the signer reads its own time as one of this machine's zone."""
    url = base64.urlsafe_b64decode(made + "=" * (-len(made) % 4)).decode()
    fields = dict(parse_qsl(urlsplit(url).query))
    signed = datetime.strptime(fields["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return signed.timestamp() + int(fields["X-Amz-Expires"])
