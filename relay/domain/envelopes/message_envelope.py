"""``message-envelope``: the MessageEnvelope of SR-MESSAGE-CONTRACTS §2, with a reader per schema version.

Copies are recognised by ``idempotency_key``, not by ``message_id``. It is the ``Nats-Msg-Id``, and the key of the
inbox is made from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from relay.domain.actor import ACTOR_ID, ACTOR_KIND, Actor, ActorKind, actor_of
from relay.domain.envelopes.event import EVENT_VERSION, Envelope, Outgoing, Own, by_version, json_text
from relay.domain.errors import InvalidPayload, MalformedMessage
from relay.domain.identity import MSG_ID
from relay.domain.reading import read_time, read_version

SCHEMA_VERSION: Final = "1.0"


def idempotency_key(id: str, payload: str) -> str:
    """``sha256:`` and the digest of the message as the outbox holds it, in hexadecimal digits.

    The bytes are, in UTF-8 and with nothing between them: the id as it is sent, and the payload as PostgreSQL
    writes the column (``payload::text``). Neither ever changes, so every re-send by any worker has the same key.
    The digest includes the id: two events with the same payload are two events.
    """
    return f"sha256:{hashlib.sha256(f'{id}{payload}'.encode()).hexdigest()}"


def _encode(event: Outgoing) -> tuple[str, Own]:
    if event.payload[:1] != "{":
        raise InvalidPayload("must be a JSON object in a message-envelope", field="payload")
    key = idempotency_key(event.id, event.payload)
    actor = actor_of(event.headers) or Actor(event.system_actor, ActorKind.SYSTEM)
    body = (
        f'{{"schema_version":"{SCHEMA_VERSION}","message_type":"{event.event_type}",'
        f'"message_id":{json_text(event.id)},"correlation_id":{json_text(event.correlation_id)},'
        f'"causation_id":{json_text(event.causation_id)},"timestamp":"{event.occurred_at}",'
        f'"actor_id":{json_text(actor.id)},"actor_kind":"{actor.kind}",'
        f'"payload":{event.payload},"idempotency_key":"{key}"}}'
    )
    return body, {MSG_ID: key, EVENT_VERSION: str(event.event_version), ACTOR_ID: None, ACTOR_KIND: None}


def _read_1_0(_subject: str, headers: Mapping[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
    for name in _REQUIRED:
        if fields.get(name) is None:
            raise KeyError(name)
    if not isinstance(fields["payload"], dict):
        raise MalformedMessage("is no JSON object", field="payload")
    read_time(fields["timestamp"], "timestamp")
    return {
        "event_type": fields["message_type"],
        "event_version": read_version(headers.get(EVENT_VERSION, "1")),
        "occurred_at": fields["timestamp"],
        **{name: fields.get(name) for name in _KEPT},
    }


#: The fields that every envelope knows by these names.
_KEPT: Final = (
    "message_id",
    "idempotency_key",
    "correlation_id",
    "causation_id",
    "actor_id",
    "actor_kind",
    "payload",
)
#: The fields that §2 requires, besides the version.
_REQUIRED: Final = (
    "message_type",
    "message_id",
    "timestamp",
    "actor_id",
    "actor_kind",
    "payload",
    "idempotency_key",
)

MESSAGE_ENVELOPE: Final = Envelope(_encode, by_version("schema_version", {SCHEMA_VERSION: _read_1_0}))
