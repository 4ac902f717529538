"""The JSON Schemas of the package: what they are, and how they are applied."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import jsonschema_rs
import pytest
from typer.testing import CliRunner, Result

from relay import schemas
from relay.adapters.jsonschema import validated
from relay.cli import create_app
from relay.domain.envelopes import ENVELOPES, Envelope, Outgoing, decode, encode
from relay.domain.errors import InvalidEvent, InvalidRequest, MalformedMessage
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
    with pytest.raises(InvalidEvent, match="required") as refused:
        encode(validated(forgetful, "schema_version", schemas.versions("message-envelope")), EVENT)
    assert refused.value.field == "actor_id"


# --- the command ---


def test_the_command_lists_and_prints() -> None:
    assert relay("list").stdout == "message-envelope.1.0\n"
    for arguments in (["message-envelope"], ["message-envelope", "--version", "1.0"]):
        assert json.loads(relay(*arguments).stdout)["title"] == "MessageEnvelope 1.0"
    unknown = relay("message-envelope", "--version", "9.0")
    assert isinstance(unknown.exception, InvalidRequest)
    assert "there are: message-envelope.1.0" in str(unknown.exception)
