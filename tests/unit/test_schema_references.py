"""`relay schema diff` where a change stands behind a reference, or behind names that are keywords elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from relay.domain.errors import InvalidRequest
from relay.domain.schema_changes import changes

NUMBER = {"type": "integer"}
FORM: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
WIDER: dict[str, Any] = {**FORM, "properties": {"id": NUMBER, "by": {}}, "required": ["id", "by"]}
LATER: dict[str, Any] = {**FORM, "properties": {"id": {"type": "string"}, "by": {}}}


@pytest.mark.parametrize(
    "around",
    [
        lambda form: {"$ref": "#/$defs/a", "$defs": {"a": form}, "properties": {"x": {}}, "required": ["x"]},
        lambda form: {"$ref": "#/$defs/a", "$defs": {"a": form}, "properties": {"id": {"minLength": 1}}},
        lambda form: {"properties": {"x": {"$ref": "#/$defs/a%20b~1c"}}, "$defs": {"a b/c": form}},
        lambda form: {"properties": {"x": {"$ref": "#/oneOf/0"}}, "oneOf": [form]},
        lambda form: {"properties": {"$defs": form, "definitions": {}}},
        lambda form: {"properties": {"definitions": form}},
        lambda form: {"properties": {"$ref": form}},
        lambda form: {"properties": {"x": {"const": {"$defs": form["required"]}}}},
    ],
)
def test_a_breaking_change_is_seen_wherever_it_stands(around: Any) -> None:
    found = changes(around(FORM), around(WIDER))
    assert found
    assert found[0].breaking
    assert changes(around(FORM), around(FORM)) == []


def test_a_form_that_extends_another_one_has_minor_changes_too() -> None:
    def around(form: dict[str, Any]) -> dict[str, Any]:
        own = {"type": "object", "properties": {"x": {}}, "required": ["x"]}
        return {"$ref": "#/$defs/base", "$defs": {"base": form}, **own}

    [found] = changes(around(FORM), around(LATER))
    assert (found.field, found.breaking) == ("by", False)


@pytest.mark.parametrize(
    ("refusing", "breaking"),
    [
        ({"unevaluatedProperties": False}, True),
        ({"additionalProperties": NUMBER}, True),
        ({"additionalProperties": {}}, False),
        ({"propertyNames": {"pattern": "^i"}}, True),
        ({"maxProperties": 1}, True),
        ({"patternProperties": {"^b": NUMBER}}, True),
        ({"patternProperties": {"^x": NUMBER}}, False),
        ({"patternProperties": {"(?<x": NUMBER}}, True),
    ],
)
def test_a_new_optional_field_is_breaking_where_old_readers_may_refuse_it(
    refusing: dict[str, Any], breaking: bool
) -> None:
    [found] = changes({**FORM, **refusing}, {**LATER, **refusing})
    assert (found.field, found.breaking) == ("by", breaking)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#form", "$defs": {"a": {"$anchor": "form"}}},
        {"$ref": "form.json", "$defs": {"a": {"$id": "form.json"}}},
        {"$dynamicRef": "#form", "$defs": {"a": {"$dynamicAnchor": "form"}}},
        {"$ref": "#/$defs/b", "$defs": {"a": {}}},
    ],
)
def test_a_reference_that_cannot_be_followed_is_refused_not_ignored(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="cannot follow"):
        changes(schema, schema)
