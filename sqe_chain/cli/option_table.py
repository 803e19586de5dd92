"""The options of the groups that commands take: one row for each, by the name of its field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import typer

from sqe_chain.runtime.connecting import MOST_WORKERS

_MOST = 2**63 - 1
"""The largest number that an option takes: stores, Kafka and the log count in 64 bits."""


@dataclass(frozen=True)
class Option:
    """An option of the command line, as the annotation of what takes its value.

    Attributes:
        help: what it does.
        metavar: a word for its value.
        name: its name without dashes; by default that of the annotated field or parameter.
        env: whether it can be set in the environment too, as ``SQE_CHAIN_`` and its name.
        least: of numbers; who states it takes no number above 2^63 - 1.
        most: of numbers.
        shared: whether it is of many commands: the help of each names it, and only that of `sqe-chain` describes it.
    """

    help: str
    metavar: str | None = None
    name: str = ""
    env: bool = False
    least: float | None = None
    most: float | None = None
    shared: bool = False

    def variable(self, name: str) -> str:
        """The environment variable of an option with this name."""
        return f"SQE_CHAIN_{name.replace('-', '_').upper()}"

    def for_typer(self, field: str, panel: str | None = None) -> Any:  # noqa: ANN401 - typer says no type
        """The same for typer, which takes the value of a field or parameter of this name.

        Args:
            field: the name.
            panel: of the help that shows it; None: that of all options.
        """
        name = self.name or field.replace("_", "-")
        env = self.variable(name) if self.env else None
        most = _MOST if self.most is None and self.least is not None else self.most
        return typer.Option(
            f"--{name}",
            help=self.help,
            metavar=self.metavar,
            envvar=env,
            min=self.least,
            max=most,
            hidden=self.shared,
            rich_help_panel=panel,
        )


# fmt: off
TABLE: Final = {
    "kafka": Option("Brokers, separated by commas; not needed by flows that read files and publish nothing.", "HOST:PORT", env=True, shared=True),
    "kafka_config": Option("File of librdkafka properties (name=value, ${NAME} is taken from the environment): SASL, TLS, ...", "FILE", env=True, shared=True),
    "store": Option("redis://HOST:PORT/DB, cassandra://HOST:PORT/KEYSPACE, postgres://HOST:PORT/DATABASE or sqlite:///FILE; NAME= for stages that name this store. Repeatable.", "[NAME=]URL", env=True, shared=True),
    "engine": Option("Where tasks run: on Spark (the default), or in this process (the default of load).", "spark|inprocess", env=True, shared=True),
    "workers": Option("With --engine inprocess: spread the tasks over N processes on this machine; by default all run in this process.", "N", env=True, least=1, most=MOST_WORKERS, shared=True),
    "master": Option("Spark's master: local[2], spark://HOST:PORT.", "URL", env=True, shared=True),
    "spark_conf": Option("A property of Spark. Repeatable.", "K=V", env=True, shared=True),
    "takeover": Option("Do not wait for a run that seems alive; it is fenced off.", shared=True),
    "allow_weak_durability": Option("Accept stores that may lose acknowledged writes.", env=True, shared=True),
    "log_json": Option("JSON lines on standard error, no panel.", env=True, shared=True),
    "json": Option("JSON, one object on each line.", shared=True),
    "traceback": Option("With an error, also show its traceback.", env=True, shared=True),
    "max_excluded": Option("Stop before sealing a batch that would skip more inputs than this, and more than a tenth of the records that it reads.", "N", env=True, least=0),
    "files": Option("Paths or patterns of a source of files, instead of those that the flow declares. Repeatable.", "SOURCE=PATH"),
    "abandon": Option("Do not read the rest of the file with this content, which is gone; what was read stays counted. Repeatable.", "HASH"),
    "max_records": Option("Records of one batch, over all partitions and files.", "N", env=True, least=1),
    "create_topics": Option("Create missing topics: outputs with the partitions that the flow declares, inputs with N (0: inputs must exist).", "N", env=True, least=0),
    "close_windows": Option("At the end of the input (`load`, or --once) close all windows and publish their final results. Later records that belong before their end are late."),
    "interval": Option("How often a batch is made: 500ms, 5s, 1m. Flows without stages never wait for it.", "DURATION", env=True),
    "idle": Option("How long an input partition must be silent before stages that go by event time no longer wait for it.", "DURATION", env=True),
    "partitions": Option("Read only these input partitions, as one of several readers of the flow: 0-3, or 0,2,4-7, or 8- (8 and all above).", "SET", env=True),
    "registry": Option("Schema registry of the flow's codecs: registry://HOST:PORT, or registries://HOST:PORT with TLS.", "URL", env=True, shared=True),
    "once": Option("Process the messages that are there now, then end."),
    "drop": Option("Forget a stored stage that the flow no longer has. Repeatable.", "STAGE"),
    "accept_rollback": Option("Continue although the whole store went back in time."),
    "accept_changed_batch": Option("Finish a batch that a killed run has sealed or begun, although the code of now gives something else."),
    "accept_lost_dead_letters": Option("Read again what was skipped although its dead-letter records are gone: readers that begin in the middle may count it twice."),
    "max_bytes": Option("Bytes of values read and published in one batch, by the average so far.", "BYTES", env=True, least=1),
    "metrics_port": Option("Serve metrics for Prometheus, /live, /ready and /available on this port, to programs on this machine.", "PORT", env=True, least=1, most=65_535),
    "metrics_host": Option("Address for --metrics-port; 0.0.0.0 for all networks, as in a container.", "ADDRESS", env=True),
    "web": Option("Serve a page about this service on this port of this machine.", "PORT", env=True, most=65_535),
    "telemetry": Option("Export spans by OpenTelemetry, to where the environment variables OTEL_… point; JSON lines then have their ids.", env=True),
    "overwrite": Option("Replace all rows of the flow's tables by those of the files, in one step at the end."),
    "overwrite_partitions": Option("Replace only the rows whose partition keys are in the files; other rows stay."),
    "again": Option("Overwrite again with the same contents, because the flow's functions have changed."),
    "drop_overwrite": Option("Give up the overwrite that is under way, and end: tables stay as they are."),
    "match": Option("Only keys that match: robot-1*; * and ? stand for other text.", "PATTERN"),
    "where": Option("Only states for which this is true: events>100, line=L1. Repeatable.", "CONDITION"),
    "begin": Option("Only windows that begin then or later: 2026-11-20T10:00:00Z, or milliseconds since 1970.", "TIME", name="from"),
    "end": Option("Only windows that begin before.", "TIME", name="to"),
    "output": Option("Write to a new file: .jsonl, .jsonl.gz or .parquet.", "FILE"),
    "waiting": Option("Instead of states: how many records wait for event time in each state partition, and who holds them back."),
}
"""Name of a field -> its option."""
SHARED: Final = {name: option for name, option in TABLE.items() if option.shared}
"""Those that many commands take."""
PANELS: Final = {
    "Usual": ("once", "create_topics", "interval", "start", "files", "partitions", "close_windows", "overwrite", "overwrite_partitions"),
    "Observe": ("web", "metrics_port", "metrics_host", "telemetry"),
    "Limits": ("max_records", "max_bytes", "max_excluded", "idle"),
    "After an accident": ("accept_changed_batch", "accept_lost_dead_letters", "accept_rollback", "abandon", "drop", "again", "drop_overwrite"),
}
"""Panel of a long help -> the fields that it shows, in this order; what none names is shown first."""
