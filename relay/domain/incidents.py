"""Incidents: dead letters as operators see them, and which of them may be requeued (DESIGN §7).

An incident records that a message became a dead letter. If a requeued message fails for good again, this is a new
incident of the same message, with the next ``occurrence``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final
from uuid import UUID

from relay.domain.disclosure import clean, safe_text
from relay.domain.errors import (
    IncidentClosed,
    MalformedMessage,
    NotRequeueable,
    RelayError,
    UnknownIncident,
    UnreadableMessage,
)
from relay.domain.identity import (
    CAUSATION_ID,
    CORRELATION_ID,
    Id,
    Originals,
    originals_of,
    read_id,
    read_optional_id,
    stand_in_id,
)
from relay.domain.policies import DeadLetterClass

#: The field of a letter that holds the key of the inbox, if this is not the message's id.
INBOX_ID: Final = "inbox_id"
_INT32, _INT64 = 2**31 - 1, 2**63 - 1


class IncidentStatus(Enum):
    """The state of an incident. It is ``open`` until an operator decides, and again after a time ``snoozed``."""

    OPEN = "open"
    SNOOZED = "snoozed"
    REQUEUED = "requeued"
    DISCARDED = "discarded"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as the DLQ stream holds it. ``message_id`` and ``occurrence`` identify it.

    ``originals``: the texts of ids that are no UUIDs. ``original`` None: the original body did not fit into the
    letter; the inbox row still holds it.
    """

    message_id: UUID
    occurrence: int = 1
    subscription: str | None = None
    subject: str
    stream: str | None = None
    stream_seq: int | None = None
    event_type: str | None = None
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    kind: DeadLetterClass
    reason: str
    attempts: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    original: bytes | None
    letter_stream: str
    letter_seq: int
    originals: Originals = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedIncident:
    """What an alert says about an incident: ids and reasons, no payload."""

    id: int
    message_id: Id
    subscription: str | None
    event_type: str | None
    correlation_id: Id | None
    causation_id: Id | None
    kind: str
    reason: str
    attempts: int
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    """Selects incidents. A field that is None or empty excludes nothing.

    ``reason``: a code of `relay.domain.reasons`, or a part of the text.
    """

    statuses: tuple[IncidentStatus, ...] = ()
    kinds: tuple[DeadLetterClass, ...] = ()
    subscription: str | None = None
    event_type: str | None = None
    reason: str | None = None
    since: datetime | None = None
    message_id: Id | None = None
    correlation_id: Id | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts that decide whether an action on an incident is allowed.

    ``waiting``: the message's inbox row is dead because of this incident, so it can be requeued.
    """

    status: IncidentStatus
    readable: bool
    waiting: bool


def requeue_refusal(candidate: Candidate) -> RelayError | None:
    """Why this incident's message must not be requeued; None if it may be.

    A discarded or resolved incident may be requeued: an operator may change an operator's decision.
    """
    if candidate.status is IncidentStatus.REQUEUED:
        return IncidentClosed("was requeued already", hint="if the message dies again, this is a new incident")
    if not candidate.readable:
        return UnreadableMessage(
            "the message could not be read, so no handler can be asked again",
            hint="have its producer send a valid one, then discard or resolve this incident",
        )
    if not candidate.waiting:
        return gone()
    return None


def gone() -> RelayError:
    """The refusal if the inbox row is not dead by this incident."""
    return NotRequeueable(
        "the inbox does not hold the message as dead",
        hint="its dead letter is being settled (try again in a moment), or the row was archived",
    )


def close_refusal(candidate: Candidate) -> RelayError | None:
    """Why this incident cannot be discarded, resolved or snoozed; None if it can."""
    if candidate.status in (IncidentStatus.OPEN, IncidentStatus.SNOOZED):
        return None
    return IncidentClosed(f"is not open but {candidate.status.value}")


def wake_refusal(candidate: Candidate) -> RelayError | None:
    """Why this incident cannot be woken; None if it is snoozed."""
    if candidate.status is IncidentStatus.SNOOZED:
        return None
    return IncidentClosed(f"is not snoozed but {candidate.status.value}")


def unknown(id: int) -> RelayError:
    """The error for an incident id that does not exist."""
    return UnknownIncident(f"there is no incident {id}", hint="relay dlq list")


@dataclass(frozen=True, slots=True)
class ParkedHead:
    """The facts that decide whether a parked key may be released. ``incident``: the head's, once recorded."""

    subscription: str
    key: str
    dead: bool
    readable: bool
    incident: int | None

    @property
    def name(self) -> str:
        """The name of the key in the audit log and in answers."""
        return f"{self.subscription}/{self.key}"


