"""What codecs note, such as ids of schemas. Plans keep it.

Of what is written, at the start, so that a redo gives the same bytes. A registry may answer another id tomorrow: a subject was deleted
and registered again, or restored from a copy. Records that readers have would then differ from those that a redo publishes.

Of what is read, after each batch, so that a later start knows whether the type of then reads such records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from sqe_chain.codecs import Codec
from sqe_chain.errors import ChangedType, ConfigurationError
from sqe_chain.flow.compiled import CompiledFlow
from sqe_chain.plans.environment import Environment
from sqe_chain.plans.plan import Plan, Section
from sqe_chain.task.noted import Noted


@dataclass(frozen=True, slots=True)
class CodecNotes(Section):
    """What codecs have noted.

    Attributes:
        notes: name -> what was noted.
    """

    name: ClassVar[str] = "notes"
    notes: Mapping[str, str] = field(default_factory=dict)

    def carried(self, last: Plan, plan: Plan) -> CodecNotes:  # noqa: ARG002 - see `Section`
        """All of it: the next batch replaces it by what the flow of now has noted."""
        return self

    def to_json(self) -> dict[str, str]:
        return dict(self.notes)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls({str(name): str(note) for name, note in raw.items()})


def ask_codecs(env: Environment, known: Mapping[str, str]) -> None:
    """Let the flow's codecs ask their registry, at a start, before anything is encoded. Waits for a registry that does not answer.

    Args:
        env: the flow and its ports.
        known: what was noted before.

    Raises:
        ConfigurationError: a codec cannot be used so; the text has the line of the declaration.
        ChangedType: a source's type does not read what was read before.
        Unavailable: asked to stop while waiting.
    """
    notes = dict[str, str]()
    for what, codec in env.flow.asking_codecs:
        notes |= env.retry.call("ask the schema registry", partial(_prepare, what, codec, known))
    env.flow.notes.clear()
    env.flow.notes.update(notes)


def _prepare(what: str, codec: Codec[Any], known: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return codec.prepare(known)
    except (ChangedType, ConfigurationError) as error:
        raise type(error)(f"{what}: {error}").at(error.topic) from error


def given_of_notes(flow: CompiledFlow) -> Noted | None:
    """What tasks get; None: no codec has noted anything."""
    return Noted(dict(flow.notes)) if flow.notes else None
