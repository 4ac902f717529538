"""An event before encoding and after decoding, and the names of our headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

MSG_ID: Final = "Nats-Msg-Id"
EVENT_TYPE: Final = "Relay-Event-Type"
EVENT_VERSION: Final = "Relay-Event-Version"
OCCURRED_AT: Final = "Relay-Occurred-At"
CORRELATION: Final = "Relay-Correlation-Id"
CAUSATION: Final = "Relay-Causation-Id"


class Outgoing(NamedTuple):
    """The parts of an event that encoding needs. Ids and times are text, directly from the database."""

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


#: The headers that an envelope sets; None for a header without a value.
Own: TypeAlias = dict[str, str | None]
#: Returns the body of an event and its headers.
Encoder: TypeAlias = Callable[[Outgoing], tuple[str, Own]]
#: Finds the fields of an event in subject, headers and parsed body. Raises KeyError for a missing field.
Decoder: TypeAlias = Callable[[str, Mapping[str, str], Any], Mapping[str, Any]]


class Envelope(NamedTuple):
    """One wire form, to encode and to decode."""

    encode: Encoder
    decode: Decoder


def json_text(value: str | None) -> str:
    """A value of a checked alphabet as JSON."""
    return "null" if value is None else f'"{value}"'


def type_headers(event: Outgoing) -> Own:
    """The headers that name the event's type and version, if neither body nor subject does."""
    return {EVENT_TYPE: event.event_type, EVENT_VERSION: str(event.event_version)}
