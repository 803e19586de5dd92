"""The demo of totals: states of two stages, in Redis, Cassandra or PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from services import audit
from services.demo.scene import Ended, Scene, start_cassandra, start_postgres
from services.demo.verdict import TotalsOutcome
from services.expected import expected
from services.fastening import totals
from services.reports import reports
from sqe_chain.ext.dev import RedisServer


class TotalsDemo(Scene[TotalsOutcome]):
    """The service that counts. Its store is ``redis``, ``cassandra``, ``postgres``, or ``mixed``: robots in Cassandra, lines and plans in Redis."""

    name, levels = "totals", 2
    flow = totals  # both flows have the same name and inputs

    def __init__(self, store: str, seed: int) -> None:
        self.target = f"services.fastening:{'totals_in_two_stores' if store == 'mixed' else 'totals'}"
        self.environment = {}
        self._store, self._seed = store, seed
        self._stores: dict[str, str] = {}

    def start(self, directory: Path, ends: ExitStack) -> Mapping[str, str]:
        if self._store == "postgres":
            self._stores[""] = start_postgres(directory, ends)
            return self._stores
        if self._store != "cassandra":
            self._stores[""] = ends.enter_context(RedisServer(directory / "redis")).url
        if self._store != "redis":
            self._stores["large" if self._store == "mixed" else ""] = start_cassandra(directory, ends)
        return self._stores

    def judge(self, ended: Ended) -> TotalsOutcome:
        truth = expected(reports(self._seed, ended.produced))
        of_stage = {"": self._stores[""], "per-robot": self._stores.get("large", self._stores[""])}
        return TotalsOutcome(stages=audit.audit(of_stage, truth), **ended.seen(truth))
