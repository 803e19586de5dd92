"""What is fuzzed, and the inputs that are known: the published vectors, and those that were kept because something new came of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.lab.fuzzing import frames, keys, mutator, texts, ways
from tests.lab.fuzzing.engine import Target
from tests.lab.fuzzing.records import Record, Script, to_bytes

CORPUS: Final = Path(__file__).with_name("corpus")
TARGETS: Final = {
    one.name: one
    for one in (
        Target("envelopes", ways.check, mutator.mutated, 0.85),
        Target("frames", frames.check, frames.mutated, 0.08),
        Target("keys", keys.check, keys.mutated, 0.05),
        Target("texts", texts.check, texts.mutated, 0.02),
    )
}


def known(target: Target) -> list[bytes]:
    """The committed corpus of a target, and the vectors, in an order that is always the same."""
    found = [file.read_bytes() for file in sorted((CORPUS / target.name).glob("*.bin"))]
    return [*vectors(), *found] if target.name == "envelopes" else found or [b"\x00"]


def vectors() -> list[bytes]:
    """The vectors of proto/vectors.json as inputs."""
    file = Path(__file__).parents[3] / "proto" / "vectors.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    records = [
        Record(bytes.fromhex(one["bytes"]))
        for name in ("envelopes", "malformed")
        for one in found[name].values()
    ]
    for one in found["carried"].values():
        value = None if one["value"] is None else bytes.fromhex(one["value"])
        records.append(Record(value, (bytes.fromhex(one["headers"]["sqe-chain"]),)))
    return [to_bytes(Script(setting, records)) for setting in (0, 15)]
