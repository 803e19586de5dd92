"""The consumer on Faust, exactly once, in an environment of its own: this file imports nothing of the project.

python app.py BOOTSTRAP GROUP SOURCE TARGET DIRECTORY PORT
"""

from __future__ import annotations

import json
import sys

import faust

bootstrap, group, source, target, directory, port = sys.argv[1:]
app = faust.App(
    group,
    broker=f"kafka://{bootstrap}",
    processing_guarantee="exactly_once",
    store="rocksdb://?driver=rocksdict",
    datadir=directory,
    topic_partitions=4,
    topic_replication_factor=1,
    broker_commit_interval=1.0,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=1.0,
    web_port=int(port),
)
items = app.topic(source, key_type=str, value_type=bytes, key_serializer="raw", value_serializer="raw")
published = app.topic(target, key_type=str, value_type=bytes, key_serializer="raw", value_serializer="raw")
totals = app.Table("totals", default=lambda: [0, 0], partitions=4)


@app.agent(items)
async def count(stream: faust.Stream[bytes]) -> None:
    """Count the facts of each robot."""
    async for robot, value in stream.items():
        events, total = totals[robot]
        events, total = events + 1, total + json.loads(value)["amount"]
        totals[robot] = [events, total]
        await published.send(key=robot, value=json.dumps({"events": events, "sum": total}).encode())


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "--datadir", directory, "worker", "--loglevel", "warn"]
    app.main()
