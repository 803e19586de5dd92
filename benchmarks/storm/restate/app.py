"""The consumer on Restate, totals in its virtual objects, in an environment of its own: this file imports nothing of the project.

    python app.py SERVER BOOTSTRAP GROUP SOURCE DIRECTORY INGRESS_PORT ADMIN_PORT NODE_PORT SERVICE_PORT

It starts a Restate server, serves the handler, and subscribes it to the topic if it is not yet. Restate invokes the handler for each
message, by the robot in its key, one at a time. It stores the new total together with the end of the invocation. It drops an invocation
of a topic, partition and offset that it had before.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import hypercorn.asyncio
import restate

server, bootstrap, group, source, directory, ingress_port, admin_port, node_port, service_port = sys.argv[1:]
ADMIN = f"http://127.0.0.1:{admin_port}"
CONFIGURATION = f"""
bind-ip = "127.0.0.1"
bind-port = {node_port}
advertised-address = "http://127.0.0.1:{node_port}/"
base-dir = "{directory}"
node-name = "storm"
listen-mode = "tcp"
default-num-partitions = 4
rocksdb-total-memory-size = "256 MiB"
disable-telemetry = true
log-filter = "error"

[admin]
bind-port = {admin_port}

[ingress]
bind-port = {ingress_port}

[[ingress.kafka-clusters]]
name = "storm"
brokers = ["PLAINTEXT://{bootstrap}"]
"""
totals = restate.VirtualObject("totals")


@totals.handler()
async def count(ctx: restate.ObjectContext, item: dict[str, Any]) -> None:
    """Count a fact of a robot."""
    events, total = await ctx.get("total") or (0, 0)
    ctx.set("total", [events + 1, total + item["amount"]])


def ask(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call the server's administration."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - the server that this program started
        f"{ADMIN}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - the same
        return dict(json.load(answer))


def subscribe() -> None:
    """Register the handler, and subscribe it to the topic. Both are durable, so a restart finds them."""
    while True:
        try:
            ask("/deployments", {"uri": f"http://127.0.0.1:{service_port}/"})
            if not ask("/subscriptions")["subscriptions"]:
                options = {
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "session.timeout.ms": "6000",
                    "heartbeat.interval.ms": "1000",
                }
                ask(
                    "/subscriptions",
                    {
                        "source": f"kafka://storm/{source}",
                        "sink": "service://totals/count",
                        "options": options,
                    },
                )
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            print(
                error, error.read().decode() if isinstance(error, urllib.error.HTTPError) else "", flush=True
            )
            time.sleep(0.5)
        else:
            return


def run_server() -> None:
    """Run the server; this program ends with it."""
    file = Path(directory, "restate.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(CONFIGURATION, encoding="utf-8")
    process = subprocess.Popen([server, "--no-logo", "--config-file", str(file)])
    threading.Thread(target=subscribe, daemon=True).start()
    process.wait()
    sys.exit("the server ended")


if __name__ == "__main__":
    threading.Thread(target=run_server, daemon=True).start()
    settings = hypercorn.Config()
    settings.bind = [f"127.0.0.1:{service_port}"]
    settings.h2_max_concurrent_streams = 2147483647
    asyncio.run(hypercorn.asyncio.serve(restate.app([totals]), settings))
