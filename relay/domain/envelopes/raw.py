"""``raw``: the payload unchanged, the attributes as ``Relay-`` headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
from relay.domain.quoting import header_text, read_header_text
from relay.domain.reading import read_version
from relay.domain.subject import EventSubject, topic_name


def _encode(event: Outgoing) -> tuple[str, Own]:
    return event.payload, {
        **type_headers(event),
        OCCURRED_AT: event.occurred_at,
        CORRELATION: header_text(event.correlation_id),
        CAUSATION: header_text(event.causation_id),
    }


def _decode(subject: str, headers: Mapping[str, str], body: Any) -> dict[str, Any]:
    name, version = headers.get(EVENT_TYPE), headers.get(EVENT_VERSION)
    if name is None:
        named = EventSubject.find(subject)
        name, version = (topic_name(subject), version) if named is None else (named.name, str(named.version))
    return {
        "event_type": name,
        "event_version": read_version(version or "1"),
        "occurred_at": headers.get(OCCURRED_AT),
        "correlation_id": read_header_text(headers.get(CORRELATION)),
        "causation_id": read_header_text(headers.get(CAUSATION)),
        "payload": body,
    }


RAW: Final = Envelope(_encode, _decode)
