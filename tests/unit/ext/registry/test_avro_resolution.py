"""Goal: whether a type reads all that a schema can write is judged as the Avro specification has it (1.12, "Schema Resolution").

The oracles: a row for each of its rules; and values that hypothesis draws, written and read by fastavro alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from io import BytesIO
from typing import Annotated, Any, Literal

import fastavro
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqe_chain.ext.registry import Avro
from sqe_chain.ext.registry.avro_samples import samples_of
from sqe_chain.ext.registry.schemas import WrittenSchema

INT_OR_TEXT = ["int", "string"]
TEXT_OR_LONG = ["string", "long"]


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def of(kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": "f", "type": kind, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_of(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def why(writer: Any, reader: Any) -> str:
    codec = Avro(dict, schema=reader)
    return codec.why_unread(WrittenSchema("AVRO", json.dumps(writer)))


READ = {
    **{
        f"promotion: {was} to {now}": (of(was), of(now))
        for was, others in {
            "int": ["int", "long", "float", "double"],
            "long": ["long", "float", "double"],
            "float": ["float", "double"],
            "double": ["double"],
            "string": ["string", "bytes"],
            "bytes": ["bytes", "string"],
        }.items()
        for now in others
    },
    "arrays whose items match": (of(array("int")), of(array("long"))),
    "maps whose values match": (of(map_of("int")), of(map_of("double"))),
    "enum: more symbols": (of(enum("A")), of(enum("A", "B"))),
    "enum: a symbol is gone, with a default": (of(enum("A", "B")), of(enum("A", default="A"))),
    "enum: another namespace": (of(enum("A", name="x.E")), of(enum("A", name="y.E"))),
    "enum: another name, as an alias": (of(enum("A")), of(enum("A", name="New", aliases=["E"]))),
    "fixed of the same size": (of(fixed(4)), of(fixed(4))),
    "a record within, whose fields match": (
        of(record(of("int"), name="I")),
        of(record(of("long"), name="I")),
    ),
    "union: all branches are there": (of(INT_OR_TEXT), of(TEXT_OR_LONG)),
    "union of the reader alone": (of("int"), of(TEXT_OR_LONG)),
    "union of the writer alone, all of it is read": (of(["int", "long"]), of("double")),
}
NOT_READ = {
    **{
        f"narrower: {was} to {now}": (of(was), of(now))
        for was, others in {
            "long": ["int"],
            "float": ["int", "long"],
            "double": ["int", "long", "float"],
            "int": ["string", "boolean", "bytes", "null"],
            "string": ["int", "boolean"],
            "boolean": ["int"],
            "null": ["string"],
        }.items()
        for now in others
    },
    "array to map": (of(array("int")), of(map_of("int"))),
    "arrays whose items do not match": (of(array("string")), of(array("int"))),
    "maps whose values do not match": (of(map_of("double")), of(map_of("long"))),
    "enum: a symbol is gone": (of(enum("A", "B")), of(enum("A"))),
    "enum: another name": (of(enum("A")), of(enum("A", name="New"))),
    "fixed of another size": (of(fixed(4)), of(fixed(5))),
    "a record within, whose fields do not match": (
        of(record(of("string"), name="I")),
        of(record(of("long"), name="I")),
    ),
    "a record within, of another name": (of(record(name="I")), of(record(name="J"))),
    "union: a branch is gone": (of(["null", "int", "string"]), of(["null", "int"])),
    "union of the reader alone, without it": (of("boolean"), of(TEXT_OR_LONG)),
    "union of the writer alone, a branch is not read": (of(["null", "long"]), of("long")),
}


@pytest.mark.parametrize("row", READ)
def test_what_the_rules_allow_is_read(row: str) -> None:
    writer, reader = READ[row]
    assert why(record(writer), record(reader)) == ""


@pytest.mark.parametrize("row", NOT_READ)
def test_what_the_rules_refuse_is_named_with_its_field(row: str) -> None:
    writer, reader = NOT_READ[row]
    assert "field 'f'" in why(record(of("int") | {"name": "a"}, writer), record(reader))


def test_fields_are_found_by_name_or_alias_and_may_be_missing_with_a_default() -> None:
    a, b = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}
    assert why(record(a, b), record(b, a)) == ""
    assert why(record(a, b), record(b)) == "", "a field that the reader does not have is ignored"
    assert why(record(a), record(a, {**b, "default": ""})) == ""
    assert "No default value for field b" in why(record(a), record(a, b))
    renamed = {"name": "c", "type": "string"}
    assert "field 'c'" in why(record(a, b), record(a, renamed))
    assert why(record(a, b), record(a, {**renamed, "aliases": ["b"]})) == ""


def test_a_record_of_another_name_needs_an_alias() -> None:
    assert (
        why(record(of("int")), record(of("int"), name="S")) == "record 'R' is not 'S', nor one of its aliases"
    )
    assert why(record(of("int")), record(of("int"), name="S", aliases=["R"])) == ""


def test_both_types_are_named() -> None:
    assert why(record(of("string")), record(of("long"))) == "field 'f': Schema mismatch: string is not long"


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    shop: str
    amount: float = 0.0
    note: str | None = None
    lines: list[Line] = field(default_factory=list)


LINE = record({"name": "article", "type": "string"}, name="Line")
SHOP = {"name": "shop", "type": "string"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([SHOP], ""),
        ([SHOP, {"name": "amount", "type": "long"}, {"name": "more", "type": "bytes"}], ""),
        ([SHOP, {"name": "note", "type": ["null", "string"]}], ""),
        ([SHOP, {"name": "lines", "type": array(LINE)}], ""),
        ([], "missing required field `shop`"),
        (
            [SHOP, {"name": "amount", "type": ["double", "null"]}],
            "Expected `float`, got `null` - at `$.amount`",
        ),
        ([SHOP, {"name": "note", "type": ["null", "string", "long"]}], "got `int` - at `$.note`"),
        (
            [SHOP, {"name": "lines", "type": array(record(name="Line"))}],
            "missing required field `article` - at `$.lines[0]`",
        ),
    ],
)
def test_a_class_without_a_schema_reads_by_its_names_defaults_and_types(fields: Any, text: str) -> None:
    found = Avro(Order).why_unread(WrittenSchema("AVRO", json.dumps(record(*fields))))
    assert text in found if text else found == ""


class Bounded(msgspec.Struct):
    kind: Literal["old", "new"]
    count: Annotated[int, msgspec.Meta(ge=5)] = 5


def test_a_class_that_takes_some_values_only_is_not_judged_to_read_all() -> None:
    """Then its schemas are not noted, and no later start compares them."""
    assert "Invalid enum value" in Avro(Bounded).why_unread(
        WrittenSchema("AVRO", json.dumps(record({"name": "kind", "type": "string"})))
    )


def test_records_within_themselves_have_samples() -> None:
    tree = record(
        of(["null", "T"]), {"name": "all", "type": array("T")}, {"name": "n", "type": "int"}, name="T"
    )
    assert why(tree, tree) == ""
    narrower = json.loads(json.dumps(tree).replace('"int"', '"string"'))
    assert "field 'n'" in why(tree, narrower)


def test_a_schema_that_nobody_can_write_is_not_judged() -> None:
    assert why(record(of("R")), record(of("R"))) == ""


def test_a_large_schema_is_tried_in_a_bounded_number_of_records() -> None:
    """Each level holds the one below twice: written out, it has a million branches."""
    below: Any = "int"
    named: dict[str, Any] = {}
    for level in range(20):
        fields = [{"name": name, "type": ["null", below]} for name in "ab"]
        named[f"L{level}"] = record(*fields, name=f"L{level}")
        below = f"L{level}"
    assert len(samples_of(below, named)) <= 1_000


PLAIN = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """A writer's schema, and a reader's that differs from it here and there."""
    count = 0

    def both(depth: int) -> tuple[Any, Any]:
        nonlocal count
        kind = draw(st.sampled_from(["plain", "plain", "union", "enum", "array", "map", "record"]))
        if kind == "plain" or depth == 0:
            was = draw(st.sampled_from(PLAIN))
            return was, draw(st.just(was) | st.sampled_from(PLAIN))
        if kind == "union":
            branches = draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3, unique=True))
            more = [] if "boolean" in branches else draw(st.sampled_from([[], ["boolean"]]))
            return branches, draw(st.permutations(branches)) + more
        count += 1
        if kind == "enum":
            symbols = st.lists(st.sampled_from("ABC"), min_size=1, unique=True)
            known, name = draw(symbols), f"E{count}"
            return enum(*known, name=name), enum(*draw(st.just(known) | symbols), name=name)
        if kind == "record":
            name = f"R{count}"
            inner = [both(depth - 1) for _ in range(draw(st.integers(0, 3)))]
            sides = [
                [{"name": "abc"[n], "type": kind} for n, kind in enumerate(side)]
                for side in zip(*inner, strict=True)
            ]
            writer, reader = sides or ([], [])
            return record(*writer, name=name), record(*draw(st.permutations(reader)), name=name)
        make, inner_pair = (array if kind == "array" else map_of), both(depth - 1)
        return make(inner_pair[0]), make(inner_pair[1])

    writer, reader = both(3)
    return record(of(writer)), record(of(reader))


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of(*map(values, schema))
    if isinstance(schema, dict):
        match schema["type"]:
            case "array":
                return st.lists(values(schema["items"]), max_size=3)
            case "map":
                return st.dictionaries(st.text(max_size=3), values(schema["values"]), max_size=3)
            case "enum":
                return st.sampled_from(schema["symbols"])
            case _:
                return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
    known: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32),
        "double": st.floats(),
        "bytes": st.text(max_size=3).map(str.encode),  # what a reader of texts takes, too
        "string": st.text(max_size=3),
    }
    return known[schema]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_judged_to_be_read_is_read_whatever_the_values(data: st.DataObject) -> None:
    writer, reader = data.draw(pairs())
    found = why(writer, reader)
    parsed, stream = fastavro.parse_schema(writer), BytesIO()
    fastavro.schemaless_writer(stream, parsed, data.draw(values(writer)))
    stream.seek(0)
    try:
        fastavro.schemaless_reader(stream, parsed, fastavro.parse_schema(reader))
    except fastavro.read.SchemaResolutionError:
        assert found, (writer, reader)
