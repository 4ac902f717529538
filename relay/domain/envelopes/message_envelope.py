"""``message-envelope``: the MessageEnvelope of SR-MESSAGE-CONTRACTS §2, with a reader per schema version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from relay.domain.envelopes.event import EVENT_VERSION, Envelope, Outgoing, Own, json_text
from relay.domain.errors import MalformedMessage
from relay.domain.reading import read_object, read_version

SCHEMA_VERSION: Final = "1.0"


def _encode(event: Outgoing) -> tuple[str, Own]:
    # The digest includes the id: two events with the same payload are two events.
    digest = hashlib.sha256(f"{event.id}{event.payload}".encode()).hexdigest()
    body = (
        f'{{"schema_version":"{SCHEMA_VERSION}","message_type":"{event.event_type}",'
        f'"message_id":"{event.id}","correlation_id":{json_text(event.correlation_id)},'
        f'"causation_id":{json_text(event.causation_id)},"timestamp":"{event.occurred_at}",'
        f'"actor_id":{json.dumps(event.headers.get("Actor-Id", "system"))},'
        f'"actor_kind":{json.dumps(event.headers.get("Actor-Kind", "SYSTEM"))},'
        f'"payload":{event.payload},"idempotency_key":"sha256:{digest}"}}'
    )
    return body, {EVENT_VERSION: str(event.event_version)}


def _decode(_subject: str, headers: Mapping[str, str], body: Any) -> dict[str, Any]:
    fields = read_object(body)
    version = fields.get("schema_version")
    reader = _READERS.get(version) if isinstance(version, str) else None
    if reader is None:
        raise MalformedMessage(f"is not one that is supported: {', '.join(_READERS)}", field="schema_version")
    return reader(headers, fields)


def _read_1_0(headers: Mapping[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "event_type": fields["message_type"],
        "event_version": read_version(headers.get(EVENT_VERSION, "1")),
        "occurred_at": fields["timestamp"],
        "correlation_id": fields.get("correlation_id"),
        "causation_id": fields.get("causation_id"),
        "payload": fields["payload"],
    }


_READERS: Final[dict[str, Callable[[Mapping[str, str], Mapping[str, Any]], dict[str, Any]]]] = {
    SCHEMA_VERSION: _read_1_0,
}

MESSAGE_ENVELOPE: Final = Envelope(_encode, _decode)