def release_refusal(head: ParkedHead) -> RelayError | None:
    """Why a key must stay parked; None if it may be released, as when its head is no longer dead."""
    if not head.dead:
        return None
    if not head.readable:
        return UnreadableMessage(
            "its head could not be read, so no handler can be asked again",
            hint="discard or resolve the head's incident (relay dlq list): the key then goes on without it",
        )
    return gone() if head.incident is None else None


# --- the letter on the wire -----------------------------------------------------------------------


def encode_original(body: bytes) -> dict[str, str]:
    """Encode the original's bytes for JSON without loss: as text, or as base64 if they are not text."""
    text, encoding = _encoded(body)
    return {"original": text, "original_encoding": encoding}


def show_original(body: bytes | None) -> dict[str, str | None]:
    """Encode the original as `encode_original` does, for operators, who know it as the payload."""
    text, encoding = (None, None) if body is None else _encoded(body)
    return {"payload": text, "payload_encoding": encoding}


def _encoded(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def read_letter(subject: str, body: bytes, stream: str, seq: int) -> Letter:
    """Read a dead letter. Never fails: an unreadable letter, from any sender, is an incident too."""
    try:
        fields = _fields(body)
        name = read_id(fields["message_id"], "message_id")
        key = read_id(fields.get(INBOX_ID, name.text), INBOX_ID)
        correlation = read_optional_id(fields.get(CORRELATION_ID), CORRELATION_ID)
        causation = read_optional_id(fields.get(CAUSATION_ID), CAUSATION_ID)
        return Letter(
            message_id=key.uuid,
            occurrence=_number(fields.get("occurrence", 1), "occurrence", _INT32) or 1,
            subscription=_text(fields.get("subscription")),
            subject=_text(fields.get("original_subject")) or subject,
            stream=_text(fields.get("stream")),
            stream_seq=_number(fields.get("stream_seq"), "stream_seq", _INT64),
            event_type=_text(fields.get("event_type")),
            correlation_id=None if correlation is None else correlation.uuid,
            causation_id=None if causation is None else causation.uuid,
            kind=DeadLetterClass(fields["class"]),
            reason=_text(fields["reason"]) or "no reason given",
            attempts=_number(fields.get("attempts"), "attempts", _INT32) or 0,
            headers=_headers(fields.get("headers")),
            original=_original(fields),
            letter_stream=stream,
            letter_seq=seq,
            originals=originals_of(name, key.uuid, correlation, causation),
        )
    except (MalformedMessage, KeyError, ValueError, TypeError, AttributeError) as error:
        return Letter(
            message_id=stand_in_id(stream, seq),
            subject=clean(subject),
            kind=DeadLetterClass.POISON,
            reason=clean(f"the dead letter itself cannot be read: {safe_text(error)}"),
            original=body,
            letter_stream=stream,
            letter_seq=seq,
        )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except RecursionError:
        raise MalformedMessage("nests too deep") from None
    if not isinstance(fields, dict):
        raise MalformedMessage("is not a JSON object")
    return fields


def _original(fields: Mapping[str, Any]) -> bytes | None:
    original = fields.get("original")
    if original is None:
        return None
    if fields.get("original_encoding") == "base64":
        return base64.b64decode(original, validate=True)
    return bytes(original.encode())


def _text(value: object) -> str | None:
    """Text of limited length that PostgreSQL can store and a terminal can show. Other values become JSON text."""
    if value is None:
        return None
    return clean(value if isinstance(value, str) else json.dumps(value))


def _number(value: object, name: str, limit: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise MalformedMessage(f"{name} is not a number in range")
    return value


def _headers(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {_text(name) or "": _text(item) or "" for name, item in value.items()}
