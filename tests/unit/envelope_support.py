"""One event and its wire form in each envelope, written by hand."""

from __future__ import annotations

from relay.domain.envelopes import Incoming, Outgoing, decode

ENVELOPES = ["handler", "message-envelope", "cloudevents", "raw"]
ID, CORRELATION, CAUSATION = (
    "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
    "550e8400-e29b-41d4-a716-446655440000",
    "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
)
SUBJECT = "vibespro.event.vibe_created.v2"
EVENT = Outgoing(
    id=ID,
    subject=SUBJECT,
    event_type="vibe_created",
    event_version=2,
    occurred_at="2025-12-28T22:00:00.000000Z",
    correlation_id=CORRELATION,
    causation_id=None,
    payload='{"title": "Café", "n": 1.50}',
    headers={"Actor-Id": 'An"na', "Actor-Kind": "HUMAN"},
    partition_key="vibe:42",
)
THEIRS = {"Actor-Id": 'An"na', "Actor-Kind": "HUMAN", "Nats-Msg-Id": ID, "Relay-Partition-Key": "vibe:42"}
KEY = "sha256:066d528021ecc8e0ec410c8301eb496f234d198e3654c434febabc16a79436a6"
HANDLER_BODY = (
    f'{{"message_id":"{ID}","subject":"{SUBJECT}","event_type":"vibe_created","event_version":2,'
    f'"occurred_at":"2025-12-28T22:00:00.000000Z","correlation_id":"{CORRELATION}","causation_id":null,'
    '"payload":{"title": "Café", "n": 1.50}}'
)
ENVELOPE_BODY = (
    f'{{"schema_version":"1.0","message_type":"vibe_created","message_id":"{ID}",'
    f'"correlation_id":"{CORRELATION}","causation_id":null,"timestamp":"2025-12-28T22:00:00.000000Z",'
    '"actor_id":"system","actor_kind":"SYSTEM","payload":{"title": "Café", "n": 1.50},'
    f'"idempotency_key":"{KEY}"}}'
)
CE_HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": ID,
    "ce-source": "/vibespro",
    "ce-type": "vibe_created",
    "ce-time": "2025-12-28T22:00:00.000000Z",
    "ce-datacontenttype": "application/json",
    "ce-eventversion": "2",
    "ce-partitionkey": "vibe:42",
    "ce-correlationid": CORRELATION,
}
KEYED = {"Nats-Msg-Id": KEY, "Relay-Event-Id": ID}
RAW_HEADERS = {
    "Relay-Event-Type": "vibe_created",
    "Relay-Event-Version": "2",
    "Relay-Occurred-At": "2025-12-28T22:00:00.000000Z",
    "Relay-Correlation-Id": CORRELATION,
}
WIRE = {
    "handler": (HANDLER_BODY, THEIRS),
    "message-envelope": (ENVELOPE_BODY, THEIRS | {"Relay-Event-Version": "2"} | KEYED),
    "cloudevents": ('{"title": "Café", "n": 1.50}', THEIRS | CE_HEADERS),
    "raw": ('{"title": "Café", "n": 1.50}', THEIRS | RAW_HEADERS),
}


def wire(envelope: str) -> tuple[bytes, dict[str, str]]:
    body, headers = WIRE[envelope]
    return body.encode(), dict(headers)


def received(envelope: str, changes: dict[str, str | None] | None = None, body: bytes | None = None) -> Incoming:
    """Decode the event's wire form with headers changed, or taken away by None, or with another body."""
    good, headers = wire(envelope)
    kept = {name: value for name, value in (headers | (changes or {})).items() if value is not None}
    return decode(envelope, SUBJECT, kept, good if body is None else body)
