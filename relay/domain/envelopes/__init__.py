"""Encodes and decodes events for the wire. Each envelope that a context may choose is a module.

Encoding adds text around the stored payload and never parses it. Every value that is inserted into
JSON comes from a checked alphabet (tokens, UUIDs, timestamps) or goes through ``json.dumps``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from relay.domain.envelopes.cloudevents import CLOUDEVENTS
from relay.domain.envelopes.event import MSG_ID, Decoder, Envelope, Incoming, Outgoing
from relay.domain.envelopes.handler import HANDLER
from relay.domain.envelopes.message_envelope import MESSAGE_ENVELOPE
from relay.domain.envelopes.raw import RAW
from relay.domain.errors import InvalidSubject, MalformedMessage
from relay.domain.identity import NatsMsgId, read_optional_id
from relay.domain.ordering import KEY, partition_key
from relay.domain.reading import read_json, read_object, read_time
from relay.domain.subject import check_token, check_version

__all__ = [
    "DEFAULT_ENVELOPE",
    "ENVELOPES",
    "MSG_ID",
    "Incoming",
    "Outgoing",
    "decode",
    "encode",
    "handler_request",
    "read_request",
]

DEFAULT_ENVELOPE: Final = "handler"
#: The envelopes by their names in the settings.
ENVELOPES: Final[Mapping[str, Envelope]] = {
    DEFAULT_ENVELOPE: HANDLER,
    "message-envelope": MESSAGE_ENVELOPE,
    "cloudevents": CLOUDEVENTS,
    "raw": RAW,
}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.\-/:@!$&'()*+,;=~]*")  # a key that needs no quoting


def encode(envelope: str, event: Outgoing, generation: int = 0) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an event. A caller cannot set our headers, even those without a value."""
    body, own = ENVELOPES[envelope].encode(event)
    own[MSG_ID] = event.id if generation == 0 else f"{event.id}.{generation}"
    key = event.partition_key
    own[KEY] = (key if _PLAIN.fullmatch(key) else quote(key, safe="/:@!$&'()*+,;=~")) or None
    headers = {name: value for name, value in own.items() if value is not None}
    if event.headers:
        taken = {name.lower() for name in own}
        headers = {name: value for name, value in event.headers.items() if name.lower() not in taken} | headers
    return body.encode(), headers


def decode(envelope: str, subject: str, headers: Mapping[str, str], body: bytes) -> Incoming:
    """Read a received message. Raises MalformedMessage, naming the part that cannot be used."""
    return _read(ENVELOPES[envelope].decode, subject, headers, body)[0]


def read_request(subject: str, headers: Mapping[str, str], body: bytes) -> Incoming:
    """Read a request that `handler_request` made. Raises MalformedMessage."""
    return _read(lambda _subject, _headers, content: read_object(content), subject, headers, body)[0]


def _read(
    decoder: Decoder, subject: str, headers: Mapping[str, str], body: bytes
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
            correlation_id=read_optional_id(fields.get("correlation_id"), "correlation_id"),
            causation_id=read_optional_id(fields.get("causation_id"), "causation_id"),
            partition_key=partition_key(headers),
            payload=fields["payload"],
        )
    except KeyError as missing:
        raise MalformedMessage("is missing from the message", field=str(missing.args[0])) from None
    except InvalidSubject as error:
        # The error's message shows the sender's value, so do not repeat it.
        raise MalformedMessage("is not what can stand in a subject", field=error.field) from None
    return event, content


def handler_request(
    envelope: str, subject: str, headers: Mapping[str, str], body: bytes, stored_at: datetime | None = None
) -> bytes:
    """The complete request of the handler contract (SDS-047 §12).

    ``stored_at`` is used if the event has no time of its own. A complete ``handler`` body is passed on unchanged.
    Raises MalformedMessage.
    """
    event, content = _read(ENVELOPES[envelope].decode, subject, headers, body)
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
