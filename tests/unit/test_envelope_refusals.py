"""What others may send: MalformedMessage, naming the part at fault, and never any other error."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.envelopes import decode, encode, handler_request
from relay.domain.errors import MalformedMessage
from tests.unit.envelope_support import ENVELOPE_BODY, ENVELOPES, EVENT, HANDLER_BODY, ID, SUBJECT, WIRE, received

quick = settings(max_examples=60, deadline=None)


def changed(envelope: str, **fields: Any) -> bytes:
    """The event's body with fields changed, or taken away by Ellipsis."""
    body = json.loads(WIRE[envelope][0]) | fields
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()


BAD_HEADERS = [
    ("handler", {"Nats-Msg-Id": None}, "Nats-Msg-Id"),
    ("handler", {"Nats-Msg-Id": ""}, "Nats-Msg-Id"),
    ("handler", {"Nats-Msg-Id": "e" * 10_240}, "Nats-Msg-Id"),
    ("handler", {"Nats-Msg-Id": "evt\x01"}, "Nats-Msg-Id"),
    ("handler", {"Relay-Actor-Id": "ann"}, "actor_kind"),
    ("handler", {"Relay-Actor-Kind": "HUMAN"}, "actor_id"),
    ("raw", {"Relay-Actor-Id": "ann", "Relay-Actor-Kind": "human"}, "actor_kind"),
    ("cloudevents", {"Relay-Actor-Id": "a%00", "Relay-Actor-Kind": "HUMAN"}, "actor_id"),
    ("handler", {"Relay-Partition-Key": "a%00"}, "Relay-Partition-Key"),
    ("handler", {"Relay-Partition-Key": "\ud800"}, "Relay-Partition-Key"),
    ("cloudevents", {"ce-specversion": None}, "ce-specversion"),
    ("cloudevents", {"ce-specversion": "0.3"}, "ce-specversion"),
    ("cloudevents", {"ce-type": None}, "ce-type"),
    ("cloudevents", {"ce-type": "a..b"}, "event_type"),
    ("cloudevents", {"ce-type": ".a"}, "event_type"),
    ("cloudevents", {"ce-type": "a.*"}, "event_type"),
    ("cloudevents", {"ce-type": "a" + ".b" * 128}, "event_type"),
    ("cloudevents", {"ce-eventversion": "٣"}, "event_version"),
    ("cloudevents", {"ce-eventversion": "9" * 5_000}, "event_version"),
    ("cloudevents", {"ce-time": "yesterday"}, "occurred_at"),
    ("cloudevents", {"ce-correlationid": "x" * 201}, "correlation_id"),
    ("raw", {"Relay-Event-Version": "0"}, "event_version"),
    ("raw", {"Relay-Event-Version": "-1"}, "event_version"),
    ("raw", {"Relay-Occurred-At": "2025-12-28T22:00:00"}, "occurred_at"),
    ("raw", {"Relay-Occurred-At": "0001-01-01T00:00:00+14:00"}, "occurred_at"),
    ("raw", {"Relay-Causation-Id": ""}, "causation_id"),
    ("message-envelope", {"Relay-Event-Version": "two"}, "event_version"),
]
BAD_BODIES = [
    ("handler", b"", "body"),
    ("handler", b"\xff\xfe\x00", "body"),
    ("handler", b"{", "body"),
    ("handler", b"[]", "body"),
    ("handler", b'{"payload": NaN}', "body"),
    ("handler", changed("handler", message_id="550e8400-e29b-41d4-a716-446655440000"), "message_id"),
    ("handler", changed("handler", message_id="another"), "message_id"),
    ("handler", changed("handler", event_type=...), "event_type"),
    ("handler", changed("handler", event_type=["vibe"]), "event_type"),
    ("handler", changed("handler", event_version=...), "event_version"),
    ("handler", changed("handler", event_version=True), "event_version"),
    ("handler", changed("handler", event_version="2"), "event_version"),
    ("handler", changed("handler", occurred_at=7), "occurred_at"),
    ("handler", changed("handler", correlation_id={}), "correlation_id"),
    ("handler", changed("handler", causation_id=7), "causation_id"),
    ("handler", changed("handler", payload=...), "payload"),
    ("message-envelope", b'"text"', "body"),
    ("message-envelope", changed("message-envelope", schema_version=...), "schema_version"),
    ("message-envelope", changed("message-envelope", schema_version="2.0"), "schema_version"),
    ("message-envelope", changed("message-envelope", schema_version=1.0), "schema_version"),
    ("message-envelope", changed("message-envelope", message_type=...), "message_type"),
    ("message-envelope", changed("message-envelope", timestamp=...), "timestamp"),
    ("message-envelope", changed("message-envelope", payload=...), "payload"),
    ("message-envelope", changed("message-envelope", payload=[]), "payload"),
    ("message-envelope", changed("message-envelope", payload="{}"), "payload"),
    ("message-envelope", changed("message-envelope", message_id=...), "message_id"),
    ("message-envelope", changed("message-envelope", message_id=None), "message_id"),
    ("message-envelope", changed("message-envelope", message_id="e" * 201), "message_id"),
    ("message-envelope", changed("message-envelope", message_type=7), "event_type"),
    ("message-envelope", changed("message-envelope", actor_id=...), "actor_id"),
    ("message-envelope", changed("message-envelope", actor_id=""), "actor_id"),
    ("message-envelope", changed("message-envelope", actor_id={}), "actor_id"),
    ("message-envelope", changed("message-envelope", actor_kind=...), "actor_kind"),
    ("message-envelope", changed("message-envelope", actor_kind="ROBOT"), "actor_kind"),
    ("message-envelope", changed("message-envelope", actor_kind=["HUMAN"]), "actor_kind"),
    ("message-envelope", changed("message-envelope", idempotency_key=...), "idempotency_key"),
    ("message-envelope", changed("message-envelope", idempotency_key=""), "idempotency_key"),
    ("message-envelope", changed("message-envelope", idempotency_key=7), "idempotency_key"),
    ("message-envelope", changed("message-envelope", timestamp="2025-12-28T22:00:00"), "timestamp"),
    ("message-envelope", changed("message-envelope", timestamp="9999-12-31T23:00:00-05:00"), "timestamp"),
    ("message-envelope", changed("message-envelope", timestamp=1_700_000_000), "timestamp"),
    ("message-envelope", changed("message-envelope", correlation_id=7), "correlation_id"),
    ("message-envelope", changed("message-envelope", causation_id="a\nb"), "causation_id"),
    ("raw", b"1e400", "body"),
    ("raw", b"-Infinity", "body"),
    ("raw", b"9" * 5_000, "body"),
    ("cloudevents", b"not json", "body"),
]


