"""A write-ahead log for sources that cannot send again: what was acknowledged reaches Kafka, and counts once.

docs/write-ahead-log.md shows how to use it, and where its guarantee ends. Needs no driver until it publishes to Kafka.
"""

from sqe_chain.ext.wal.files import Files, LocalFiles
from sqe_chain.ext.wal.group import Pending, Receipt
from sqe_chain.ext.wal.log import WriteAheadLog
from sqe_chain.ext.wal.memory_files import MemoryFiles
from sqe_chain.ext.wal.producer import DurableProducer, Status
from sqe_chain.ext.wal.publisher import Publisher, epoch_of, log_of, sequence_of
from sqe_chain.ext.wal.record import Entry, Record
from sqe_chain.ext.wal.tail import Limits

__all__ = [
    "DurableProducer",
    "Entry",
    "Files",
    "Limits",
    "LocalFiles",
    "MemoryFiles",
    "Pending",
    "Publisher",
    "Receipt",
    "Record",
    "Status",
    "WriteAheadLog",
    "epoch_of",
    "log_of",
    "sequence_of",
]
