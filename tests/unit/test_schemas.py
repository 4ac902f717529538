"""The JSON Schemas of the package: what they are, how they are applied, and what their changes mean."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from typer.testing import CliRunner, Result

from relay import schemas
from relay.adapters.jsonschema import validated
from relay.cli import create_app
from relay.domain.envelopes import ENVELOPES, Envelope, Outgoing, decode, encode
from relay.domain.errors import InvalidEvent, InvalidRequest, MalformedMessage
from relay.domain.schema_changes import changes
from tests.pages import code
from tests.unit.envelope_support import EVENT, SUBJECT

CHECKED = validated(ENVELOPES["message-envelope"], "schema_version", schemas.versions("message-envelope"))


def relay(*arguments: str) -> Result:
    return CliRunner().invoke(create_app(["schema"]), ["schema", *arguments])


# --- the schema of MessageEnvelope ---


def test_it_is_a_schema_of_2020_12_and_takes_the_example_of_the_contracts() -> None:
    schema = json.loads(schemas.schema("message-envelope", "1.0"))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(
        {
            "schema_version": "1.0",
            "message_type": "LoopCreated",
            "message_id": "evt_01HQGX8K9JNPQR5MWTVYZ3F4BC",
            "correlation_id": "req_01HQGX8K9JNPQR5MWTVYZ3F4AB",
            "causation_id": None,
            "timestamp": "2024-01-15T14:30:00Z",
            "actor_id": "user_01HQGW8K9JNPQR5MWTVYZ3F4AA",
            "actor_kind": "HUMAN",
            "payload": {"loop_id": "loop_01HQGX8K9JNPQR5MWTVYZ3F4BD"},
            "idempotency_key": "sha256:abc123def456...",
        }
    )


@pytest.mark.parametrize(
    ("field", "value"), [("timestamp", "2025-12-28T22:00:00+02:00"), ("timestamp", "2025-12-28T22:00Z")]
)
def test_what_only_the_schema_refuses_is_malformed(field: str, value: Any) -> None:
    body, headers = encode(CHECKED, EVENT)
    assert decode(CHECKED, SUBJECT, headers, body).event_type == EVENT.event_type
    changed = json.dumps(json.loads(body) | {field: value}).encode()
    with pytest.raises(MalformedMessage, match="does not fit the JSON Schema of its version") as refused:
        decode(CHECKED, SUBJECT, headers, changed)
    assert refused.value.field == field
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    "time", ["2025-12-28t22:00:00z", "2025-12-28T22:00:00.123456789Z", "2025-12-28T22:00:00+00:00"]
)
def test_a_time_that_fits_the_schema_is_read(time: str) -> None:
    body, headers = encode(CHECKED, EVENT)
    told = json.dumps(json.loads(body) | {"timestamp": time}).encode()
    assert decode(CHECKED, SUBJECT, headers, told).occurred_at in (
        datetime(2025, 12, 28, 22, tzinfo=UTC),
        datetime(2025, 12, 28, 22, 0, 0, 123456, tzinfo=UTC),
    )


def test_what_does_not_fit_is_not_written() -> None:
    for payload in ("[]", "7", "null"):
        with pytest.raises(InvalidEvent) as refused:
            encode(CHECKED, EVENT._replace(payload=payload))
        assert refused.value.field == "payload"

    def without_actor(event: Outgoing) -> Any:
        body, headers = ENVELOPES["message-envelope"].encode(event)
        return json.dumps({key: value for key, value in json.loads(body).items() if key != "actor_id"}), headers

    forgetful = Envelope(without_actor, ENVELOPES["message-envelope"].decode)
    with pytest.raises(InvalidEvent, match="JSON Schema of its version: required") as refused:
        encode(validated(forgetful, "schema_version", schemas.versions("message-envelope")), EVENT)
    assert refused.value.field == "actor_id"


# --- what a change means ---

OLD = {
    "type": "object",
    "required": ["id", "kind"],
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 9},
        "kind": {"enum": ["A", "B"]},
        "n": {"type": ["integer", "null"], "minimum": 0},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        "tree": {"$ref": "#/$defs/node"},
        "closed": {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False},
    },
    "$defs": {
        "tag": {"type": "string", "pattern": "^a"},
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "says": {"type": "string"}}},
    },
}


def changed(path: str, value: Any) -> Any:
    new = json.loads(json.dumps(OLD))
    *parts, last = path.split("/")
    table = new
    for part in parts:
        table = table[part]
    if value is ...:
        del table[last]
    else:
        table[last] = value
    return new


OLD_READERS, NEW_READERS = "old readers refuse new messages", "new readers refuse old messages"
MINOR = [
    ("properties/extra", {"type": "string"}, "extra: is a new optional field"),
    ("properties/tags", ..., "tags: is no field any more"),
    ("properties/id/title", "An id", None),
    ("description", "Anything", None),
    ("properties/kind/enum", ["B", "A"], None),
    ("properties/n/type", ["null", "integer"], None),
]
BREAKING = [
    ("required", ["id", "kind", "n"], f"n: is required now: {NEW_READERS}"),
    ("required", ["id", "kind", "new"], f"new: is required now: {NEW_READERS}"),
    ("required", ["id"], f"kind: is optional now: {OLD_READERS}"),
    ("properties/kind", ..., None),
    ("properties/kind/enum", ["A"], f"kind: 'B' is gone: {NEW_READERS}"),
    ("properties/kind/enum", ["A", "B", "C"], f"kind: 'C' is new: {OLD_READERS}"),
    ("properties/kind", {"const": "A"}, f"kind: 'B' is gone: {NEW_READERS}"),
    ("properties/kind", {}, f"kind: its values are free now: {OLD_READERS}"),
    ("properties/id/enum", ["x"], f"id: its values are a list now: {NEW_READERS}"),
    ("properties/id/type", "integer", "id: type string is integer: readers of each refuse messages of the other"),
    ("properties/id/type", ["string", "null"], f"id: type string is null/string: {OLD_READERS}"),
    ("properties/n/type", "integer", f"n: type integer/null is integer: {NEW_READERS}"),
    ("properties/id/minLength", 2, f"id: minLength 1 is 2: {NEW_READERS}"),
    ("properties/id/maxLength", 20, f"id: maxLength 9 is 20: {OLD_READERS}"),
    ("properties/id/maxLength", ..., f"id: maxLength 9 is none: {OLD_READERS}"),
    ("properties/n/maximum", 7, f"n: maximum none is 7: {NEW_READERS}"),
    ("properties/id/format", "uuid", f"id: format is another: {NEW_READERS}"),
    ("properties/tags/items", {"type": "integer"}, None),
    ("$defs/tag/pattern", "^b", "tags[]: pattern is another: readers of each refuse messages of the other"),
    ("$defs/node/properties/says/type", "integer", "tree.says: type string is integer"),
    ("additionalProperties", False, f"unknown fields are refused now: {NEW_READERS}"),
    ("additionalProperties", {"type": "string"}, "the schema of unknown fields is another"),
    ("properties/closed/properties/c", {}, f"closed.c: is a new optional field: {OLD_READERS}"),
    ("properties/closed/properties/b", ..., f"closed.b: is no field any more: {NEW_READERS}"),
    ("properties/closed/additionalProperties", True, f"closed: unknown fields are ignored now: {OLD_READERS}"),
    ("properties/n/type", ["number", "null"], f"n: type integer/null is null/number: {OLD_READERS}"),
    ("properties/id/type", ..., f"id: type string is any: {OLD_READERS}"),
    ("properties/id", False, f"id: nothing is valid now: {NEW_READERS}"),
    ("oneOf", [{}], f"oneOf is another: {NEW_READERS}"),
    ("properties/tags/prefixItems", [{}], "tags: the first items have other schemas"),
]


@pytest.mark.parametrize(("path", "value", "said"), MINOR)
def test_a_minor_change(path: str, value: Any, said: str | None) -> None:
    found = changes(OLD, changed(path, value))
    assert [f"{change.field}: {change.said}" for change in found] == ([said] if said else [])
    assert not any(change.breaking for change in found)


@pytest.mark.parametrize(("path", "value", "said"), BREAKING)
def test_a_breaking_change(path: str, value: Any, said: str | None) -> None:
    found = changes(OLD, changed(path, value))
    assert found[0].breaking
    if said is not None:
        assert f"{found[0].field}: {found[0].said}".removeprefix(": ").startswith(said)
        assert len(found) == 1


def test_breaking_changes_come_first() -> None:
    new = changed("properties/extra", {})
    new["properties"]["zz"] = {}
    new["required"] = ["id"]
    assert [change.kind for change in changes(OLD, new)] == ["breaking", "minor", "minor"]


def test_a_schema_is_the_same_as_itself_and_true_is_anything() -> None:
    assert changes(OLD, OLD) == changes(True, {}) == changes({}, True) == []
    assert changes(False, {})[0].said == f"nothing is valid before: {OLD_READERS}"


# --- the command ---


def test_the_command_lists_and_prints() -> None:
    assert relay("list").stdout == "message-envelope.1.0\n"
    for arguments in (["message-envelope"], ["message-envelope", "--version", "1.0"]):
        assert json.loads(relay(*arguments).stdout)["title"] == "MessageEnvelope 1.0"
    unknown = relay("message-envelope", "--version", "9.0")
    assert isinstance(unknown.exception, InvalidRequest)
    assert "there are: message-envelope.1.0" in str(unknown.exception)


def test_the_command_compares(tmp_path: Path) -> None:
    old, minor, breaking = (tmp_path / f"{name}.json" for name in ("old", "minor", "breaking"))
    old.write_text(json.dumps(OLD))
    minor.write_text(json.dumps(changed("properties/extra", {})))
    breaking.write_text(json.dumps(changed("properties/kind/enum", ["A", "C" * 100])))
    same = relay("diff", str(old), str(old))
    assert (same.exit_code, same.stdout) == (0, "the same\n")
    answer = relay("diff", str(old), str(minor))
    assert answer.exit_code == 0
    assert answer.stdout == "minor     extra: is a new optional field\nminor: 1; the version may stay\n"
    answer = relay("diff", str(old), str(breaking))
    assert answer.exit_code == 1
    assert answer.stdout.splitlines()[-1] == "breaking: 1 of 1; give the schema another version"
    assert max(map(len, answer.stdout.splitlines())) <= 80
    [told] = json.loads(relay("diff", str(old), str(breaking), "--json").stdout)
    assert (told["kind"], told["field"]) == ("breaking", "kind")


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(OLD))
    schema = changed("properties/kind/enum", ["A"])
    schema["properties"]["note"] = {"type": "string"}
    new.write_text(json.dumps(schema))
    assert relay("diff", str(old), str(new)).stdout == code("docs/reference/envelopes.md", "text", 1)


def test_the_command_compares_with_a_schema_of_the_package(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(schemas.schema("message-envelope"))
    assert relay("diff", "message-envelope.1.0", str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "is not a JSON Schema"),
        ('{"type": "strong"}', "is not a JSON Schema"),
        ('{"minLength": "1"}', "is not a JSON Schema"),
        (None, "there is no schema"),
    ],
)
def test_what_is_no_schema_is_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "new.json"
    if text is not None:
        file.write_text(text)
    answer = relay("diff", "message-envelope.1.0", str(file))
    assert isinstance(answer.exception, InvalidRequest)
    assert reason in str(answer.exception)
