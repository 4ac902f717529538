"""What docs/reference/wire.md says of messages of other producers is so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.domain.envelopes import decode, handler_request
from relay.domain.errors import MalformedMessage

ID = {"Nats-Msg-Id": "m1"}
BARE = {"event_type": "order_placed", "event_version": 1, "payload": {"item": "x"}}
CLOUD = {"specversion": "1.0", "type": "order_placed"}
CE = {f"ce-{name}": value for name, value in CLOUD.items()}
WHOLE = {**CLOUD, "id": "m3", "source": "/s", "data": {}}
SUBJECT = "shop.event.order_placed.v1"


@pytest.mark.parametrize(
    ("envelope", "subject", "headers", "body", "id", "event_type"),
    [
        ("handler", SUBJECT, ID, BARE, "m1", "order_placed"),
        (
            "cloudevents",
            "orders.placed",
            CE | ID,
            {},
            "m1",
            "order_placed",
        ),
        (
            "cloudevents",
            "orders.placed",
            {},
            WHOLE,
            "m3",
            "order_placed",
        ),
        ("raw", SUBJECT, ID, {"item": "x"}, "m1", "order_placed"),
        ("raw", "orders.placed", ID, {"item": "x"}, "m1", "orders_placed"),
        ("raw", "orders.placed", ID | {"Relay-Event-Type": "placed"}, {"item": "x"}, "m1", "placed"),
    ],
)
def test_what_is_enough(
    envelope: str, subject: str, headers: dict[str, str], body: Any, id: str, event_type: str
) -> None:
    found = json.loads(handler_request(envelope, subject, headers, json.dumps(body).encode()).body)
    assert (found["message_id"], found["event_type"], found["event_version"]) == (id, event_type, 1)


@pytest.mark.parametrize(
    ("envelope", "headers", "body", "fault"),
    [
        ("handler", {}, BARE, "Nats-Msg-Id"),
        ("handler", {}, BARE | {"message_id": "m2"}, "Nats-Msg-Id"),
        ("handler", ID, {"item": "x"}, "event_type"),
        ("cloudevents", ID, {"item": "x"}, "ce-specversion"),
        ("cloudevents", CE, {}, "ce-id"),
        ("message-envelope", ID, {"item": "x"}, "schema_version"),
        ("raw", {}, {"item": "x"}, "Nats-Msg-Id"),
    ],
)
def test_what_is_not(envelope: str, headers: dict[str, str], body: Any, fault: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode(envelope, SUBJECT, headers, json.dumps(body).encode())
    assert caught.value.field == fault
