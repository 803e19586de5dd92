"""The kinds of stages, one file each, pure: they know no store and no log.

Streams declare them (`sqe_chain.flow`); docs/duplicates.md helps to choose. Here are the names that a flow needs
beside that: kinds of windows, the guard of stream time, SQE's record key, and the messages that filters and windows give.
"""

from sqe_chain._proto.dropped_pb2 import Dropped
from sqe_chain._proto.window_result_pb2 import WindowResult
from sqe_chain.sqe_key import SqeKey
from sqe_chain.stages.stream_time import JumpGuard
from sqe_chain.stages.windowing import Hopping, Sessions, Tumbling

__all__ = ["Dropped", "Hopping", "JumpGuard", "Sessions", "SqeKey", "Tumbling", "WindowResult"]
