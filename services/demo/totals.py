"""The demo of totals: states of two stages, in Redis or Cassandra."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from services import audit, naive
from services.demo.positions import topic_end
from services.demo.scene import Ended
from services.demo.verdict import Outcome
from services.expected import expected
from services.fastening import totals
from services.reports import reports
from sqe_chain.adapters import WithSchema, open_store
from sqe_chain.ext.dev import CassandraServer, RedisServer
from sqe_chain.flow import Flow


@dataclass(slots=True)
class Totals:
    """The service that counts.

    Attributes:
        store: ``redis``, ``cassandra``, or ``mixed``: robots in Cassandra, lines and plans in Redis.
        seed: of the reports.
    """

    store: str
    seed: int
    _stores: dict[str, str] = field(default_factory=dict)

    name = "totals"
    levels = 2
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """See `Scene`."""
        return f"services.fastening:{'totals_in_two_stores' if self.store == 'mixed' else 'totals'}"

    @property
    def flow(self) -> Flow:
        """See `Scene`. Both flows have the same name and inputs."""
        return totals

    def start(self, directory: Path, ends: ExitStack) -> Mapping[str, str]:
        """See `Scene`."""
        if self.store != "cassandra":
            self._stores[""] = ends.enter_context(RedisServer(directory / "redis")).url
        if self.store != "redis":
            server = ends.enter_context(CassandraServer(directory / "cassandra"))
            store = open_store(server.url)
            if isinstance(store, WithSchema):
                store.make_schema({"": 1})
            store.close()
            self._stores["large" if self.store == "mixed" else ""] = server.url
        return self._stores

    def judge(self, ended: Ended) -> Outcome:
        """See `Scene`."""
        truth = expected(reports(self.seed, ended.produced))
        of_stage = {"": self._stores[""], "per-robot": self._stores.get("large", self._stores[""])}
        return Outcome(
            truth=truth,
            stages=audit.audit(of_stage, truth),
            records=topic_end(ended.log, naive.TOPIC),
            reported_replays=ended.replays,
            naive=naive.count(naive.values(ended.log, naive.TOPIC), truth),
            kills=ended.kills,
        )
