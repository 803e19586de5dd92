"""New or replay: marks remember how far each lane was counted, and decide for each message.

`ReplayFilter` is for consumers without a flow. SQE's record keys are for migrating from SQE (JW Player's Storm query
engine): flows read its topics with `drop_replays()`. To feed a topology that still runs, write `SqeKey(...).to_bytes()`
as the key, to partition `destination(N)`, with the source's coordinates. Test vectors for other languages:
proto/sqe_vectors.json.
"""

from sqe_chain.envelope.marks import PartitionMarks
from sqe_chain.envelope.replay_filter import ReplayFilter
from sqe_chain.envelope.sqe_key import murmur_hash_64a, process_id, read_sqe_key

__all__ = ["PartitionMarks", "ReplayFilter", "murmur_hash_64a", "process_id", "read_sqe_key"]