@pytest.mark.parametrize(("envelope", "changes", "field"), BAD_HEADERS)
def test_a_message_with_bad_headers_is_malformed(
    envelope: str, changes: dict[str, str | None], field: str
) -> None:
    with pytest.raises(MalformedMessage) as raised:
        received(envelope, changes)
    assert raised.value.field == field


@pytest.mark.parametrize(("envelope", "body", "field"), BAD_BODIES)
def test_a_message_with_a_bad_body_is_malformed(envelope: str, body: bytes, field: str) -> None:
    with pytest.raises(MalformedMessage) as raised:
        received(envelope, body=body)
    assert (raised.value.code, raised.value.field) == ("MALFORMED_MESSAGE", field)
    assert len(str(raised.value)) < 300


# --- any input at all ---


@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize("depth", [102, 150, 990, 1_500, 100_000])
def test_a_body_that_nests_too_deep_is_malformed_however_deep_the_reader_stands(envelope: str, depth: int) -> None:
    for body in (b"[" * depth + b"]" * depth, b'{"schema_version":' * depth + b"1" + b"}" * depth):
        with pytest.raises(MalformedMessage, match="deeper than 100") as raised:
            received(envelope, body=body)
        assert raised.value.field == "body"


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_a_payload_of_a_hundred_levels_is_still_read_and_requested(envelope: str) -> None:
    payload = '{"n":' * 100 + "1" + "}" * 100
    body, headers = encode(envelope, EVENT._replace(payload=payload))
    assert f"{decode(envelope, SUBJECT, headers, body).payload}".count("{") == 100
    assert handler_request(envelope, SUBJECT, headers, body).body.count(b'{"n":') == 100


def test_an_envelope_nobody_knows_is_a_mistake_of_ours_and_kills_no_message() -> None:
    with pytest.raises(KeyError):
        decode("xml", SUBJECT, {"Nats-Msg-Id": ID}, b"{}")


hostile = st.sampled_from(
    ["", "0", "1", "1.0", "٣", "9" * 30, ID, f"{ID}.1", "%00", "%ff", "\ud800", "\x00", "null", "vibe", "a.b",
     "2025-12-28", "2025-12-28T22:00:00Z", "9999-12-31T23:59:59-14:00", "24:00"]
)  # fmt: skip
any_text = st.text(max_size=8) | hostile
names = st.sampled_from(
    [*WIRE["cloudevents"][1], *WIRE["raw"][1], "CE-TYPE", "Relay-Causation-Id", "ce-causationid"]
)
any_headers = st.dictionaries(names | st.text(max_size=8), any_text, max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=4,
)
fields = st.sampled_from([*json.loads(HANDLER_BODY), *json.loads(ENVELOPE_BODY)])
any_body = st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode())
any_changes = st.dictionaries(fields, json_values, max_size=3)


def read_or_refused(envelope: str, subject: str, headers: dict[str, str], body: bytes) -> None:
    """Whatever can be read gives a request too; whatever cannot is a MalformedMessage."""
    try:
        event = decode(envelope, subject, headers, body)
    except MalformedMessage:
        return
    request = json.loads(handler_request(envelope, subject, headers, body).body)
    if envelope != "handler":
        assert request["payload"] == event.payload
        assert request["event_type"] == event.event_type
    assert event.occurred_at is None or event.occurred_at.utcoffset() == timedelta(0)
    assert (event.partition_key or "").encode().find(b"\x00") == -1


@pytest.mark.parametrize("envelope", ENVELOPES)
@quick
@given(subject=any_text, headers=any_headers, body=any_body)
def test_any_headers_and_body_are_read_or_malformed(
    envelope: str, subject: str, headers: dict[str, str], body: bytes
) -> None:
    read_or_refused(envelope, subject, headers, body)


@pytest.mark.parametrize("envelope", ENVELOPES)
@quick
@given(headers=any_headers, body=st.none() | any_body, changes=any_changes)
def test_a_good_message_with_a_few_bad_parts_is_read_or_malformed(
    envelope: str, headers: dict[str, str], body: bytes | None, changes: dict[str, object]
) -> None:
    content = json.loads(WIRE[envelope][0]) | changes
    good = WIRE[envelope][1]
    read_or_refused(envelope, SUBJECT, good | headers, json.dumps(content).encode() if body is None else body)
    read_or_refused(envelope, SUBJECT, headers | good, json.dumps(content).encode())
