"""What changes between two schemas of one version: every kind, and that silence means both can read."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field, create_model

from relay.commands.catalogue import Catalogue, declared
from relay.domain.errors import BreakingChange, InvalidRequest
from relay.domain.evolution import ChangeCode, Version, Weight, accepts, compare, compare_catalogues
from relay.events import command, event

E, W, N = Weight.ERROR, Weight.WARNING, Weight.NOTE
CLOSED = ConfigDict(extra="forbid")
OPEN = ConfigDict(extra="allow")


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


class Sizes(Enum):
    SMALL = "S"
    LARGE = "L"
    HUGE = "XL"


class Street(BaseModel):
    name: str


class StreetWithTown(BaseModel):
    name: str
    town: str


class Node(BaseModel):
    value: int
    next: Node | None = None


class LongNode(BaseModel):
    value: int
    next: LongNode | None = None
    hops: list[LongNode] = Field(default_factory=list)


class TextNode(BaseModel):
    value: str
    next: TextNode | None = None


def schema(config: ConfigDict | None = None, **fields: Any) -> dict[str, Any]:
    named = {name: it if isinstance(it, tuple) else (it, ...) for name, it in fields.items()}
    make: Any = create_model
    found: dict[str, Any] = make("It", __config__=config, **named).model_json_schema(mode="serialization")
    return found


def about(**known: Any) -> dict[str, Any]:
    return {**schema(a=int), "x-relay": known}


class Doubled(BaseModel):
    a: int

    @computed_field
    def twice(self) -> int:
        return 2 * self.a


LIMITED = Field(max_length=10)
#: Each kind of change: before, after, and all that is said of it.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[ChangeCode, Weight, str]]]] = {
    "nothing": (schema(a=int, b=Street), schema(a=int, b=Street), []),
    "order of fields": (schema(a=int, b=str), schema(b=str, a=int), []),
    "field added, optional": (schema(a=int), schema(a=int, b=(int, 0)), [(ChangeCode.FIELD_ADDED, N, "b")]),
    "field added, computed": (
        schema(a=int),
        Doubled.model_json_schema(mode="serialization"),
        [(ChangeCode.FIELD_ADDED, N, "twice")],
    ),
    "field added, old class forbids others": (
        schema(CLOSED, a=int),
        schema(CLOSED, a=int, b=(int, 0)),
        [(ChangeCode.FIELD_ADDED, W, "b")],
    ),
    "field added, required": (schema(a=int), schema(a=int, b=int), [(ChangeCode.FIELD_REQUIRED, E, "b")]),
    "field removed": (schema(a=int, b=str), schema(a=int), [(ChangeCode.FIELD_REMOVED, E, "b")]),
    "optional field removed": (schema(a=int, b=(str, "")), schema(a=int), [(ChangeCode.FIELD_REMOVED, E, "b")]),
    "field renamed": (schema(a=int, b=str), schema(a=int, c=str), [(ChangeCode.FIELD_RENAMED, E, "b")]),
    "field renamed and of another type": (
        schema(a=int, b=str),
        schema(a=int, c=bool),
        [(ChangeCode.FIELD_REMOVED, E, "b"), (ChangeCode.FIELD_REQUIRED, E, "c")],
    ),
    "became required": (
        schema(a=(int, 0)),
        schema(a=int),
        [(ChangeCode.FIELD_REQUIRED, E, "a"), (ChangeCode.WORDS_CHANGED, N, "a")],
    ),
    "became optional": (
        schema(a=int),
        schema(a=(int, 0)),
        [(ChangeCode.FIELD_OPTIONAL, W, "a"), (ChangeCode.WORDS_CHANGED, N, "a")],
    ),
    "type changed": (schema(a=int), schema(a=str), [(ChangeCode.TYPE_CHANGED, E, "a")]),
    "type narrowed": (schema(a=int | str), schema(a=int), [(ChangeCode.TYPE_CHANGED, E, "a")]),
    "type widened": (schema(a=int), schema(a=int | str), [(ChangeCode.TYPE_WIDENED, W, "a")]),
    "integer to number": (schema(a=int), schema(a=float), [(ChangeCode.TYPE_WIDENED, W, "a")]),
    "number to integer": (schema(a=float), schema(a=int), [(ChangeCode.TYPE_CHANGED, E, "a")]),
    "null allowed": (schema(a=int), schema(a=int | None), [(ChangeCode.TYPE_WIDENED, W, "a")]),
    "null refused": (schema(a=int | None), schema(a=int), [(ChangeCode.TYPE_CHANGED, E, "a")]),
    "enum narrowed": (schema(a=Sizes), schema(a=Size), [(ChangeCode.ENUM_NARROWED, E, "a")]),
    "enum widened": (schema(a=Size), schema(a=Sizes), [(ChangeCode.ENUM_WIDENED, W, "a")]),
    "enum became a literal of the same": (schema(a=Size), schema(a=Literal["L", "S"]), []),
    "text became an enum": (schema(a=str), schema(a=Size), [(ChangeCode.ENUM_NARROWED, E, "a")]),
    "enum became a text": (schema(a=Size), schema(a=str), [(ChangeCode.ENUM_WIDENED, W, "a")]),
    "optional enum narrowed": (
        schema(a=Sizes | None),
        schema(a=Size | None),
        [(ChangeCode.ENUM_NARROWED, E, "a")],
    ),
    "limit narrowed": (schema(a=str), schema(a=(str, LIMITED)), [(ChangeCode.LIMIT_NARROWED, E, "a")]),
    "limit widened": (schema(a=(str, LIMITED)), schema(a=str), [(ChangeCode.LIMIT_WIDENED, W, "a")]),
    "pattern changed": (
        schema(a=(str, Field(pattern="^a"))),
        schema(a=(str, Field(pattern="^b"))),
        [(ChangeCode.LIMIT_NARROWED, E, "a")],
    ),
    "in an object": (schema(a=Street), schema(a=StreetWithTown), [(ChangeCode.FIELD_REQUIRED, E, "a.town")]),
    "in an optional object": (
        schema(a=Street | None),
        schema(a=StreetWithTown | None),
        [(ChangeCode.FIELD_REQUIRED, E, "a.town")],
    ),
    "in a list": (
        schema(a=list[Street]),
        schema(a=list[StreetWithTown]),
        [(ChangeCode.FIELD_REQUIRED, E, "a[].town")],
    ),
    "in a map": (
        schema(a=dict[str, Street]),
        schema(a=dict[str, StreetWithTown]),
        [(ChangeCode.FIELD_REQUIRED, E, "a{}.town")],
    ),
    "in a union": (schema(a=int | Street), schema(a=int | StreetWithTown), [(ChangeCode.TYPE_CHANGED, E, "a")]),
    "in a tuple": (schema(a=tuple[int, str]), schema(a=tuple[int, int]), [(ChangeCode.TYPE_CHANGED, E, "a")]),
    "class that holds itself": (schema(a=Node), schema(a=LongNode), [(ChangeCode.FIELD_ADDED, N, "a.hops")]),
    "in a class that holds itself": (
        schema(a=Node),
        schema(a=TextNode),
        [(ChangeCode.TYPE_CHANGED, E, "a.value")],
    ),
    "others forbidden": (schema(OPEN, a=int), schema(CLOSED, a=int), [(ChangeCode.TYPE_CHANGED, E, "")]),
    "others allowed": (schema(CLOSED, a=int), schema(OPEN, a=int), [(ChangeCode.TYPE_WIDENED, W, "")]),
    "default changed": (schema(a=(int, 0)), schema(a=(int, 1)), [(ChangeCode.WORDS_CHANGED, N, "a")]),
    "aggregate changed": (
        about(aggregate_type="order", aggregate_id="a"),
        about(aggregate_type="order", aggregate_id="b"),
        [(ChangeCode.AGGREGATE_CHANGED, E, "")],
    ),
    "personal changed": (
        about(),
        about(personal={"subject": "a", "fields": ["b"]}),
        [(ChangeCode.PERSONAL_CHANGED, W, "")],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_change_has_its_code_and_its_weight(kind: str) -> None:
    old, new, expected = KINDS[kind]
    assert [(code, weight, path) for code, weight, path, _ in compare(old, new)] == expected


def test_versions_come_and_go() -> None:
    one, two, other = Version("made", 1), Version("made", 2), Version("gone", 1)
    it = schema(a=int)
    found = compare_catalogues({one: it, other: it}, {two: it}, lambda version: version == one)
    assert [(it.code, it.weight, it.version) for it in found] == [
        (ChangeCode.VERSION_REMOVED, E, other),
        (ChangeCode.VERSION_UPCAST, N, one),
        (ChangeCode.VERSION_ADDED, N, two),
    ]


# --- any schemas ---

NAMES = ("a", "b", "c")
LEAVES = st.one_of(
    st.sampled_from([{}, {"type": "boolean"}, {"type": "null"}, {"type": "number"}, {"type": "string"}]),
    st.builds(lambda least: {"type": "integer", "minimum": least}, st.integers(0, 2)),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 2)),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.sampled_from(["x", "y", 1, None]), min_size=1, unique=True)
    ),
    st.builds(lambda value: {"const": value}, st.sampled_from(["x", 1])),
    st.just({"$ref": "#/$defs/Node"}),
)


def fields(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda properties, needed, rest: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in needed],
            **({} if rest is None else {"additionalProperties": rest}),
        },
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        st.sets(st.sampled_from(NAMES)),
        st.none() | st.just(False),
    )


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        fields(inner),
        st.builds(lambda it: {"type": "object", "additionalProperties": it}, inner),
        st.builds(lambda it, most: {"type": "array", "items": it, "maxItems": most}, inner, st.integers(1, 3)),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    )


PARTS = st.recursive(LEAVES, larger, max_leaves=6)
NODES = fields(PARTS)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    return {**draw(NODES), "$defs": {"Node": draw(NODES)}}


@st.composite
def changed(draw: st.DrawFn, part: Any) -> Any:
    """A schema in which something, or nothing, is another."""
    if draw(st.integers(0, 7)) == 0:
        return draw(PARTS)
    if not isinstance(part, dict):
        return part
    made = dict(part)
    if "properties" in made:
        kept = {name: it for name, it in made["properties"].items() if draw(st.integers(0, 9))}
        made["properties"] = {name: draw(changed(it)) for name, it in kept.items()}
        if draw(st.integers(0, 2)) == 0:
            made["properties"].setdefault(draw(st.sampled_from(NAMES)), draw(PARTS))
        made["required"] = [
            name for name in made["properties"] if (name in made["required"]) != (draw(st.integers(0, 9)) == 0)
        ]
    for name in ("items", "additionalProperties"):
        if isinstance(made.get(name), dict):
            made[name] = draw(changed(made[name]))
    if "anyOf" in made:
        made["anyOf"] = [draw(changed(it)) for it in made["anyOf"]]
    if isinstance(made.get("$defs"), dict):
        made["$defs"] = {"Node": {**draw(NODES), **draw(changed(made["$defs"]["Node"]))}}
    return made


ANYTHING: st.SearchStrategy[Any] = st.sampled_from([None, True, 0, 1, 1.5, "x", "long", [], {}])


def limited(part: dict[str, Any]) -> dict[str, st.SearchStrategy[Any]]:
    """The values of the types that hold no other."""
    least = part.get("minimum", 0)
    return {
        "boolean": st.booleans(),
        "null": st.none(),
        "integer": st.integers(least, least + 2),
        "number": st.sampled_from([0, 1, 0.5]),
        "string": st.text("xy", max_size=min(4, part.get("maxLength", 4))),
    }


def values(document: dict[str, Any], part: dict[str, Any], depth: int = 4) -> st.SearchStrategy[Any]:
    """What a writer of a schema may write: only fields that it names."""
    kind = part.get("type")
    if depth == 0 or not part:
        found = ANYTHING
    elif "$ref" in part:
        found = values(document, document["$defs"]["Node"], depth - 1)
    elif "anyOf" in part:
        found = st.one_of([values(document, it, depth) for it in part["anyOf"]])
    elif "enum" in part or "const" in part:
        found = st.sampled_from(part.get("enum") or [part["const"]])
    elif kind == "array":
        found = st.lists(values(document, part["items"], depth - 1), max_size=part["maxItems"])
    elif kind == "object":
        inner = {name: values(document, it, depth - 1) for name, it in part.get("properties", {}).items()}
        needed = {name: it for name, it in inner.items() if name in part.get("required", ())}
        found = st.fixed_dictionaries(needed, optional={k: v for k, v in inner.items() if k not in needed})
        if isinstance(rest := part.get("additionalProperties"), dict):
            others = st.dictionaries(st.sampled_from(NAMES), values(document, rest, depth - 1), max_size=2)
            found = st.builds(lambda more, own: {**more, **own}, others, found)
    else:
        found = limited(part)[str(kind)]
    return found


def takes(document: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.Draft202012Validator(document).is_valid(value)


@given(st.data())
def test_without_an_error_new_readers_take_old_messages_and_without_a_warning_old_ones_new(
    data: st.DataObject,
) -> None:
    old = data.draw(documents())
    new = data.draw(changed(old))
    if "$defs" not in new:
        new = {**new, "$defs": old["$defs"]}
    weights = {weight for _, weight, _, _ in compare(old, new)}
    if E not in weights:
        value = data.draw(values(old, old))
        assert takes(new, value) or not takes(old, value)
        if W not in weights:
            value = data.draw(values(new, new))
            assert takes(old, value) or not takes(new, value)


def part_of(leaf: Any) -> list[dict[str, Any]]:
    """The small schemas around a leaf."""
    field = {"type": "object", "properties": {"a": leaf}}
    return [
        leaf,
        {"anyOf": [leaf, {"type": "null"}]},
        {"type": "array", "items": leaf},
        {"type": "object", "additionalProperties": leaf},
        field,
        {**field, "required": ["a"]},
        {**field, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": leaf, "b": {"type": "string"}}},
    ]


SMALL_LEAVES: list[dict[str, Any]] = [
    {},
    {"type": "integer"},
    {"type": "integer", "minimum": 1},
    {"type": "integer", "minimum": 2},
    {"type": "number"},
    {"type": "number", "maximum": 1},
    {"type": "string"},
    {"type": "string", "maxLength": 1},
    {"type": "string", "maxLength": 2},
    {"enum": ["x", "y"]},
    {"enum": ["x", 1, None]},
    {"const": "x"},
    {"type": "array", "maxItems": 1},
    {"type": "object", "additionalProperties": False},
]
SMALL = [part for leaf in SMALL_LEAVES for part in part_of(leaf)]
SINGLE: list[Any] = [None, True, 0, 1, 2, 0.5, "", "x", "xx"]
FEW = [
    *SINGLE,
    *([it] for it in SINGLE),
    [1, 1],
    {},
    *({"a": it} for it in SINGLE),
    {"b": "x"},
    {"b": 1},
    {"a": 1, "b": "x"},
]


def writes(part: dict[str, Any], value: Any) -> bool:
    """Whether a writer writes a value: as the schema wants it, and no field that it does not name."""
    if not isinstance(value, dict):
        return True
    options = part.get("anyOf", [part])
    return any(
        isinstance(it.get("additionalProperties"), dict) or {*value} <= {*it.get("properties", ())}
        for it in options
    )


def test_of_all_pairs_of_small_schemas_none_is_harmless_that_refuses_a_value() -> None:
    readers = [jsonschema_rs.Draft202012Validator(part) for part in SMALL]
    written = [
        [it for it in FEW if reader.is_valid(it) and (not part or writes(part, it))]
        for part, reader in zip(SMALL, readers, strict=True)
    ]
    silent = 0
    for old, reads_old, old_values in zip(SMALL, readers, written, strict=True):
        for new, reads_new, new_values in zip(SMALL, readers, written, strict=True):
            weights = {weight for _, weight, _, _ in compare(old, new)}
            refused = [it for it in old_values if not reads_new.is_valid(it)]
            assert E in weights or not refused, (old, new, refused)
            assert not accepts(new, new, old, old) or not refused, (old, new, refused)
            refused = [it for it in new_values if not reads_old.is_valid(it)]
            assert weights & {E, W} or not refused, (old, new, refused)
            silent += not weights
    assert silent > len(SMALL)


@given(documents())
def test_a_schema_has_not_changed_against_itself(document: dict[str, Any]) -> None:
    assert list(compare(document, json.loads(json.dumps(document)))) == []


# --- the catalogue ---


def order(**fields: Any) -> type[BaseModel]:
    make: Any = create_model
    made: type[BaseModel] = make("OrderPlaced", order_id=(str, ...), **fields)
    return event("order_placed", aggregate_type="order", aggregate_id="order_id")(made)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path / "event-schemas")


def written(catalogue: Catalogue, *classes: type[BaseModel], accepted: tuple[str, ...] = ()) -> list[str]:
    return list(catalogue.write(declared(classes), accepted))


def test_it_has_a_file_for_each_version_that_says_what_the_class_is(catalogue: Catalogue) -> None:
    start = command("iteration.start", to="sr", aggregate_id=None)(create_model("Start", n=(int, 0)))
    names = ["order_placed.v1.json", "sr.commands.iteration.start.v1.json"]
    assert written(catalogue, order(total=(int, ...)), start) == names
    assert sorted(path.name for path in catalogue.folder.iterdir()) == names
    schema = json.loads((catalogue.folder / names[0]).read_text())
    assert schema["x-relay"] == {"aggregate_type": "order", "aggregate_id": "order_id"}
    assert takes(schema, {"order_id": "o1", "total": 5})
    assert not takes(schema, {"order_id": "o1"})
    assert written(catalogue, order(total=(int, ...)), start) == []


def test_a_breaking_change_is_written_only_if_it_is_wanted(catalogue: Catalogue) -> None:
    written(catalogue, order(total=(int, ...)))
    before = (catalogue.folder / "order_placed.v1.json").read_bytes()
    with pytest.raises(BreakingChange, match=r"order_placed\.v1 total: FIELD_REMOVED"):
        written(catalogue, order())
    assert (catalogue.folder / "order_placed.v1.json").read_bytes() == before
    with pytest.raises(InvalidRequest, match=r"order_place\.v1"):
        written(catalogue, order(), accepted=("order_place.v1",))
    assert written(catalogue, order(), accepted=("order_placed.v1",)) == ["order_placed.v1.json"]
    assert written(catalogue, order(note=(str, ""))) == ["order_placed.v1.json"]


def test_a_version_leaves_the_catalogue_only_if_that_is_wanted(catalogue: Catalogue) -> None:
    other = event("other", aggregate_type="o", aggregate_id="id")(create_model("Other", id=(str, ...)))
    written(catalogue, order(), other)
    with pytest.raises(BreakingChange, match="VERSION_REMOVED"):
        written(catalogue, other)
    assert written(catalogue, other, accepted=("order_placed.v1",)) == ["order_placed.v1.json"]
    assert [path.name for path in catalogue.folder.iterdir()] == ["other.v1.json"]


def test_two_classes_of_one_version_must_agree(catalogue: Catalogue) -> None:
    written(catalogue, order(), order())
    assert [it.code for it in catalogue.changes(declared([order(), order(total=(int, ...))]))].count(
        ChangeCode.DECLARED_TWICE
    ) == 1


@pytest.mark.parametrize("text", ["no json", "[]", '{"a"'])
def test_a_file_that_is_no_schema_is_named(catalogue: Catalogue, text: str) -> None:
    catalogue.folder.mkdir()
    (catalogue.folder / "order_placed.v1.json").write_text(text)
    with pytest.raises(InvalidRequest, match=r"order_placed\.v1\.json"):
        catalogue.published()
