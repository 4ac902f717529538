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
from relay.domain.reading import read_version
from relay.domain.subject import EventSubject


def _encode(event: Outgoing) -> tuple[str, Own]:
    return event.payload, {
        **type_headers(event),
        OCCURRED_AT: event.occurred_at,
        CORRELATION: event.correlation_id,
        CAUSATION: event.causation_id,
    }


def _decode(subject: str, headers: Mapping[str, str], body: Any) -> dict[str, Any]:
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


RAW: Final = Envelope(_encode, _decode)
