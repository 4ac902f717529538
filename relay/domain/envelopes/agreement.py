"""Compares a body of the handler contract with the subject and the headers of its message.

Handlers use the body; the relay uses subject and headers. All of them must describe the same event. A foreign
producer may leave a field out of the body, but the body must not contradict subject or headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.domain.envelopes.event import CAUSATION, CORRELATION, EVENT_TYPE, EVENT_VERSION, OCCURRED_AT
from relay.domain.errors import MalformedMessage
from relay.domain.identity import NatsMsgId, read_id, read_optional_id
from relay.domain.reading import read_version
from relay.domain.subject import EventSubject


def agreed(subject: str, headers: Mapping[str, str], msg_id: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a body of the handler contract. Missing and null fields are filled from the headers.

    ``msg_id``: the header ``Nats-Msg-Id``. Raises MalformedMessage, naming the field that contradicts this header,
    the subject or another header.
    """
    fields = {name: value for name, value in body.items() if value is not None or name == "payload"}
    _agree_on_id(fields.pop("message_id", None), msg_id)
    _agree("subject", fields.pop("subject", subject), subject, "the message came by another")
    for name, header in (("correlation_id", CORRELATION), ("causation_id", CAUSATION)):
        said = read_optional_id(headers.get(header), header)
        if said is not None:
            _agree(name, read_id(fields.setdefault(name, str(said)), name), said, f"the header {header} differs")
    fields.setdefault("occurred_at", headers.get(OCCURRED_AT))
    _agree_on_type(fields, subject, headers)
    return fields


def _agree(field: str, value: object, other: object, else_: str) -> None:
    if value != other:
        raise MalformedMessage(f"contradicts what is known: {else_}", field=field)


def _agree_on_id(value: Any, msg_id: str) -> None:
    if value is not None and value != msg_id:
        known = NatsMsgId.parse(msg_id).event_id
        _agree("message_id", read_id(value, "message_id"), known, f"the header Nats-Msg-Id says {known}")


def _agree_on_type(fields: Mapping[str, Any], subject: str, headers: Mapping[str, str]) -> None:
    """Compare the type with the headers or, without them, with the subject. A topic names no event."""
    name, version, source = headers.get(EVENT_TYPE), headers.get(EVENT_VERSION), "headers"
    if name is None and (named := EventSubject.find(subject)) is not None:
        name, version, source = named.name, version or str(named.version), "subject"
    if name is not None and "event_type" in fields:
        _agree("event_type", fields["event_type"], name, f"the {source} names another")
    if version is not None and "event_version" in fields:
        _agree("event_version", fields["event_version"], read_version(version), f"the {source} names another")
