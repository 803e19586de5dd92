"""Goal: no command fails for what the terminal cannot show, and lines of JSON stay JSON. Method: streams of several encodings, in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from sqe_chain.cli import main

TEXT = 'Ä 中 € 😀 \udcff "\\ line\n\u2028'
ENCODINGS = ["ascii", "latin-1", "cp1252", "utf-8"]


class Streams:
    """Standard output and error of one encoding, with Python's own handling of errors."""

    def __init__(self, encoding: str) -> None:
        self.out = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
        self.err = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace", write_through=True)

    def run(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["sqe-chain", *arguments])
            patch.setattr(sys, "stdout", self.out)
            patch.setattr(sys, "stderr", self.err)
            with pytest.raises(SystemExit) as ended:
                main()
        return int(ended.value.code or 0)

    @staticmethod
    def text(stream: io.TextIOWrapper) -> str:
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        return stream.buffer.getvalue().decode(stream.encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_a_stream_cannot_hold_is_escaped_as_json_does(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    streams = Streams(encoding)
    assert streams.run(monkeypatch, "--version") == 0
    for stream in (streams.out, streams.err):
        stream.write(json.dumps({TEXT: [TEXT]}, ensure_ascii=False) + "\n")
        assert json.loads(streams.text(stream).split("\n")[-2]) == {TEXT: [TEXT]}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_commands_print_keys_and_states_in_any_encoding(
    flows: ModuleType, feed: Callable[..., None], monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    store = f"memory://encoded-{encoding}"
    feed("Ä中", "plain")
    started = Streams(encoding)
    arguments = ("--kafka", "broker:9092", "--engine", "inprocess", "--once", "--log-json")
    assert (
        started.run(
            monkeypatch, "run", "cli_flows:counts", *arguments, "--store", store, "--allow-weak-durability"
        )
        == 0
    )
    assert [json.loads(line) for line in Streams.text(started.err).splitlines()]
    for more in ((), ("--json",)):
        streams = Streams(encoding)
        assert streams.run(monkeypatch, "state", "cli_flows:counts", "per-word", "--store", store, *more) == 0
        shown = Streams.text(streams.out)
        if more:
            assert {json.loads(line)["key"] for line in shown.splitlines()} == {"Ä中", "plain"}
        else:
            assert "plain" in shown
            assert any(key in shown for key in ("Ä中", r"Ä\u4e2d", r"\u00c4\u4e2d"))
    listed = Streams(encoding)
    assert listed.run(monkeypatch, "flows", "list", "--store", store) == 0
    refused = Streams(encoding)
    assert refused.run(monkeypatch, "state", "cli_flows:counts", "Ä中", "--store", store) == 2
    assert "has no stage" in Streams.text(refused.err)
