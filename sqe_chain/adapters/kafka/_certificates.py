"""What the driver reports of certificates is little: here are the reasons."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path
from typing import Final

from sqe_chain.adapters.kafka._settings import KafkaSettings

_UNVERIFIED: Final = "certificate verify failed"
_ENDPOINT: Final = re.compile(r"://\[?([^/\]]+)\]?:(\d+)/")
_OWN: Final = re.compile(
    r"alert (?:(?:bad |unsupported )?certificate|unknown ca|access denied|decrypt error)"
)
"""How a broker ends a connection whose client has a wrong certificate, or none; in a report about the connection, not about TLS."""


def is_own_refused(report: str) -> bool:
    """Whether a report of the driver means that the broker refuses the certificate of this client."""
    return _OWN.search(report) is not None


def reason_of(report: str, settings: KafkaSettings) -> str:
    """Why a TLS connection was refused, as the end of a sentence; empty when nothing more is known than the report.

    The driver does not report what is wrong with a broker's certificate. So the broker is asked for it again, by Python's TLS.
    """
    if is_own_refused(report):
        return "; the broker refuses the certificate of this client: none was sent, it has expired, or its authority is not trusted there"
    place = _ENDPOINT.search(report)
    if _UNVERIFIED not in report or place is None:
        return ""
    config = dict(settings.config)
    try:
        context = _context(config.get("ssl.ca.location", ""), config.get("ssl.ca.pem", ""))
        context.check_hostname = config.get("ssl.endpoint.identification.algorithm", "https") == "https"
        host, port = place.groups()
        with socket.create_connection((host, int(port)), settings.timeout_s) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return f"; {error.verify_message}"
    except (OSError, ValueError):
        pass
    return ""


def _context(place: str, text: str) -> ssl.SSLContext:
    """TLS that trusts what the driver was given: a file or a directory, or the certificates themselves."""
    if text:
        return ssl.create_default_context(cadata=text)
    if Path(place).is_dir() and place:
        return ssl.create_default_context(capath=place)
    return ssl.create_default_context(cafile=place if Path(place).is_file() else None)
