"""A block of records with the fields of their envelopes side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sqe_chain.chain import ROOT_LENGTH, root_position, stored_epoch
from sqe_chain.envelope.carrier import envelopes_of
from sqe_chain.envelope.columns import Columns, Ints, Rows
from sqe_chain.envelope.head import EnvelopeHead
from sqe_chain.ports import Message

# Big-endian, so that positions compare as bytes.
_ROOT: Final = np.dtype([("epoch", ">u4"), ("offset", ">u8")])
_parse_head: Final = EnvelopeHead.FromString


class EnvelopeBlock:
    """Records with the columns of their envelopes.

    Args:
        messages: the records.
        type_name: what envelopes say of the payload's type.

    Attributes:
        messages: the records.
        columns: the fields of their envelopes.
        values: the envelopes.
        carried: the envelopes are in the records' headers.
    """

    __slots__ = ("carried", "columns", "messages", "values")

    def __init__(self, messages: Sequence[Message], type_name: bytes) -> None:
        self.messages = messages
        envelopes, self.carried = envelopes_of(messages)
        self.values = [envelope or b"" for envelope in envelopes]
        self.columns = Columns(self.values, type_name, carried=self.carried)

    def head(self, index: int) -> EnvelopeHead:
        """The parsed envelope of a record."""
        return _parse_head(self.values[index])

    def position(self, index: int) -> bytes:
        """The position of a record."""
        columns, message = self.columns, self.messages[index]
        size = int(columns.position_size[index])
        if not size:
            return root_position(stored_epoch(message.leader_epoch()), message.offset())
        begin = int(columns.position[index] - columns.start[index])
        return self.values[index][begin : begin + size]

    def roots(self, indexes: Ints) -> Rows:
        """Positions of records that are their own roots."""
        chosen = [self.messages[index] for index in indexes.tolist()]
        rows = np.empty(len(chosen), _ROOT)
        rows["epoch"] = [stored_epoch(message.leader_epoch()) for message in chosen]
        rows["offset"] = [message.offset() for message in chosen]
        return rows.view(f"S{ROOT_LENGTH}")

    @property
    def size(self) -> int:
        """Bytes of the records' values."""
        if not self.carried:
            return self.columns.size
        return sum(len(message.value() or b"") for message in self.messages)

    def payloads(self, begin: int, end: int) -> list[bytes]:
        """The payloads of ordinary records, from one index to before another."""
        if self.carried:  # an ordinary one has a value
            return [message.value() or b"" for message in self.messages[begin:end]]
        columns = self.columns
        starts = columns.start[begin:end]
        begins, ends = columns.payload[begin:end] - starts, columns.payload_end[begin:end] - starts
        return [
            value[first:last]
            for value, first, last in zip(self.values[begin:end], begins.tolist(), ends.tolist(), strict=True)
        ]
