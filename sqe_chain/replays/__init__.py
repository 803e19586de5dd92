"""New or replay: the marks that remember how far each lane was counted, and what decides with them.

`ReplayFilter` decides for consumers without a flow. SQE's record keys, which filters and outputs of flows know as well,
are for migrating from SQE (JW Player's Storm query engine), and for feeding a topology that still runs: read its topics
with `drop_replays()`; or write `SqeKey(...).to_bytes()` as the key, to partition `destination(N)`, with the source's
coordinates. Vectors for other languages: proto/sqe_vectors.json.
"""

from sqe_chain.replays.filter import ReplayFilter
from sqe_chain.replays.marks import PartitionMarks
from sqe_chain.replays.sqe_key import murmur_hash_64a, process_id, read_sqe_key

__all__ = ["PartitionMarks", "ReplayFilter", "murmur_hash_64a", "process_id", "read_sqe_key"]
