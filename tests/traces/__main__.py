"""Replay the calls of schedules on real servers: ``python -m tests.traces --schedules 100 --seed 0 --json FILE``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqe_chain.adapters import open_store
from sqe_chain.adapters.cassandra import CassandraStore
from sqe_chain.ext.dev import CassandraServer, KafkaServer, RedisServer
from tests.traces.recording import recorded
from tests.traces.replaying import PORTS, Replayed, replayed_broker, replayed_stores


@contextmanager
def _address(port: str) -> Iterator[str]:
    """A server of this kind, as long as it is asked."""
    with ExitStack() as stack:
        match port:
            case "sqlite":
                yield f"sqlite://{stack.enter_context(tempfile.TemporaryDirectory())}/states.db"
            case "redis":
                yield stack.enter_context(RedisServer()).url
            case "cassandra":
                url = stack.enter_context(CassandraServer()).url
                store = open_store(url)
                assert isinstance(store, CassandraStore)
                store.make_schema({"": 1})
                stack.callback(store.close)
                yield url
            case _:
                yield stack.enter_context(KafkaServer()).bootstrap


def main() -> int:
    """Record schedules and replay them; exit status 1 when an answer differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.traces", description=__doc__)
    parser.add_argument("--schedules", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each next one is greater by one")
    parser.add_argument("--at", default=",".join(PORTS), help="where (default: everywhere)")
    parser.add_argument("--json", type=Path, help="write the figures there, as one JSON object")
    options = parser.parse_args()
    began, found, cut = time.perf_counter(), dict[str, Replayed](), Counter[str]()
    seeds = range(options.seed, options.seed + options.schedules)
    recordings = recorded(seeds)
    for recording in recordings.values():
        cut.update(trace.cut for trace in (recording.log, *recording.stores) if trace.cut)
    for port in options.at.split(","):
        with _address(port) as address:
            replay = replayed_broker if port == "kafka" else replayed_stores
            found[port] = replay(recordings, address)
        sys.stdout.write(f"{port}: {found[port].calls:,} calls, {len(found[port].differences)} differences\n")
        sys.stdout.writelines(f"  {difference}\n" for difference in found[port].differences[:20])
        sys.stdout.flush()
    sys.stdout.writelines(f"cut where {reason}: {count} traces\n" for reason, count in cut.most_common())
    differences = sum(len(one.differences) for one in found.values())
    if options.json:
        counts = {"schedules": len(recordings)} | {
            f"calls of {port}": one.calls for port, one in found.items()
        }
        figures = {
            "tool": "traces",
            "counts": counts,
            "violations": differences,
            "seed": options.seed,
            "seconds": round(time.perf_counter() - began, 1),
        }
        options.json.write_text(json.dumps(figures) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
