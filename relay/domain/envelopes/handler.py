"""``handler``: the body is the request of the handler contract, payload inside.

Handlers use the body; the relay uses subject and headers. All of them must describe the same event. A foreign
producer may leave a field out of the body, but the body must not contradict subject or headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Final
from urllib.parse import unquote

from relay.domain.envelopes.event import (
    CAUSATION,
    CORRELATION,
    EVENT_TYPE,
    EVENT_VERSION,
    OCCURRED_AT,
    Envelope,
    Outgoing,
    Own,
    type_headers,
)
from relay.domain.errors import MalformedMessage
from relay.domain.identity import MSG_ID, NatsMsgId, read_id
from relay.domain.reading import read_object, read_version
from relay.domain.subject import EventSubject

#: Headers that the body makes needless.
_SPOKEN: Final = (EVENT_TYPE, EVENT_VERSION, OCCURRED_AT, CORRELATION, CAUSATION)
#: Ids that headers may say, too.
_ID_HEADERS: Final = (("correlation_id", CORRELATION), ("causation_id", CAUSATION))
#: Fields that only other envelopes know. Here headers say these things.
_HEADERS: Final = frozenset({"idempotency_key", "actor_id", "actor_kind", "partition_key", "traceparent"})


def _encode(event: Outgoing) -> tuple[str, Own]:
    id, subject, name, version, at, correlation, causation, payload, headers = event[:9]
    body = (
        f'{{"message_id":{encode_basestring(id)},"subject":"{subject}","event_type":"{name}",'
        f'"event_version":{version},"occurred_at":"{at}",'
        f'"correlation_id":{"null" if correlation is None else encode_basestring(correlation)},'
        f'"causation_id":{"null" if causation is None else encode_basestring(causation)},"payload":{payload}}}'
    )
    # The body holds everything, so these headers have no value, and a caller cannot set them. If the subject does
    # not name the event (a topic, for example), the type headers confirm the type in the body.
    own: Own = dict.fromkeys(_SPOKEN) if headers else {}
    return body, own if subject.endswith(f".event.{name}.v{version}") else {**own, **type_headers(event)}


def _decode(subject: str, headers: Mapping[str, str], body: Any) -> Mapping[str, Any]:
    return _agreed(subject, headers, read_object(body))


def _agreed(subject: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a body of the handler contract. Missing and null fields are filled from the headers.

    Raises MalformedMessage, naming the field that contradicts a header or the subject.
    """
    fields = {
        name: value
        for name, value in body.items()
        if (value is not None or name == "payload") and name not in _HEADERS
    }
    _agree_on_id(fields.pop("message_id", None), headers)
    _agree("subject", fields.pop("subject", subject), subject, "the message came by another")
    for name, header in _ID_HEADERS:
        if header in headers:
            said = read_id(unquote(headers[header]), header)
            given = read_id(fields.setdefault(name, said.text), name)
            _agree(name, given.uuid, said.uuid, f"the header {header} differs")
    fields.setdefault("occurred_at", headers.get(OCCURRED_AT))
    _agree_on_type(fields, subject, headers)
    return fields


def _agree(field: str, value: object, other: object, else_: str) -> None:
    if value != other:
        raise MalformedMessage(f"contradicts what is known: {else_}", field=field)


def _agree_on_id(value: Any, headers: Mapping[str, str]) -> None:
    if value is not None and value != headers[MSG_ID] and (sent := NatsMsgId.read(headers)) is not None:
        given = read_id(value, "message_id").shown
        _agree("message_id", given, sent.id.shown, f"the header {MSG_ID} differs")


def _agree_on_type(fields: Mapping[str, Any], subject: str, headers: Mapping[str, str]) -> None:
    """Compare the type with the headers or, without them, with the subject. A topic does not name a type."""
    name, version, source = headers.get(EVENT_TYPE), headers.get(EVENT_VERSION), "headers"
    if name is None and (named := EventSubject.find(subject)) is not None:
        name, version, source = named.name, version or str(named.version), "subject"
    if name is not None and "event_type" in fields:
        _agree("event_type", fields["event_type"], name, f"the {source} names another")
    if version is not None and "event_version" in fields:
        _agree("event_version", fields["event_version"], read_version(version), f"the {source} names another")


HANDLER: Final = Envelope(_encode, _decode)
