"""The wire form of an event, both ways, for the four envelopes a context may choose.

- ``handler``: the body is the request of the handler contract (SDS-047 §12), payload inside.
- ``message-envelope``: the MessageEnvelope 1.0 of SR-MESSAGE-CONTRACTS §2.
- ``cloudevents``: binary mode, attributes as ``ce-`` headers, the payload unchanged.
- ``raw``: the payload unchanged, the attributes as ``Relay-`` headers.

Encoding joins text around the stored payload and never parses it. Every value that is spliced into
JSON comes from a checked alphabet (tokens, UUIDs, timestamps) or goes through ``json.dumps``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote
from uuid import UUID

from relay.domain.agreement import CAUSATION, CORRELATION, EVENT_TYPE, EVENT_VERSION, OCCURRED_AT, agreed
from relay.domain.errors import InvalidSubject, MalformedMessage
from relay.domain.model import NatsMsgId
from relay.domain.ordering import KEY, partition_key
from relay.domain.reading import read_json, read_object, read_time, read_uuid, read_version
from relay.domain.subject import EventSubject, check_token, check_version

MSG_ID: Final = "Nats-Msg-Id"
SCHEMA_VERSION: Final = "1.0"
DEFAULT_ENVELOPE: Final = "handler"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.\-/:@!$&'()*+,;=~]*")  # a key that is its own quotation


class Outgoing(NamedTuple):
    """What encoding needs to know of an event; ids and times as text, straight from the database."""

    id: str
    subject: str
    event_type: str
    event_version: int
    occurred_at: str
    correlation_id: str | None
    causation_id: str | None
    payload: str
    headers: Mapping[str, str]
    partition_key: str


class Incoming(NamedTuple):
    """A received event, read from its envelope. ``payload`` is parsed JSON."""

    message_id: UUID
    generation: int
    event_type: str
    event_version: int
    occurred_at: datetime | None
    correlation_id: UUID | None
    causation_id: UUID | None
    partition_key: str | None
    payload: Any


# --- encoding -------------------------------------------------------------------------------------

_SPOKEN: Final = (EVENT_TYPE, EVENT_VERSION, OCCURRED_AT, CORRELATION, CAUSATION)
Own: TypeAlias = dict[str, str | None]  # the headers an envelope speaks through, None if it has nothing to say


def _text(value: str | None) -> str:
    return "null" if value is None else f'"{value}"'


def _encode_handler(event: Outgoing) -> tuple[str, Own]:
    body = (
        f'{{"message_id":"{event.id}","subject":"{event.subject}","event_type":"{event.event_type}",'
        f'"event_version":{event.event_version},"occurred_at":"{event.occurred_at}",'
        f'"correlation_id":{_text(event.correlation_id)},"causation_id":{_text(event.causation_id)},'
        f'"payload":{event.payload}}}'
    )
    # The body says it all, so these headers say nothing, and no caller's may. Where the subject is not the event's
    # own, a topic's say, they tell that the type is meant.
    own = dict.fromkeys(_SPOKEN)
    return body, own if event.subject.endswith(f".event.{event.event_type}.v{event.event_version}") else {
        **own,
        **_type(event),
    }


def _type(event: Outgoing) -> Own:
    return {EVENT_TYPE: event.event_type, EVENT_VERSION: str(event.event_version)}


def _encode_message_envelope(event: Outgoing) -> tuple[str, Own]:
    # The id belongs to it: two events may say the same, and both are meant.
    digest = hashlib.sha256(f"{event.id}{event.payload}".encode()).hexdigest()
    body = (
        f'{{"schema_version":"{SCHEMA_VERSION}","message_type":"{event.event_type}",'
        f'"message_id":"{event.id}","correlation_id":{_text(event.correlation_id)},'
        f'"causation_id":{_text(event.causation_id)},"timestamp":"{event.occurred_at}",'
        f'"actor_id":{json.dumps(event.headers.get("Actor-Id", "system"))},'
        f'"actor_kind":{json.dumps(event.headers.get("Actor-Kind", "SYSTEM"))},'
        f'"payload":{event.payload},"idempotency_key":"sha256:{digest}"}}'
    )
    return body, {EVENT_VERSION: str(event.event_version)}


def _encode_cloudevents(event: Outgoing) -> tuple[str, Own]:
    return event.payload, {
        "ce-specversion": "1.0",
        "ce-id": event.id,
        "ce-source": "/" + event.subject.split(".", 1)[0],
        "ce-type": event.event_type,
        "ce-time": event.occurred_at,
        "ce-datacontenttype": "application/json",
        "ce-eventversion": str(event.event_version),
        "ce-correlationid": event.correlation_id,
        "ce-causationid": event.causation_id,
    }


def _encode_raw(event: Outgoing) -> tuple[str, Own]:
    return event.payload, {
        **_type(event),
        OCCURRED_AT: event.occurred_at,
        CORRELATION: event.correlation_id,
        CAUSATION: event.causation_id,
    }


_ENCODERS: Final[dict[str, Callable[[Outgoing], tuple[str, Own]]]] = {
    "handler": _encode_handler,
    "message-envelope": _encode_message_envelope,
    "cloudevents": _encode_cloudevents,
    "raw": _encode_raw,
}


def encode(envelope: str, event: Outgoing, generation: int = 0) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an event. Our own names are not the caller's, even where we have no value."""
    body, own = _ENCODERS[envelope](event)
    own[MSG_ID] = event.id if generation == 0 else f"{event.id}.{generation}"
    key = event.partition_key
    own[KEY] = (key if _PLAIN.fullmatch(key) else quote(key, safe="/:@!$&'()*+,;=~")) or None
    headers = {name: value for name, value in own.items() if value is not None}
    if event.headers:
        taken = {name.lower() for name in own}
        headers = {name: value for name, value in event.headers.items() if name.lower() not in taken} | headers
    return body.encode(), headers


