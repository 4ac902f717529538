"""Classes that are registered as events: they read what they write, and their ids are those of the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    RootModel,
    SecretStr,
    computed_field,
    create_model,
    field_serializer,
    model_serializer,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from relay import event
from relay.domain.errors import InvalidEvent
from relay.events import as_event

Model = TypeVar("Model")


def registered(model: type[BaseModel], aggregate_id: str = "id") -> type[BaseModel]:
    return event("part_made", aggregate_type="part", aggregate_id=aggregate_id)(model)


class Region(str, Enum):  # noqa: UP042 -- its str() is "Region.NORTH"
    NORTH = "north"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (str, "o1", "o1"),
        (Region, Region.NORTH, "north"),
        (Level, Level.HIGH, "3"),
        (int, 7, "7"),
        (bool, True, "true"),
        (float, 1.0, "1.0"),
        (Decimal, Decimal("1.50"), "1.50"),
        (UUID, UUID(int=5), str(UUID(int=5))),
        (date, date(2026, 1, 2), "2026-01-02"),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (bytes, b"ab", "ab"),
        (Annotated[str, PlainSerializer(lambda it: f"part-{it}")], "5", "part-5"),
        (RootModel[str], RootModel[str]("o1"), "o1"),
        (str | None, None, ""),
    ],
)
def test_the_id_of_the_aggregate_is_the_value_in_the_payload(kind: Any, value: Any, text: str) -> None:
    model = registered(create_model("Made", id=(kind, Field(alias="partId"))))
    sent = as_event(model(partId=value))
    assert sent.aggregate_id == text
    written = sent.payload["partId"]
    assert text == ("" if written is None else written if isinstance(written, str) else json.dumps(written))


def test_a_list_is_no_id() -> None:
    model = registered(create_model("Made", id=list[int]))
    with pytest.raises(InvalidEvent, match="no plain value"):
        as_event(model(id=[1]))


class Inner(BaseModel):
    part_name: str = Field(validation_alias="partName")


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def more(self) -> str:
        return self.id


#: Fields and configuration of a class, and whether it reads what it writes.
CLASSES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"x": (str, ...)}, {}, True),
    ({"x": (str, Field(alias="X"))}, {}, True),
    ({"x": (str, Field(alias="X"))}, {"populate_by_name": True}, True),
    ({"x": (str, Field(alias="X"))}, {"validate_by_name": True, "validate_by_alias": False}, False),
    ({"x": (str, Field(serialization_alias="X"))}, {}, False),
    ({"x": (str, Field(validation_alias="X"))}, {}, False),
    ({"x": (str, Field(validation_alias="X"))}, {"validate_by_name": True}, True),
    ({"x": (str, Field(validation_alias="X", serialization_alias="X"))}, {}, True),
    ({"x": (str, Field(validation_alias="X", serialization_alias="Y"))}, {}, False),
    ({"x": (str, Field(validation_alias=AliasChoices("X", "x")))}, {}, True),
    ({"x": (str, Field(validation_alias=AliasChoices("X", AliasPath("y", 0))))}, {}, False),
    ({"x": (str, Field(validation_alias=AliasPath("y", 0)))}, {}, False),
    ({"x_y": (str, ...)}, {"alias_generator": to_camel}, True),
    ({"x": (str, Field(exclude=True))}, {}, False),
    ({"x": (str, Field(default="", exclude=True))}, {}, True),
    ({"x": (Inner, ...)}, {}, False),
    ({"x": (dict[str, list[Inner | None]], Field(default_factory=dict))}, {}, False),
]


@pytest.mark.parametrize(("fields", "config", "fits"), CLASSES)
def test_a_class_that_cannot_read_what_it_writes_is_refused(
    fields: dict[str, Any], config: dict[str, Any], fits: bool
) -> None:
    model = create_model("Made", __config__=ConfigDict(**config), id=(str, "1"), **fields)
    if fits:
        registered(model)
        return
    with pytest.raises(InvalidEvent) as caught:
        registered(model)
    assert caught.value.field == "event"


@pydantic_dataclass
class Aliased:
    part: Annotated[int, Field(serialization_alias="partId")]


class Wholly(BaseModel):
    id: str

    @model_serializer
    def other(self) -> dict[str, int]:
        return {"other": 1}


class InPart(BaseModel):
    id: str = "1"
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)

    @field_serializer("at")
    def in_words(self, _: datetime) -> str:
        return "tomorrow"


class Asterisks(BaseModel):
    id: str = "1"
    word: dict[str, SecretStr | None] = {}


class Told(BaseModel):
    id: str = "1"
    word: SecretStr = SecretStr("hush")

    @field_serializer("word")
    def tell(self, word: SecretStr) -> str:
        return word.get_secret_value()


class Late(BaseModel):
    id: str = "1"
    later: Later | None = None


class Later(BaseModel):
    x: int = Field(default=1, serialization_alias="y")


class Holding(BaseModel, Generic[Model]):
    id: str = "1"
    held: Model


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (create_model("Made", id=(str, "1"), part=(Aliased, ...)), {"part": Aliased(part=1)}),
        (Wholly, {"id": "1"}),
        (InPart, {}),
        (Asterisks, {"word": {"a": SecretStr("hush")}}),
        (Late, {"later": Later()}),
        (Holding, {"held": Later()}),
        (create_model("Made", id=(str, "1"), part=(Json[int], ...)), {"part": "5"}),
        (create_model("Made", id=(str, "1"), part=(Enum("Pair", {"A": (1, 2)}), ...)), {"part": (1, 2)}),
    ],
)
def test_one_that_only_its_first_event_shows_is_refused_then(model: Any, values: dict[str, Any]) -> None:
    used = Holding[Later] if model is Holding else model
    for _ in range(2):
        with pytest.raises(InvalidEvent) as caught:
            as_event((registered(model) and used)(**values))
        assert caught.value.field == "event"


def test_a_secret_that_is_written_on_purpose_is_the_classes_own_affair() -> None:
    assert as_event(registered(Told)()).payload == {"id": "1", "word": "hush"}


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (RootModel[dict[str, int]], {"root": {"a": 1}}),
        (create_model("Made", id=(dict[str, int], ...)), {"id": {"a": 1}}),
        (create_model("Made", id=(str, Field(default="", exclude_if=lambda _: True))), {}),
    ],
)
def test_an_id_that_is_not_in_the_payload_or_no_plain_value_is_refused(model: Any, values: dict[str, Any]) -> None:
    name = next(iter(model.model_fields))
    with pytest.raises(InvalidEvent) as caught:
        as_event(registered(model, name)(**values))
    assert caught.value.field == "aggregate_id"


def test_what_a_class_adds_and_forbids_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="forbids"):
        registered(Forbidding)


def test_the_field_of_the_id_must_be_in_the_payload() -> None:
    with pytest.raises(InvalidEvent) as caught:
        registered(create_model("Made", id=(str, Field(default="", exclude=True))))
    assert caught.value.field == "aggregate_id"


NAMES = st.sampled_from(["a", "b", "aB"])
FIELDS = st.fixed_dictionaries(
    {},
    optional={"alias": NAMES, "validation_alias": NAMES, "serialization_alias": NAMES},
)
SWITCHES = st.fixed_dictionaries(
    {},
    optional={
        "validate_by_name": st.booleans(),
        "populate_by_name": st.booleans(),
        "serialize_by_alias": st.booleans(),
    },
)


@given(FIELDS, SWITCHES, st.text())
def test_whatever_class_is_registered_reads_what_it_writes(
    options: dict[str, Any], config: dict[str, Any], value: str
) -> None:
    model: Any = create_model("Made", __config__=ConfigDict(**config), id=(str, "1"), name=(str, Field(**options)))
    try:
        registered(model)
    except InvalidEvent:
        return
    made = model.model_construct(id="1", name=value)
    assert model.model_validate(as_event(made).payload) == made


# --- subclasses ---


class Part(BaseModel):
    id: str


class Screw(Part):
    length_mm: int = Field(alias="lengthMm")


def test_a_subclass_that_is_not_registered_is_no_event() -> None:
    class Made(registered(Part)):  # type: ignore[misc]
        more: int = 1

    with pytest.raises(InvalidEvent) as caught:
        as_event(Made(id="1"))
    assert caught.value.field == "event"
    registered(Made)
    assert as_event(Made(id="1")).payload == {"id": "1", "more": 1}


def test_a_generic_class_with_its_parameters_is_the_event() -> None:
    class Made(BaseModel, Generic[Model]):
        id: Model

    registered(Made)
    assert as_event(Made[int](id=5)).aggregate_id == "5"


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (Part, lambda it: it, lambda it: it),
        (list[Part], lambda it: [it], lambda it: [it]),
        (dict[str, Part | None], lambda it: {"a": it}, lambda it: {"a": it}),
    ],
)
def test_an_object_in_a_field_is_written_with_all_of_its_own_fields(
    kind: Any, value: Callable[[Any], Any], written: Callable[[Any], Any]
) -> None:
    model = registered(create_model("Made", id=(str, "1"), part=(kind, ...)))
    sent = as_event(model(part=value(Screw(id="s", lengthMm=5))))
    assert sent.payload["part"] == written({"id": "s", "lengthMm": 5})
