"""Encodes and decodes events for the wire. Each envelope that a context may choose is a module.

An application's own envelope is an `Envelope` too, see `relay.domain.envelopes.own`. Functions here take an
envelope or the name of one of ours.

Encoding adds text around the stored payload and never parses it. Every value that is inserted into
JSON comes from a checked alphabet (tokens, timestamps) or goes through `relay.domain.envelopes.event.json_text`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from relay.domain.actor import ACTOR_ID, ACTOR_KIND, Actor, actor_of, read_actor
from relay.domain.envelopes.cloudevents import CLOUDEVENTS
from relay.domain.envelopes.event import Envelope, Incoming, Outgoing, Own, by_version
from relay.domain.envelopes.handler import HANDLER
from relay.domain.envelopes.letter import DEAD_LETTER, LETTER
from relay.domain.envelopes.message_envelope import MESSAGE_ENVELOPE
from relay.domain.envelopes.raw import RAW
from relay.domain.errors import InvalidActor, InvalidSubject, MalformedMessage
from relay.domain.identity import (
    CAUSATION_ID,
    CORRELATION_ID,
    EVENT_ID,
    GENERATION,
    MSG_ID,
    Identity,
    NatsMsgId,
    generated,
    originals_of,
    read_id,
)
from relay.domain.ordering import KEY, partition_key
from relay.domain.quoting import quoted
from relay.domain.reading import read_object, read_time
from relay.domain.subject import check_type, check_version
from relay.domain.traceparent import TRACEPARENT, Trace, find

__all__ = [
    "ENVELOPES",
    "LETTER",
    "MSG_ID",
    "Envelope",
    "Incoming",
    "Outgoing",
    "Own",
    "Request",
    "by_version",
    "decode",
    "encode",
    "handler_request",
    "headers_of",
    "read_request",
]

#: The envelopes by their names in the settings.
ENVELOPES: Final[Mapping[str, Envelope]] = {
    "handler": HANDLER,
    "message-envelope": MESSAGE_ENVELOPE,
    "cloudevents": CLOUDEVENTS,
    "raw": RAW,
}
#: The fields of a request that describe its event.
_CONTRACT: Final = (
    "message_id",
    "event_type",
    "event_version",
    "occurred_at",
    CORRELATION_ID,
    CAUSATION_ID,
    "payload",
)
#: The fields of an event that are ids.
_IDS: Final = ("message_id", "idempotency_key", CORRELATION_ID, CAUSATION_ID)
#: Our headers that most messages do not have.
_OURS: Final = frozenset({EVENT_ID.lower(), GENERATION.lower()})


def _contract(_subject: str, _headers: Mapping[str, str], body: Any) -> Mapping[str, Any]:
    fields = read_object(body)
    return {name: fields[name] for name in _CONTRACT if name in fields}


#: Reads a request of the handler contract: only its body.
_REQUEST: Final = Envelope(HANDLER.encode, _contract)


def encode(envelope: Envelope | str, event: Outgoing, generation: int = 0) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an event. A caller cannot set our headers, even those without a value."""
    body, own = _of(envelope).encode(event)
    id = event.id
    sent = own.get(MSG_ID) or id
    own[MSG_ID] = generated(sent, generation)
    own[KEY] = quoted(event.partition_key) or None
    if event.row_id or sent != id:
        own[EVENT_ID] = event.row_id or id
        own[GENERATION] = str(generation) if generation else None
    headers: dict[str, Any] = own
    if None in own.values():
        headers = {name: value for name, value in own.items() if value is not None}
    if event.headers:
        taken = {*_OURS, *(name.lower() for name in own)}
        headers = {name: value for name, value in event.headers.items() if name.lower() not in taken} | headers
    return body if isinstance(body, bytes) else body.encode(), headers


def decode(envelope: Envelope | str, subject: str, headers: Mapping[str, str], body: bytes) -> Incoming:
    """Read a received message. Raises MalformedMessage, naming the part that cannot be used."""
    return _read(_reader(envelope, headers, body), subject, headers, body)[0]


