"""An event before encoding and after decoding, and the names of our headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from relay.domain.actor import Actor
from relay.domain.errors import MalformedMessage
from relay.domain.identity import ID, NO_ORIGINALS, Originals
from relay.domain.reading import read_json, read_object

EVENT_TYPE: Final = "Relay-Event-Type"
EVENT_VERSION: Final = "Relay-Event-Version"
OCCURRED_AT: Final = "Relay-Occurred-At"
CORRELATION: Final = "Relay-Correlation-Id"
CAUSATION: Final = "Relay-Causation-Id"


class Outgoing(NamedTuple):
    """The parts of an event that encoding needs. Ids and times are text, directly from the database.

    Ids are as they are sent. ``row_id``: the id of the row in the outbox, if it is not ``id``. ``system_actor``:
    who acts, in envelopes that need somebody, if the headers name nobody. ``sequence``: larger for later events of
    a key; 0 if unknown.
    """

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
    row_id: str = ""
    system_actor: str = "system"
    sequence: int = 0


class Incoming(NamedTuple):
    """A received event, read from its envelope. ``payload`` is parsed JSON.

    ``message_id`` is the key of the inbox. ``originals`` has the texts of ids that are no UUIDs, and the ``id``
    also if the message has another name than its key. ``idempotency_key``: the text that the key is made from, if
    it is not the id that is shown. ``actor``: None if unknown.
    """

    message_id: UUID
    generation: int
    event_type: str
    event_version: int
    occurred_at: datetime | None
    correlation_id: UUID | None
    causation_id: UUID | None
    partition_key: str | None
    payload: Any
    idempotency_key: str | None = None
    originals: Originals = NO_ORIGINALS
    actor: Actor | None = None
    traceparent: str | None = None

    @property
    def shown_id(self) -> str:
        """The id of the message as it is shown."""
        return self.originals.get(ID) or str(self.message_id)


#: The headers that an envelope sets; None for a header without a value.
Own: TypeAlias = dict[str, str | None]
#: Returns the body of an event and its headers. If ``Nats-Msg-Id`` is among these, JetStream drops copies by it.
Encoder: TypeAlias = Callable[[Outgoing], tuple[str | bytes, Own]]
#: Finds the fields of an event in subject, headers and parsed body. Raises KeyError for a missing field. Some
#: envelopes also give ``message_id`` and ``idempotency_key``, ``actor_id`` and ``actor_kind``, ``partition_key``,
#: ``traceparent``.
Decoder: TypeAlias = Callable[[str, Mapping[str, str], Any], Mapping[str, Any]]
#: Parses a body, given the headers. Raises MalformedMessage.
Parser: TypeAlias = Callable[[Mapping[str, str], bytes], Any]


def _json(_headers: Mapping[str, str], body: bytes) -> Any:
    return read_json(body)


class Envelope(NamedTuple):
    """One wire form, to encode and to decode. ``parse``: reads the body before ``decode``; JSON by default."""

    encode: Encoder
    decode: Decoder
    parse: Parser = _json


def by_version(field: str, readers: Mapping[str, Decoder]) -> Decoder:
    """A decoder that chooses the reader of the version which a field of the body names.

    It refuses a body without the field, and a version without a reader.
    """

    def decode(subject: str, headers: Mapping[str, str], body: Any) -> Mapping[str, Any]:
        version = read_object(body).get(field)
        reader = readers.get(version) if isinstance(version, str) else None
        if reader is None:
            raise MalformedMessage(f"is not one that is supported: {', '.join(readers)}", field=field)
        return reader(subject, headers, body)

    return decode


def json_text(value: str | None) -> str:
    """A text as JSON."""
    return "null" if value is None else encode_basestring(value)


def type_headers(event: Outgoing) -> Own:
    """The headers that name the event's type and version, if neither body nor subject does."""
    return {EVENT_TYPE: event.event_type, EVENT_VERSION: str(event.event_version)}
