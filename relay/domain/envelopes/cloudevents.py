"""``cloudevents``: CloudEvents 1.0 in binary mode, attributes as ``ce-`` headers, the payload unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from relay.domain.envelopes.event import Envelope, Outgoing, Own
from relay.domain.errors import MalformedMessage
from relay.domain.reading import read_version


def _encode(event: Outgoing) -> tuple[str, Own]:
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


def _decode(_subject: str, headers: Mapping[str, str], body: Any) -> dict[str, Any]:
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


CLOUDEVENTS: Final = Envelope(_encode, _decode)
