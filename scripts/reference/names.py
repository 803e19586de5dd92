"""Which names the reference has, and on which page."""

from __future__ import annotations

PAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "sqe_chain": {
        "sqe_chain": (
            *(
                "run",
                "running",
                "RunningService",
                "TableFlushed",
                "Settings",
                "settings_of",
                "get",
                "states",
                "States",
            ),
            *("wrap", "read", "republish", "Envelope", "Chain", "Link", "Coordinates", "ReplayFilter"),
        ),
    },
    "sqe_chain.flow": {
        "sqe_chain.flow": (
            *(
                "Flow",
                "Stream",
                "Stage",
                "Filter",
                "Changes",
                "Change",
                "WindowStage",
                "CustomStage",
                "Context",
                "Timer",
                "Csv",
            ),
            *("count", "sum_", "min_", "max_", "mean", "first", "last"),
        ),
        "sqe_chain.stages": ("Tumbling", "Hopping", "Calendar", "Sessions", "Window", "JumpGuard"),
    },
    "sqe_chain.errors": {"sqe_chain.errors": ("ChainError",)},
    "sqe_chain.testing": {
        "sqe_chain.testing": (
            *("Rehearsal", "Arming", "prove", "prove_schedule", "Feed", "Schedule", "Fault"),
        ),
    },
}
"""Page -> module -> what a user types, in the order of the page."""

ALONE = (
    *("Tumbling", "Hopping", "Calendar", "Sessions", "JumpGuard"),
    *("Settings", "TableFlushed", "Schedule"),
)
"""Classes whose methods a user does not call."""

BRIEF: dict[str, tuple[str, ...]] = {
    "sqe_chain.ports": (
        *(
            "TopicPartition",
            "Headers",
            "Output",
            "Rows",
            "ViewKind",
            "Shown",
            "NO_LIMIT",
            "Views",
            "ViewTable",
        ),
        *(
            "Message",
            "TopicInfo",
            "Bounds",
            "Range",
            "Commit",
            "Writer",
            "TransactionalWriter",
            "Log",
            "Membership",
        ),
        *("Home", "Location", "Locations", "Header", "StateStore", "WithSchema", "WithViewTables"),
        *("Sink", "SinkState", "SinkClaim", "Flush", "ReplacingSink", "Staged", "Replacement", "replacing"),
    ),
    "sqe_chain.stages": (
        *("RecordKind", "RecordStage", "RecordFunctions", "Given", "DeclaredFunction"),
        *("StageKind", "StageTraits", "StageWork", "StageTask", "StageTable", "LiveState", "StoredState"),
        *(
            "Record",
            "records_of",
            "Spot",
            "NOWHERE",
            "Verdict",
            "Reason",
            "RowTable",
            "MemoryTable",
            "SqeKey",
        ),
        *("SqeReplays", "RootReplays", "StaleSequences", "Deduplicate", "Distinct"),
        *("from_value", "from_key", "from_header", "number_in_text", "by_key", "by_key_and"),
        *("WindowedAggregate", "TimedAggregate", "Result", "Span", "results_in", "TableJoin", "StreamJoin"),
        *("Dropped", "WindowResult", "remembered", "Remembered", "ProducerMark", "RootSeen", "SequenceSeen"),
        *("Sighting", "FirstSeen"),
    ),
    "sqe_chain.adapters": ("open_store", "SCHEMES", "Address"),
    "sqe_chain.adapters.kafka": ("KafkaLog", "load_config"),
    "sqe_chain.adapters.memory": ("MemoryLog", "MemoryMessage", "MemoryTransaction", "MemoryWriter"),
    "sqe_chain.codecs": (
        *("Codec", "Place", "RecordHeaders", "Role", "Field", "FieldKind", "Shape"),
        *("register", "codec_for", "codec_named", "codec_name"),
    ),
    "sqe_chain.flow": ("Aggregation",),
    "sqe_chain.testing": (
        *("MemoryStore", "Zombie", "SteppingClock", "ValueChanged", "Crash", "Proof", "Finding"),
    ),
    "sqe_chain.testing.strategies": ("topics", "links", "chains", "envelopes", "feeds", "schedules"),
    "sqe_chain.testing.contracts": ("StoreContract", "LogContract", "CodecContract", "StageContract"),
    "sqe_chain.chain": ("read_lane", "written_lane", "root_position", "next_position", "stored_epoch"),
    "sqe_chain.envelope.replays": ("PartitionMarks", "process_id", "read_sqe_key", "murmur_hash_64a"),
    "sqe_chain.envelope.carrier": ("in_headers",),
    "sqe_chain.envelope.partitioner": ("murmur2", "partition_of", "key_of_each", "cell_of", "key_bytes"),
    "sqe_chain.ext.tables": (
        *("open_table", "Table", "Scan", "Compaction", "Column", "TableSchema"),
        *("Memtable", "Flushed", "ChunkIndex", "ChunkInfo", "ChunkName", "chunk_id", "ReaderOffsets"),
        *("Description", "StatePartition"),
    ),
    "sqe_chain.ext.files": ("FileRows", "Row", "FileLoad", "FilesLog", "FileSource"),
    "sqe_chain.ext.registry": ("Avro", "JsonSchema", "ProtobufSchema"),
    "sqe_chain.ext.dev": (
        *(
            "KafkaServer",
            "RedisServer",
            "CassandraServer",
            "PostgresServer",
            "ApicurioServer",
            "up",
            "status",
            "down",
            "reset",
        ),
        *("DevMachine", "DevServer", "fetch", "cache_directory"),
    ),
    "sqe_chain.ext.telemetry": ("trace_headers",),
    "sqe_chain.ext.wal": (
        *("DurableProducer", "Receipt", "Pending", "Status", "Limits", "sequence_of", "epoch_of", "log_of"),
        *("WriteAheadLog", "Record", "Entry", "Publisher", "Files", "LocalFiles", "MemoryFiles"),
    ),
    "sqe_chain.ext.wal.metrics": ("ProducerMetrics",),
}
"""Module -> names for extensions and programs without flows: one page has the first sentence of each."""

INTERNAL = (
    *(
        "sqe_chain.adapters.cassandra",
        "sqe_chain.adapters.postgres",
        "sqe_chain.adapters.redis",
        "sqe_chain.cli",
    ),
    *("sqe_chain.engines.spark", "sqe_chain.engines.workers"),
    *(
        "sqe_chain.envelope",
        "sqe_chain.envelope.head",
        "sqe_chain.envelope.marks",
        "sqe_chain.envelope.message",
    ),
    *("sqe_chain.ext.tables.arrow", "sqe_chain.flow.flow", "sqe_chain.testing.proving"),
)
"""Modules that pass names on to other modules of the package: not for users, whose names have entries elsewhere or nowhere."""

INTERFACES = (
    "sqe_chain.ports",
    "sqe_chain.stages",
    "sqe_chain.adapters",
    "sqe_chain.codecs",
    "sqe_chain.testing",
)
"""Modules for extensions: each name has a sentence. Of the others the page lists the names."""

GIVEN = (
    *("Stream", "Stage", "Filter", "Changes", "Change", "WindowStage", "CustomStage", "Context", "Timer"),
    *("RunningService", "States", "TableFlushed", "Envelope", "Zombie", "Proof", "Finding"),
)
"""Classes that a user gets and never makes."""