# --- decoding -------------------------------------------------------------------------------------

#: Finds the fields of an event in subject, headers and content of the body. Raises KeyError for a missing one.
_Decoder: TypeAlias = Callable[[str, Mapping[str, str], Any], Mapping[str, Any]]


def decode(envelope: str, subject: str, headers: Mapping[str, str], body: bytes) -> Incoming:
    """Read a received message. Raises MalformedMessage, saying which part cannot be used."""
    return _read(_DECODERS[envelope], subject, headers, body)[0]


def read_request(subject: str, headers: Mapping[str, str], body: bytes) -> Incoming:
    """Read a request that `handler_request` has made. Raises MalformedMessage."""
    return _read(lambda _subject, _headers, content: read_object(content), subject, headers, body)[0]


def _read(
    decoder: _Decoder, subject: str, headers: Mapping[str, str], body: bytes
) -> tuple[Incoming, dict[str, Any]]:
    """The event, and the content of the body."""
    msg_id = headers.get(MSG_ID)
    if msg_id is None:
        raise MalformedMessage("the message has no id", field=MSG_ID)
    identity = NatsMsgId.parse(msg_id)
    content = read_json(body)
    try:
        fields = decoder(subject, headers, content)
        event = Incoming(
            message_id=identity.event_id,
            generation=identity.generation,
            event_type=check_token(fields["event_type"], "event_type"),
            event_version=check_version(fields["event_version"]),
            occurred_at=read_time(fields.get("occurred_at")),
            correlation_id=read_uuid(fields.get("correlation_id"), "correlation_id"),
            causation_id=read_uuid(fields.get("causation_id"), "causation_id"),
            partition_key=partition_key(headers),
            payload=fields["payload"],
        )
    except KeyError as missing:
        raise MalformedMessage("is missing from the message", field=str(missing.args[0])) from None
    except InvalidSubject as error:
        # Its message shows the value, which is the sender's.
        raise MalformedMessage("is not what can stand in a subject", field=error.field) from None
    return event, content


def handler_request(
    envelope: str, subject: str, headers: Mapping[str, str], body: bytes, stored_at: datetime | None = None
) -> bytes:
    """The request of the handler contract (SDS-047 §12), whole: ``stored_at`` stands in for a time of its own.

    A ``handler`` body that says everything is passed on as it is. Raises MalformedMessage.
    """
    event, content = _read(_DECODERS[envelope], subject, headers, body)
    known = {
        "message_id": str(event.message_id),
        "subject": subject,
        "event_type": event.event_type,
        "event_version": event.event_version,
        "occurred_at": _utc(event.occurred_at or stored_at),
        "correlation_id": event.correlation_id and str(event.correlation_id),
        "causation_id": event.causation_id and str(event.causation_id),
    }
    if envelope != DEFAULT_ENVELOPE:
        return json.dumps({**known, "payload": event.payload}).encode()
    if content.get("occurred_at") is not None:
        known["occurred_at"] = content["occurred_at"]
    if known.items() <= content.items() and json.detect_encoding(body) == "utf-8":
        return body
    return json.dumps({**content, **known}).encode()


def _utc(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _decode_handler(subject: str, headers: Mapping[str, str], body: Any) -> Mapping[str, Any]:
    return agreed(subject, headers, headers[MSG_ID], read_object(body))


def _decode_message_envelope(_subject: str, headers: Mapping[str, str], body: Any) -> dict[str, Any]:
    fields = read_object(body)
    if fields.get("schema_version") != SCHEMA_VERSION:
        raise MalformedMessage(f"is not the one that is supported, {SCHEMA_VERSION}", field="schema_version")
    return {
        "event_type": fields["message_type"],
        "event_version": read_version(headers.get(EVENT_VERSION, "1")),
        "occurred_at": fields["timestamp"],
        "correlation_id": fields.get("correlation_id"),
        "causation_id": fields.get("causation_id"),
        "payload": fields["payload"],
    }


def _decode_cloudevents(_subject: str, headers: Mapping[str, str], body: Any) -> dict[str, Any]:
    lower = {name.lower(): value for name, value in headers.items()}
    if lower.get("ce-specversion") != "1.0":
        raise MalformedMessage("CloudEvents 1.0 is the only version supported", field="ce-specversion")
    return {
        "event_type": lower["ce-type"],
        "event_version": read_version(lower.get("ce-eventversion", "1")),
        "occurred_at": lower.get("ce-time"),
        "correlation_id": lower.get("ce-correlationid"),
        "causation_id": lower.get("ce-causationid"),
        "payload": body,
    }


def _decode_raw(subject: str, headers: Mapping[str, str], body: Any) -> dict[str, Any]:
    name, version = headers.get(EVENT_TYPE), headers.get(EVENT_VERSION)
    if name is None:
        parsed = EventSubject.parse(subject)
        name, version = parsed.name, str(parsed.version)
    return {
        "event_type": name,
        "event_version": read_version(version or "1"),
        "occurred_at": headers.get(OCCURRED_AT),
        "correlation_id": headers.get(CORRELATION),
        "causation_id": headers.get(CAUSATION),
        "payload": body,
    }


_DECODERS: Final[dict[str, _Decoder]] = {
    "handler": _decode_handler,
    "message-envelope": _decode_message_envelope,
    "cloudevents": _decode_cloudevents,
    "raw": _decode_raw,
}
