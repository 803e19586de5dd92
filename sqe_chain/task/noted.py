"""What codecs have noted at the start of a service, as tasks get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.task.results import Job


@dataclass(frozen=True, slots=True)
class Noted:
    """What tasks get of it; see `sqe_chain.codecs.Codec.prepare`.

    Attributes:
        notes: name -> what was noted.
    """

    notes: Mapping[str, str]


def take_notes(flow: CompiledFlow, job: Job) -> None:
    """Let the codecs of this process encode as those of the service do."""
    noted = job.sections.find(Noted)
    if noted is not None:
        flow.notes.update(noted.notes)