def headers_of(event: Incoming, headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a message, with the partition key and the trace, wherever its envelope has them."""
    more = {}
    if event.partition_key and KEY not in headers:
        more[KEY] = quoted(event.partition_key)
    if event.traceparent and Trace.parse(find(headers)) is None:
        more[TRACEPARENT] = event.traceparent
    return {**headers, **more} if more else headers


def read_request(subject: str, headers: Mapping[str, str], body: bytes) -> Incoming:
    """Read a request that `handler_request` made. Raises MalformedMessage.

    The headers say nothing about the actor here, because its envelope may have named another one.
    """
    if ACTOR_ID in headers or ACTOR_KIND in headers:
        headers = {name: value for name, value in headers.items() if name not in (ACTOR_ID, ACTOR_KIND)}
    return _read(_REQUEST, subject, headers, body)[0]


def _of(envelope: Envelope | str) -> Envelope:
    return ENVELOPES[envelope] if isinstance(envelope, str) else envelope


def _reader(envelope: Envelope | str, headers: Mapping[str, str], body: bytes) -> Envelope:
    """The envelope that a message has: that of its subscription, unless it is a letter. ``raw`` reads any JSON."""
    form = _of(envelope)
    is_letter = LETTER in headers and form is not RAW and b'"original_subject"' in body
    return DEAD_LETTER if is_letter else form


def _read(envelope: Envelope, subject: str, headers: Mapping[str, str], body: bytes) -> tuple[Incoming, Any]:
    """The event, and the content of the body."""
    sent = NatsMsgId.read(headers)
    content = envelope.parse(headers, body)
    try:
        fields = envelope.decode(subject, headers, content)
        event = _incoming(sent, fields, headers)
    except KeyError as missing:
        raise MalformedMessage("is missing from the message", field=str(missing.args[0])) from None
    except InvalidSubject as error:
        # The error's message shows the sender's value, so do not repeat it.
        raise MalformedMessage("is not what can stand in a subject", field=error.field) from None
    return event, content


def _incoming(sent: NatsMsgId | None, fields: Mapping[str, Any], headers: Mapping[str, str]) -> Incoming:
    """The event. The key of copies is the envelope's own key, else the id in the headers, else in the body."""
    ids: dict[str, Identity] = {}
    for field in _IDS:
        if (value := fields.get(field)) is not None:
            ids[field] = read_id(value, field)
    named, correlation, causation = ids.get("message_id"), ids.get("correlation_id"), ids.get("causation_id")
    key = ids.get("idempotency_key", named if sent is None else sent.id)
    if key is None:
        raise MalformedMessage("the message has no id", field=MSG_ID)
    name = named or key
    return Incoming(
        message_id=key.uuid,
        generation=0 if sent is None else sent.generation,
        event_type=check_type(fields["event_type"]),
        event_version=check_version(fields["event_version"]),
        occurred_at=read_time(fields.get("occurred_at")),
        correlation_id=None if correlation is None else correlation.uuid,
        causation_id=None if causation is None else causation.uuid,
        partition_key=partition_key(headers, fields.get("partition_key")),
        payload=fields["payload"],
        idempotency_key=None if name is key or name.uuid == key.uuid else key.shown,
        originals=originals_of(name, key.uuid, correlation, causation),
        actor=_actor(fields, headers),
        traceparent=_trace(find(headers), fields.get("traceparent")),
    )


def _trace(*values: Any) -> str | None:
    """The first valid ``traceparent``, as a header can hold it."""
    for value in values:
        if value and (trace := Trace.parse(value)):
            return trace.value
    return None


def _actor(fields: Mapping[str, Any], headers: Mapping[str, str]) -> Actor | None:
    if "actor_id" in fields or "actor_kind" in fields:
        return read_actor(fields["actor_id"], fields["actor_kind"])
    try:
        return actor_of(headers)
    except InvalidActor as error:
        raise MalformedMessage(error.message, field=error.field) from None


class Request(NamedTuple):
    """A request of the handler contract: the event that it is about, and the JSON that a service gets."""

    event: Incoming
    body: bytes

    @property
    def message_id(self) -> str:
        """The id of the message as it is shown."""
        return self.event.shown_id

    @property
    def idempotency_key(self) -> str:
        """The text that is different for each message, and the same for its copies."""
        return self.event.idempotency_key or self.message_id


def handler_request(
    envelope: Envelope | str,
    subject: str,
    headers: Mapping[str, str],
    body: bytes,
    stored_at: datetime | None = None,
) -> Request:
    """The complete request of the handler contract.

    ``stored_at`` is used if the event has no time of its own. A complete ``handler`` body is passed on unchanged.
    Raises MalformedMessage.
    """
    form = _reader(envelope, headers, body)
    event, content = _read(form, subject, headers, body)
    ids = _ids(event)
    known = {
        "message_id": ids["message_id"],
        "subject": subject,
        "event_type": event.event_type,
        "event_version": event.event_version,
        "occurred_at": _utc(event.occurred_at or stored_at),
        **ids,
    }
    if form is not HANDLER:
        return Request(event, json.dumps({**known, "payload": event.payload}).encode())
    if content.get("occurred_at") is not None:
        known["occurred_at"] = content["occurred_at"]
    if known.items() <= content.items() and json.detect_encoding(body) == "utf-8":
        return Request(event, body)
    return Request(event, json.dumps({**content, **known}).encode())


def _ids(event: Incoming) -> dict[str, str | None]:
    """The ids as they are shown."""
    originals = event.originals
    return {
        "message_id": event.shown_id,
        "correlation_id": originals.get(CORRELATION_ID) or _text(event.correlation_id),
        "causation_id": originals.get(CAUSATION_ID) or _text(event.causation_id),
    }


def _text(id: UUID | None) -> str | None:
    return None if id is None else str(id)


def _utc(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
