"""Publishes records in transactions: readers of committed records see those of one together, or never.

The driver repeats the request that ends a transaction, and reports nothing of it (it has no client part of KIP-890). A first request that was delayed on another
connection may then arrive in the middle of the next transaction, and commit a part of that. A repetition waits for `retry.backoff.ms`, give or take 20 %. So a commit that was answered sooner was asked for once. After any
other the producer is replaced, and the broker refuses what the old one has sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaException

from sqe_chain.adapters.kafka._clients import error_for
from sqe_chain.adapters.kafka._settings import TRANSACTIONAL_RETRY_MS, TRANSACTIONAL_TUNING, KafkaSettings
from sqe_chain.adapters.kafka._writer import KafkaWriter, Sender
from sqe_chain.errors import ChainError, Unavailable
from sqe_chain.ports import Output, TransactionalWriter

_ONCE_S: Final = TRANSACTIONAL_RETRY_MS * 0.8 / 1000
"""A commit that took less was asked for once."""

_ABORT_S: Final = 1.0
"""How long an abort may take. Without it readers wait for the next writer, or for the transaction's timeout."""

_ENDED: Final = {"_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "PRODUCER_FENCED"}


class KafkaTransactionalWriter(KafkaWriter, TransactionalWriter):
    """Writes by one producer with a transactional id.

    Args:
        settings: of the log.
        transactional_id: see `Log.transactional_writer`.
        topics: that it writes to.
    """

    def __init__(self, settings: KafkaSettings, transactional_id: str, topics: Iterable[str]) -> None:
        super().__init__(settings)
        self.worn = False
        self._begun = False
        for topic in topics:
            self._look_up(topic)
        limits = [self._limit_of(topic) for topic in self._infos]
        own = {
            "transactional.id": transactional_id,
            "retry.backoff.ms": str(TRANSACTIONAL_RETRY_MS),
            # A batch holds records of one topic, and one that is larger than this holds a single record.
            "batch.size": str(min(limits)),
            "transaction.timeout.ms": dict(settings.config).get(
                "transaction.timeout.ms", TRANSACTIONAL_TUNING["transaction.timeout.ms"]
            ),
        }
        self._only = Sender(settings, max(limits), own)
        try:
            self._ask(self._only.driver.init_transactions, "Beginning transactions")
        except ChainError:
            self._only.close()
            raise

    def write(self, outputs: Sequence[Output]) -> None:
        if not self._begun:
            self._ask(self._only.driver.begin_transaction, "Beginning a transaction", wait=False)
            self._begun = True
        with _explaining():
            super().write(outputs)

    def flush(self) -> None:
        with _explaining():
            super().flush()

    def commit(self) -> None:
        if not self._begun:
            return
        self.flush()
        began = time.monotonic()
        self._ask(self._only.driver.commit_transaction, "Committing a transaction")
        self.worn = time.monotonic() - began >= _ONCE_S
        self._begun = False

    def close(self) -> None:
        if self._begun:
            with suppress(KafkaException):
                self._only.driver.abort_transaction(_ABORT_S)
        self._only.close()

    def _ask(self, action: Callable[..., Any], doing: str, *, wait: bool = True) -> None:
        """Call the driver, once: whatever a call without an answer has done, the next writer finds out."""
        with _explaining():
            try:
                action(*([self._settings.flush_s] if wait else []))
            except KafkaException as error:
                raise error_for(error, doing, self._settings) from None

    def _all(self) -> list[Sender]:
        return [self._only]

    def _senders_of(self, topic: str) -> list[Sender]:
        if topic not in self._by_topic:
            self._look_up(topic)
            self._by_topic[topic] = [self._only]
        return self._by_topic[topic]


@contextmanager
def _explaining() -> Iterator[None]:
    """Name the reasons for which a transaction has ended before its time: the driver names none, and reports it wherever it notices."""
    try:
        yield
    except ChainError as error:
        if not any(f"({code})" in str(error) for code in _ENDED):
            raise
        raise Unavailable(
            f"{error} A newer writer of the same id is there, or the transaction took longer than transaction.timeout.ms."
        ) from None
