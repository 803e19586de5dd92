"""Goal: records name their schemas as Confluent's serializers write it, byte by byte, and nothing else is read as a name."""

from __future__ import annotations

import pytest

from sqe_chain.ext.registry.frames import (
    HEADER,
    guid_header,
    guid_in,
    header_of,
    number_in,
    path_bytes,
    path_in,
    prefix,
)

GUID = "89791762-2336-4186-9674-299b90a802e2"
GUID_BYTES = bytes.fromhex("01897917622336418696 74299b90a802e2".replace(" ", ""))


@pytest.mark.parametrize(
    ("number", "text"), [(1, "0000000001"), (7, "0000000007"), (2**31 - 1, "007fffffff")]
)
def test_an_id_is_a_magic_byte_and_four_bytes(number: int, text: str) -> None:
    assert prefix(number).hex() == text
    assert number_in(bytes.fromhex(text) + b"rest") == number


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\1", b'{"id": 1}'])
def test_payloads_without_an_id_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="Expected byte 0 and the id of a schema"):
        number_in(data)


def test_a_guid_is_a_magic_byte_and_its_bytes_in_a_header() -> None:
    assert guid_header(GUID) == (HEADER, GUID_BYTES)
    assert guid_in(GUID_BYTES) == (GUID, b"")
    assert guid_in(GUID_BYTES + b"\x02\x04") == (GUID, b"\x02\x04")
    with pytest.raises(ValueError, match="Expected byte 1 and a GUID"):
        guid_in(GUID_BYTES[:-1])


def test_the_first_header_about_the_value_counts() -> None:
    headers = [("other", b"x"), ("__key_schema_id", b"k"), (HEADER, b"first"), (HEADER, b"second")]
    assert header_of(headers) == b"first"
    assert header_of(headers[:2]) is None


# As Confluent's documentation of the wire format has them: the first message alone is one byte.
@pytest.mark.parametrize(
    ("path", "text"),
    [((0,), "00"), ((1,), "0202"), ((0, 1), "040002"), ((1, 0, 200), "06020090 03".replace(" ", ""))],
)
def test_the_place_of_a_message_is_zigzag_varints(path: tuple[int, ...], text: str) -> None:
    assert path_bytes(path).hex() == text
    assert path_in(b"xx" + bytes.fromhex(text) + b"value", 2) == (path, 2 + len(text) // 2)


@pytest.mark.parametrize("text", ["", "02", "80", "8080808080808001", "01"])
def test_a_place_that_ends_early_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path of a message"):
        path_in(bytes.fromhex(text), 0)
