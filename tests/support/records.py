"""A message for tests that read records without a log."""

from __future__ import annotations

from dataclasses import dataclass

from sqe_chain.ports import Headers


@dataclass
class Record:
    """A message as a log and as a consumer give it.

    Attributes:
        at: its offset.
        data: its value.
        own_key: its key.
        heads: its headers.
        at_ms: its time.
        epoch: the leader epoch, as clients report it.
        place: topic and partition.
    """

    at: int
    data: bytes | None
    own_key: bytes | None = None
    heads: Headers | None = None
    at_ms: int = 0
    epoch: int | None = 0
    place: tuple[str, int] = "words", 0

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.own_key

    def value(self) -> bytes | None:
        return self.data

    def headers(self) -> Headers | None:
        return self.heads

    def timestamp(self) -> tuple[int, int]:
        return 1, self.at_ms

    def leader_epoch(self) -> int | None:
        return self.epoch

    def error(self) -> None:
        return None
