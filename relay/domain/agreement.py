"""What a body of the handler contract says, held against the subject and the headers it came with.

Whoever reads the body goes by it, and the relay goes by subject and headers: all of them must mean one event. A
foreign producer may leave out what the others say, and must not contradict them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from relay.domain.errors import MalformedMessage
from relay.domain.model import NatsMsgId
from relay.domain.reading import read_uuid, read_version
from relay.domain.subject import EventSubject

EVENT_TYPE: Final = "Relay-Event-Type"
EVENT_VERSION: Final = "Relay-Event-Version"
OCCURRED_AT: Final = "Relay-Occurred-At"
CORRELATION: Final = "Relay-Correlation-Id"
CAUSATION: Final = "Relay-Causation-Id"


def agreed(subject: str, headers: Mapping[str, str], msg_id: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a body of the handler contract, those it leaves out or leaves null as the headers say them.

    ``msg_id``: the header ``Nats-Msg-Id``. Raises MalformedMessage, naming the field that contradicts it, the
    subject or a header.
    """
    fields = {name: value for name, value in body.items() if value is not None or name == "payload"}
    _agree_on_id(fields.pop("message_id", None), msg_id)
    _agree("subject", fields.pop("subject", subject), subject, "the message came by another")
    for name, header in (("correlation_id", CORRELATION), ("causation_id", CAUSATION)):
        said = read_uuid(headers.get(header), header)
        if said is not None:
            _agree(name, read_uuid(fields.setdefault(name, str(said)), name), said, f"the header {header} differs")
    fields.setdefault("occurred_at", headers.get(OCCURRED_AT))
    _agree_on_type(fields, subject, headers)
    return fields


def _agree(field: str, value: object, other: object, else_: str) -> None:
    if value != other:
        raise MalformedMessage(f"contradicts what is known: {else_}", field=field)


def _agree_on_id(value: Any, msg_id: str) -> None:
    if value is not None and value != msg_id:
        known = NatsMsgId.parse(msg_id).event_id
        _agree("message_id", read_uuid(value, "message_id"), known, f"the header Nats-Msg-Id says {known}")


def _agree_on_type(fields: Mapping[str, Any], subject: str, headers: Mapping[str, str]) -> None:
    """Headers name an event whose subject does not, or names another: a topic."""
    name, version, source = headers.get(EVENT_TYPE), headers.get(EVENT_VERSION), "headers"
    if name is None and (named := EventSubject.find(subject)) is not None:
        name, version, source = named.name, version or str(named.version), "subject"
    if name is not None and "event_type" in fields:
        _agree("event_type", fields["event_type"], name, f"the {source} names another")
    if version is not None and "event_version" in fields:
        _agree("event_version", fields["event_version"], read_version(version), f"the {source} names another")
