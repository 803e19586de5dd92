"""Write the test vectors in `proto/`, or with `--check` report whether they are up to date.

The vectors are for implementations in other languages. What they hold is made by this library, but
hashes and positions are computed a second time by tests/unit/envelope/test_vectors.py and
tests/unit/envelope/test_sqe_key.py, from the rules alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from google.protobuf.wrappers_pb2 import StringValue

from sqe_chain import Coordinates, Envelope, read, republish, wrap
from sqe_chain.chain import path_hash, read_lane, root_position
from sqe_chain.envelope.carrier import in_headers
from sqe_chain.envelope.sqe_key import SEED, SqeKey, murmur_hash_64a, process_id
from sqe_chain.envelope.template import OutputTemplate
from sqe_chain.envelope.wire import sealed
from sqe_chain.stages.record import Record
from sqe_chain.stages.replays import SqeReplays
from sqe_chain.stages.table import MemoryTable

PROTO = Path(__file__).resolve().parent.parent / "proto"
RAW_ID = bytes(range(16))
MIDDLE_ID = bytes(range(16, 32))
LAST_ID = bytes(range(32, 48))
TIME_MS = 1_700_000_000_123


def envelopes() -> dict[str, bytes]:
    """Envelopes by name; each shows one feature."""
    first, second = StringValue(value="3 screws"), StringValue(value="grüße")
    origin = wrap(first, key="robot-7", timestamp_ms=TIME_MS, event_id=bytes(range(100, 116)))
    at_raw = Coordinates(topic="robot.raw", topic_id=RAW_ID, partition=2, offset=7, leader_epoch=1)
    hop = republish(read(origin), at_raw, first, output="standard/robot.ok", key="robot-7", ordinal=1, of=2)
    at_middle = Coordinates(
        topic="robot.ok", topic_id=MIDDLE_ID, partition=0, offset=2**63 - 1, leader_epoch=2**31
    )
    return {
        "wrapped at the origin": origin,
        "null key": wrap(first, key=None, timestamp_ms=TIME_MS, event_id=bytes(16)),
        "empty key, time 0, empty payload": wrap(StringValue(), key=b"", timestamp_ms=0, event_id=bytes(16)),
        "collection": wrap([first, StringValue(), second], key="ü", timestamp_ms=TIME_MS, event_id=bytes(16)),
        "republished once": hop,
        "republished from a raw message": republish(
            None, at_raw, first, output="standard/robot.ok", key="robot-7", timestamp_ms=TIME_MS
        ),
        "republished twice, by a shard, with previous": republish(
            read(hop),
            at_middle,
            [first, second],
            output="totals/lines",
            key="line-1",
            shard=3,
            ordinal=4,
            of=6,
            previous=read(hop).position + bytes(4),
        ),
        "shard 0 is not no shard": republish(
            read(hop), at_middle, first, output="totals/lines", key="line-1", shard=0
        ),
        "a second revision": republish(
            read(origin), at_raw, first, output="standard/robot.ok@2", key="robot-7"
        ),
        "a released record of a second revision, by a shard": republish(
            read(hop), at_middle, first, output="totals/lines@2/released.9f", key="line-1", shard=0
        ),
        "with a watermark": republish(
            read(origin), at_raw, first, output="standard/robot.ok", key="robot-7", watermark_ms=TIME_MS - 1
        ),
    }


def described(value: bytes) -> dict[str, object]:
    """One envelope with everything that can be computed from it."""
    envelope: Envelope = read(value, strict=True)
    chain = envelope.chain
    return {
        "bytes": value.hex(),
        "event_id": envelope.event_id.hex(),
        "timestamp_ms": envelope.timestamp_ms,
        "key": None if envelope.key is None else envelope.key.hex(),
        "type": envelope.type,
        "payloads": [None if payload is None else payload.hex() for payload in envelope.payloads],
        "links": [
            {
                "topic": link.topic,
                "topic_id": link.topic_id.hex(),
                "partition": link.partition,
                "offset": str(link.offset),
                "leader_epoch": link.leader_epoch,
                "output": link.output,
                "shard": link.shard,
                "ordinal": link.ordinal,
                "of": link.of,
            }
            for link in chain
        ],
        "lane": envelope.lane.to_bytes(8, "little").hex(),
        "position": envelope.position.hex(),
        "previous": envelope.previous.hex(),
        "watermark_ms": envelope.watermark_ms,
        "read_from_lines_3": {
            "lane": read_lane(envelope.lane, "lines", LAST_ID, 3).to_bytes(8, "little").hex(),
            "path": path_hash(chain, "lines", LAST_ID, 3).to_bytes(8, "little").hex(),
        },
    }


def malformed() -> dict[str, dict[str, str]]:
    """Values that must be refused, with the name of the error in this library."""
    whole = envelopes()["republished once"]
    return {
        "empty": {"bytes": "", "error": "EmptyValue"},
        "another message": {
            "bytes": StringValue(value="x").SerializeToString().hex(),
            "error": "NotAnEnvelope",
        },
        "cut": {"bytes": whole[:-1].hex(), "error": "TruncatedEnvelope"},
        "cut before the checksum": {"bytes": whole[:-5].hex(), "error": "TruncatedEnvelope"},
        "one byte more": {"bytes": (whole + b"\0").hex(), "error": "TrailingBytes"},
        "the payload is said to go on to the end": {"bytes": swallowed().hex(), "error": "MalformedField"},
        "one bit wrong": {"bytes": (whole[:-1] + bytes((whole[-1] ^ 1,))).hex(), "error": "WrongChecksum"},
    }


def swallowed() -> bytes:
    """Bytes that end like an envelope, whose payload claims to hold its checksum as well."""
    body = bytearray(wrap(b"screws", key=None, timestamp_ms=TIME_MS, event_id=bytes(16))[:-5])
    body[-len(b"screws") - 1] += 5
    return sealed(bytes(body))


def carried() -> dict[str, dict[str, object]]:
    """Records with the chain in their headers: value, headers, and the equivalent envelope."""
    made = {
        "json, wrapped at the origin": wrap(
            {"screws": 3}, key="robot-7", timestamp_ms=TIME_MS, event_id=bytes(range(100, 116))
        ),
        "protobuf, republished once": envelopes()["republished once"],
        "empty payload": envelopes()["empty key, time 0, empty payload"],
        "deleted": deleted(),
    }
    return {name: described_record(value) for name, value in made.items()}


def deleted() -> bytes:
    """An envelope whose payload is null: the state of its key was deleted."""
    template = OutputTemplate(
        lane=0, topic="robot.raw", topic_id=RAW_ID, partition=2, output="totals/lines", shard=0
    )
    root = root_position(1, 7)
    return template.encode(b"", 7, 1, 0, 1, root, TIME_MS, b"line-1", "json:Total", [None])[0]


def described_record(envelope: bytes) -> dict[str, object]:
    """A record with its headers."""
    value, headers = in_headers(envelope, source="standard/robot.ok")
    return {
        "value": None if value is None else value.hex(),
        "headers": {name: (content or b"").hex() for name, content in headers},
        "envelope": envelope.hex(),
    }


def described_key(key: SqeKey) -> dict[str, object]:
    """A key of SQE's."""
    return {
        "bytes": key.to_bytes().hex(),
        "process_id": str(key.process_id),
        "partition": key.partition,
        "offset": str(key.offset),
    }


