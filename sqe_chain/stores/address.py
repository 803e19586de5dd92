"""Addresses of stores: a URL and its options, taken apart without ever showing a secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from sqe_chain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Address:
    """An address, split. Options are taken out one by one; `finish` refuses what is left.

    Attributes:
        scheme: in lower case; empty when there is none.
        username: percent-decoded, empty when absent.
        password: percent-decoded, empty when absent; never shown.
        host: host name or address, empty when absent.
        port: port number; 0 when absent.
        location: host and port as written, in their own case.
        path: percent-decoded path, with its leading slash.
        options: settings not yet taken.
    """

    scheme: str
    username: str
    password: str = field(repr=False)
    host: str
    port: int
    location: str
    path: str
    options: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str]) -> Address:
        """Split a URL.

        Args:
            url: the address.
            options: more options; they win over those in the URL.

        Raises:
            ConfigurationError: it cannot be split. The text does not repeat the address: a password
                with an unescaped special character can end up anywhere in its parts.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or 0
        except ValueError:
            raise ConfigurationError(
                "the store's address cannot be read: a host, a port number and percent-encoded special "
                "characters in user and password are expected, as in redis://user:pass%23word@host:6379/0"
            ) from None
        if parts.fragment:
            raise ConfigurationError("the store's address has a '#': write it as %23")
        return cls(
            scheme=parts.scheme,
            username=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            host=unquote(parts.hostname or ""),
            port=port,
            location=unquote(parts.netloc.rpartition("@")[2]),
            path=unquote(parts.path),
            options=dict(parse_qsl(parts.query, keep_blank_values=True)) | dict(options),
        )

    def text(self, name: str, default: str = "") -> str:
        """Take the option with this name."""
        return self.options.pop(name, default)

    def whole(self, name: str, default: int) -> int:
        """Take an option that is a whole number above 0."""
        value = self.options.pop(name, str(default))
        if not (value.isascii() and value.isdigit() and int(value) > 0):
            raise ConfigurationError(f"{self.scheme}://: option {name} must be a whole number above 0")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """Take an option that is a time in seconds, above 0 and at most an hour."""
        try:
            value = float(self.options.pop(name, str(default)))
        except ValueError:
            value = 0.0
        if not 0 < value <= 3600:  # noqa: PLR2004 - an hour; every wait is bounded
            raise ConfigurationError(f"{self.scheme}://: option {name} must be seconds, 0 < {name} <= 3600")
        return value

    def finish(self, *known: str) -> None:
        """Refuse options that nobody took.

        Raises:
            ConfigurationError: names them, and those that exist.
        """
        if self.options:
            raise ConfigurationError(
                f"{self.scheme}:// has no option {', '.join(sorted(self.options))}; "
                f"known: {', '.join(sorted(known))}"
            )
