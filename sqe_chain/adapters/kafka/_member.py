"""The one member of a group: a consumer that reads nothing, and whose membership fences the commits of older runs.

It joins with the classic protocol and a fixed `group.instance.id` (KIP-345). A second one with that id takes its place at
once, and the broker refuses what the first one commits. What the driver does there is in docs/non-obvious.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as DriverPartition

from sqe_chain.adapters.kafka._clients import CONFIGURATION, MEMBERS, KafkaClient, error_for
from sqe_chain.adapters.kafka._group import RETRY, first_error, group_of, requests
from sqe_chain.adapters.kafka._settings import MEMBER, MEMBER_TUNING, READER, KafkaSettings
from sqe_chain.errors import Superseded
from sqe_chain.ports import Commit, Membership, TopicPartition

_SLICE_S: Final = 0.002
_LEAVE_S: Final = 2.0
_FENCED: Final = frozenset({"FENCED_INSTANCE_ID", "_FATAL", "_FENCED"})

_joining: dict[tuple[int, KafkaSettings, str], KafkaMember] = {}
"""Members that the broker has not admitted yet: it may wait for longer than one call of `join` does."""
_alive: set[KafkaMember] = set()
"""All others. A forked child must not destroy its parent's clients, so something has to refer to them."""


class KafkaMember(KafkaClient, Membership):
    """A membership; see `join`."""

    def __init__(self, settings: KafkaSettings, group: str, topics: Iterable[str]) -> None:
        self._group, self._topics, self._pid = group, sorted(topics), os.getpid()
        self._id: str | None = None  # of the member whose commits count; None: it is none yet, or no longer
        self._usable = True  # its driver is a member, or becomes one
        self._over: Superseded | None = None
        # What may be stored if nobody else has committed.
        self._known: dict[TopicPartition, list[Commit]] = {}
        self._replies: list[tuple[KafkaError | None, Sequence[DriverPartition]]] = []
        timeout_ms = str(max(int(settings.timeout_s * 1000), 10))
        fixed = {**READER, **MEMBER, "group.id": group, "socket.timeout.ms": timeout_ms}
        config = {**settings.client(fixed, MEMBER_TUNING), "on_commit": self._on_commit}
        super().__init__(settings, Consumer, config)
        self._config = config
        self._subscribe()

    def join(self) -> None:
        """Wait until the broker has admitted this member. May be called again after `Unavailable`."""
        doing = f"Joining group {self._group}"
        deadline = time.monotonic() + self._settings.timeout_s
        while self._id is None:
            self._serve(_SLICE_S, doing)
            self._faults.raise_refusal()
            if self._id is None and time.monotonic() > deadline:
                raise self.no_answer(doing)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        asked = list(partitions)
        commits = self._stored(asked)
        # What was known before stays: a run that slept must not take another one's commits for its own.
        for tp in asked:
            self._known.setdefault(tp, [commits[tp]] if tp in commits else [])
        return commits

    def commit(self, commits: Mapping[TopicPartition, Commit]) -> None:
        doing = f"Committing for group {self._group}"
        deadline = time.monotonic() + self._settings.timeout_s
        for tp, commit in commits.items():
            self._known.setdefault(tp, []).append(commit)
        while True:  # until the deadline
            if self._over is not None:
                raise self._over
            self._serve(0, doing)
            if not self._usable or self._id is None or self.driver.memberid() != self._id:
                self._rejoin()
            sent = (self._send(offsets, doing, deadline) for offsets in requests(self._group, commits))
            failed = next((refused for refused in sent if refused is not None), None)
            if failed is None:
                self._known |= {tp: [commit] for tp, commit in commits.items()}
                return
            if failed.name() in {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"}:
                self._usable = False
            elif failed.name() not in RETRY | MEMBERS and self._usable:
                raise error_for(failed, doing, self._settings)
            if time.monotonic() > deadline:
                raise self.no_answer(doing)

    def leave(self) -> None:
        if self._pid != os.getpid():
            return
        _alive.discard(self)
        with suppress(KafkaException, RuntimeError):
            if self._usable and self._over is None:
                # A static member does not leave when it is closed, but when it gives up its subscription.
                self.driver.unsubscribe()
                deadline = time.monotonic() + _LEAVE_S
                while self.driver.memberid() and time.monotonic() < deadline:
                    self.driver.poll(_SLICE_S)
        # Closing sends what is under way, and would wait for a broker that does not answer.
        closing = threading.Thread(target=super().close, name="sqe-chain leave", daemon=True)
        closing.start()
        closing.join(_LEAVE_S)

    def _subscribe(self) -> None:
        self._usable = True
        self.driver.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_assign(self, driver: Consumer, _: Sequence[DriverPartition]) -> None:
        driver.assign([])  # nothing is fetched
        if self._id in {None, driver.memberid()}:
            self._id = driver.memberid()
        else:  # its session had ended during a rebalance
            self._on_lost(driver, ())

    def _on_revoke(self, _: Consumer, __: Sequence[DriverPartition]) -> None:
        """Somebody else joins, or a topic has got partitions: the driver joins again as the same member."""

    def _on_lost(self, driver: Consumer, _: Sequence[DriverPartition]) -> None:
        """The session has ended. The driver would join again by itself, even if another run has committed in between."""
        self._usable = False
        with suppress(KafkaException):
            driver.unsubscribe()

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[DriverPartition]) -> None:
        self._replies.append((error, partitions))

    def _serve(self, wait_s: float, doing: str) -> None:
        """Serve the reports of the client's threads; raise what no retry helps against."""
        try:
            message = self.driver.poll(wait_s)
        except KafkaException as error:
            if self._is_over(error.args[0]):
                return
            raise error_for(error, doing, self._settings) from None
        failed = None if message is None else message.error()
        if failed is None or self._is_over(failed):
            return
        if failed.name() in CONFIGURATION and failed.name() not in MEMBERS:
            raise error_for(failed, doing, self._settings)

    def _send(self, offsets: Sequence[DriverPartition], doing: str, deadline: float) -> KafkaError | None:
        """Send one request; returns why it failed."""
        self._replies.clear()
        try:
            self.driver.commit(offsets=offsets, asynchronous=True)
            while not self._replies:
                self._serve(_SLICE_S, doing)
                if not self._usable:
                    return KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
                self._faults.raise_refusal()
                if time.monotonic() > deadline:
                    raise self.no_answer(doing)
        except KafkaException as error:
            refused: KafkaError = error.args[0]
            if self._is_over(refused):
                return refused
            raise error_for(error, doing, self._settings) from None
        whole, answer = self._replies.pop()
        failed = whole or first_error(answer)
        if failed is not None:
            self._is_over(failed)
        return failed

    def _is_over(self, error: KafkaError) -> bool:
        """Whether an error shows that the session of this member has ended, by itself.

        Raises:
            Superseded: a newer run has taken its place.
        """
        if error.name() not in _FENCED and not error.fatal():
            return False
        # A client whose session has ended, as in an outage of the broker, forgets its member id. Its next heartbeat is refused as one of
        # a member that was replaced. That proves nothing; whether anybody has committed since does.
        if self._id is None or (self._usable and self.driver.memberid() == self._id):
            raise self._superseded("has joined the group of the flow in its place")
        self._usable = False
        return True

    def _superseded(self, what: str) -> Superseded:
        self._over = Superseded(
            f"flow {self._group!r}: a newer run {what}, and this one no longer commits anything. Only one run works at a time. "
            "Stop the other one, if it is not the one that should go on"
        )
        return self._over

    def _rejoin(self) -> None:
        """Join again as another member, if nobody has committed since."""
        self._check_own_commits()
        if self._id is not None or not self._usable:  # else it is joining
            self._id = None
            self.driver = None  # its session has ended: there is nothing to leave
            self._connect(Consumer, self._config)
            self._subscribe()
        self.join()
        self._check_own_commits()  # somebody may have been there until now

    def _check_own_commits(self) -> None:
        for tp, commit in self._stored(self._known).items():
            if commit not in self._known[tp]:
                raise self._superseded(
                    f"has committed {tp[0]}[{tp[1]}]@{commit.offset} after the session of this one had ended"
                )

    def _stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Commit]:
        asked = list(partitions)
        if not asked:
            return {}
        with group_of(self._settings, self._group) as client:
            return client.committed(asked)


def join(settings: KafkaSettings, group: str, topics: Iterable[str]) -> KafkaMember:
    """Become the one member of a group; see `sqe_chain.ports.Log.join`."""
    key = os.getpid(), settings, group
    member = _joining.pop(key, None) or KafkaMember(settings, group, topics)
    _joining[key] = member
    member.join()
    _alive.add(_joining.pop(key))
    return member