def filtered(keys: list[SqeKey | None]) -> list[dict[str, object]]:
    """The decisions of SQE's filter for a sequence of records with these keys."""
    replays = SqeReplays(MemoryTable(), compat="sqe")
    encoded = [key and key.to_bytes() for key in keys]
    return [{"key": key and key.hex(), "passes": replays.accept(Record(key=key)).forward} for key in encoded]


def sqe_keys() -> dict[str, object]:
    """Everything about SQE's record key."""
    streams = (
        ("ABCDEF", "", "", ""),
        ("test-topo", "test-stream", "brokers", "path"),
        ("", "", "", ""),
        ("zählen", "plays", "zk1:2181,zk2:2181", "/brokers"),
    )
    pid = process_id(*streams[1])
    keys = {
        "ordinary": SqeKey(pid, 6, 41),
        "largest": SqeKey(2**63 - 1, 2**31 - 1, 2**63 - 1),
        "smallest": SqeKey(-(2**63), -(2**31), -(2**63)),
        "zero": SqeKey(0, 0, 0),
    }
    published = [SqeKey(0, 0, offset) for offset in (1, 2, 1, 2, 3, 2, 3)]
    more = [SqeKey(0, 1, 1), SqeKey(1, 0, 1), SqeKey(0, 0, 0), None, None, SqeKey(0, 0, 9), SqeKey(0, 0, 9)]
    return {
        "about": "Test vectors of SQE's record key and replay filter; proto/README.md explains them.",
        "process_ids": [
            {
                "topology": topology,
                "stream": stream,
                "zookeeper_hosts": hosts,
                "zookeeper_path": path,
                "process_id": str(process_id(topology, stream, hosts, path)),
                "hex": f"{process_id(topology, stream, hosts, path) & 0xFFFFFFFFFFFFFFFF:016x}",
            }
            for topology, stream, hosts, path in streams
        ],
        "seed": f"{SEED:08x}",
        "hashes": [
            {"bytes": data.hex(), "hash": f"{murmur_hash_64a(data):016x}"}
            for data in (bytes(range(256 - length, 256)) for length in (*range(18), 64))
        ],
        "keys": {name: described_key(key) for name, key in keys.items()},
        "no_keys": ["", "00" * 19, "00" * 21],
        "destinations": [
            {
                "partition": source,
                "partitions": number,
                "destination": SqeKey(0, source, 0).destination(number),
            }
            for source, number in ((0, 1), (3, 4), (4, 4), (11, 4), (2**31 - 1, 10))
        ],
        "filter": filtered([*published, *more]),
    }


def files() -> dict[str, str]:
    """File name -> content."""
    envelope = {
        "about": "Test vectors of the sqe-chain envelope; proto/README.md explains them.",
        "topic_id_of_lines": LAST_ID.hex(),
        "envelopes": {name: described(value) for name, value in envelopes().items()},
        "malformed": malformed(),
        "carried": carried(),
    }
    vectors = {"vectors.json": envelope, "sqe_vectors.json": sqe_keys()}
    return {
        name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in vectors.items()
    }


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; status 1 on a difference")
    check = parser.parse_args().check
    stale = 0
    for name, text in files().items():
        path = PROTO / name
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} is out of date: run scripts/generate_vectors.py\n")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
