"""Incidents: dead letters as operators see them, and which of them may be requeued (DESIGN §7).

An incident is one death of one message. A requeued message that dies again is a new incident of the same message,
with the next ``occurrence``.
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

from relay.domain.disclosure import told
from relay.domain.errors import (
    IncidentClosed,
    MalformedMessage,
    NotRequeueable,
    RelayError,
    UnknownIncident,
    UnreadableMessage,
)
from relay.domain.identity import read_id, read_optional_id, stand_in_id
from relay.domain.policies import DeadLetterClass

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_REASON_LIMIT: Final = 2_000


class IncidentStatus(Enum):
    """The state of an incident. It is ``open`` until an operator decides."""

    OPEN = "open"
    REQUEUED = "requeued"
    DISCARDED = "discarded"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as the DLQ stream holds it. ``message_id`` and ``occurrence`` identify it.

    ``original`` None: the original body did not fit into the letter; the inbox row still holds it.
    """

    message_id: UUID
    occurrence: int
    subscription: str | None
    subject: str
    stream: str | None
    stream_seq: int | None
    event_type: str | None
    correlation_id: UUID | None
    causation_id: UUID | None
    kind: DeadLetterClass
    reason: str
    attempts: int
    headers: Mapping[str, str]
    original: bytes | None
    letter_stream: str
    letter_seq: int


@dataclass(frozen=True, slots=True)
class RecordedIncident:
    """What an alert says about an incident: ids and reasons, no payload."""

    id: int
    message_id: UUID
    subscription: str | None
    event_type: str | None
    correlation_id: UUID | None
    causation_id: UUID | None
    kind: str
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    """Selects incidents. A field that is None or empty excludes nothing. ``reason`` is a part of the text."""

    statuses: tuple[IncidentStatus, ...] = ()
    kinds: tuple[DeadLetterClass, ...] = ()
    subscription: str | None = None
    event_type: str | None = None
    reason: str | None = None
    since: datetime | None = None
    message_id: UUID | None = None
    correlation_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A recorded dead letter. ``handled_at``: when the message was processed after a requeue."""

    id: int
    message_id: UUID
    occurrence: int
    recorded_at: datetime
    subscription: str | None
    subject: str
    stream: str | None
    stream_seq: int | None
    event_type: str | None
    correlation_id: UUID | None
    causation_id: UUID | None
    kind: str
    reason: str
    attempts: int
    status: str
    closed_at: datetime | None
    closed_by: str | None
    note: str | None
    handled_at: datetime | None


@dataclass(frozen=True, slots=True)
class IncidentDetail:
    """All details of one incident. ``history``: what operators did to it, oldest first."""

    incident: Incident
    headers: Mapping[str, str]
    original: bytes | None
    history: tuple[Mapping[str, Any], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts that decide whether an action on an incident is allowed.

    ``waiting``: the message's inbox row is dead because of this incident, so it can be requeued.
    """

    id: int
    status: IncidentStatus
    readable: bool
    waiting: bool


def requeue_refusal(candidate: Candidate) -> RelayError | None:
    """Why this incident's message must not be requeued; None if it may be.

    A discarded or resolved incident may be requeued: an operator may change an operator's decision.
    """
    if candidate.status is IncidentStatus.REQUEUED:
        return IncidentClosed("was requeued already", hint="a message that dies again is a new incident")
    if not candidate.readable:
        return UnreadableMessage(
            "the message could not be read, so no handler can be asked again",
            hint="have its producer send a valid one, then discard or resolve this incident",
        )
    if not candidate.waiting:
        return gone()
    return None


def gone() -> RelayError:
    """Why a message cannot be requeued if its inbox row is not dead because of its incident."""
    return NotRequeueable(
        "the inbox does not hold the message as dead",
        hint="its dead letter is being settled (try again in a moment), or the row was archived",
    )


def close_refusal(candidate: Candidate) -> RelayError | None:
    """Why this incident cannot be discarded or resolved; None if it can."""
    if candidate.status is IncidentStatus.OPEN:
        return None
    return IncidentClosed(f"is not open but {candidate.status.value}")


def unknown(id: int) -> RelayError:
    """The error for an incident id that does not exist."""
    return UnknownIncident(f"there is no incident {id}", hint="relay dlq list")


# --- the letter on the wire -----------------------------------------------------------------------


def encode_original(body: bytes) -> dict[str, str]:
    """Encode the original's bytes for JSON without loss: as text, or as base64 if they are not text."""
    try:
        return {"original": body.decode(), "original_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"original": base64.b64encode(body).decode(), "original_encoding": "base64"}


def read_letter(subject: str, body: bytes, stream: str, seq: int) -> Letter:
    """Read a dead letter. Never fails: an unreadable letter, from any sender, is an incident too."""
    try:
        fields = _fields(body)
        return Letter(
            message_id=read_id(fields["message_id"], "message_id"),
            occurrence=_number(fields.get("occurrence", 1), "occurrence", _INT32) or 1,
            subscription=_text(fields.get("subscription")),
            subject=_text(fields.get("original_subject")) or subject,
            stream=_text(fields.get("stream")),
            stream_seq=_number(fields.get("stream_seq"), "stream_seq", _INT64),
            event_type=_text(fields.get("event_type")),
            correlation_id=read_optional_id(fields.get("correlation_id"), "correlation_id"),
            causation_id=read_optional_id(fields.get("causation_id"), "causation_id"),
            kind=DeadLetterClass(fields["class"]),
            reason=_text(fields["reason"]) or "no reason given",
            attempts=_number(fields.get("attempts"), "attempts", _INT32) or 0,
            headers=_headers(fields.get("headers")),
            original=_original(fields),
            letter_stream=stream,
            letter_seq=seq,
        )
    except (MalformedMessage, KeyError, ValueError, TypeError, AttributeError) as error:
        return _unreadable(told(error), subject, body, stream, seq)


def _unreadable(error: str, subject: str, body: bytes, stream: str, seq: int) -> Letter:
    return Letter(
        message_id=stand_in_id(stream, seq),
        occurrence=1,
        subscription=None,
        subject=_text(subject) or "",
        stream=None,
        stream_seq=None,
        event_type=None,
        correlation_id=None,
        causation_id=None,
        kind=DeadLetterClass.POISON,
        reason=_text(f"the dead letter itself cannot be read: {error}") or "",
        attempts=0,
        headers={},
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
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(char if char.isprintable() else " " for char in text[:_REASON_LIMIT])


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
