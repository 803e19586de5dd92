"""Serves the HTTP endpoint of the example, with bounds on connections and headers.

INGEST_KAFKA=localhost:9092 python -m services.http_server --port 8000
"""

from __future__ import annotations

import argparse

from services.http_ingest import application
from sqe_chain.ext.web.server import server_of


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Serves the HTTP endpoint of services.http_ingest")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(arguments)
    server_of(application(), given.host, given.port).run()


if __name__ == "__main__":
    main()
