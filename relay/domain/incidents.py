"""Incidents: dead letters as operators see them, and which of them may be requeued (DESIGN §7).

An incident records that a message became a dead letter. If a requeued message fails for good again, this is a new
incident of the same message, with the next ``occurrence``.
"""

from __future__ import annotations

import base64
import codecs
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from relay.domain.errors import (
    IncidentClosed,
    NotReopenable,
    NotRequeueable,
    RelayError,
    UnknownIncident,
    UnreadableMessage,
)
from relay.domain.identity import (
    Id,
)
from relay.domain.operators import stale
from relay.domain.policies import DeadLetterClass

_UTF8: Final = codecs.getincrementaldecoder("utf-8")


class IncidentStatus(Enum):
    """The state of an incident. It is ``open`` until an operator decides, and again after a time ``snoozed``."""

    OPEN = "open"
    SNOOZED = "snoozed"
    REQUEUED = "requeued"
    DISCARDED = "discarded"
    RESOLVED = "resolved"


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

    ``reason``: a code of `relay.domain.reasons`, or a part of the text. ``confirmed``: without unconfirmed ones,
    which anybody who may write to the stream of dead letters makes, as many as he likes.
    """

    statuses: tuple[IncidentStatus, ...] = ()
    kinds: tuple[DeadLetterClass, ...] = ()
    subscription: str | None = None
    event_type: str | None = None
    partition_key: str | None = None
    reason: str | None = None
    since: datetime | None = None
    message_id: Id | None = None
    correlation_id: Id | None = None
    confirmed: bool = False

    @classmethod
    def usual(cls, **fields: Any) -> IncidentFilter:
        """What an operator means: unconfirmed ones only if their class, a message or a correlation is named."""
        found = cls(**fields)
        asked = found.reason == DeadLetterClass.UNCONFIRMED.value
        named = asked or found.kinds or found.message_id or found.correlation_id
        return replace(found, confirmed=not named)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts that decide whether an action on an incident is allowed.

    ``waiting``: the message's inbox row is dead because of this incident, so it can be requeued. ``confirmed``:
    the incident is that of an inbox row.
    """

    status: IncidentStatus
    readable: bool
    waiting: bool
    confirmed: bool = True
    stale: bool = False


def requeue_refusal(candidate: Candidate) -> RelayError | None:
    """Why this incident's message must not be requeued; None if it may be.

    A discarded or resolved incident may be requeued: an operator may change an operator's decision.
    """
    if candidate.status is IncidentStatus.REQUEUED:
        return IncidentClosed("was requeued already", hint="if the message dies again, this is a new incident")
    if not candidate.confirmed:
        return NotRequeueable(
            "no message of the inbox died so: anybody may have sent this letter",
            hint="find out who sent it, then discard or resolve this incident",
        )
    if not candidate.readable:
        return UnreadableMessage(
            "the message could not be read, so no handler can be asked again",
            hint="have its producer send a valid one, then discard or resolve this incident",
        )
    if not candidate.waiting:
        return gone()
    return stale() if candidate.stale else None


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


def reopen_refusal(candidate: Candidate) -> RelayError | None:
    """Why this incident cannot be opened again; None if it was discarded or resolved."""
    if candidate.status in (IncidentStatus.DISCARDED, IncidentStatus.RESOLVED):
        return None
    if candidate.status is IncidentStatus.REQUEUED:
        return NotReopenable(
            "was requeued: its handler may have run", hint="if it dies again, that is a new incident"
        )
    return NotReopenable(f"is {candidate.status.value}")


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


# --- the original ---------------------------------------------------------------------------------


def encode_original(body: bytes) -> dict[str, str]:
    """Encode the original's bytes for JSON without loss: as text, or as base64 if they are not text."""
    text, encoding = _encoded(body)
    return {"original": text, "original_encoding": encoding}


def show_original(body: bytes | None, *, cut: bool = False) -> dict[str, str | None]:
    """Encode the original as `encode_original` does, for operators, who know it as the payload.

    ``cut``: it is only the beginning, and may end within a character.
    """
    text, encoding = (None, None) if body is None else _encoded(body, cut=cut)
    return {"payload": text, "payload_encoding": encoding}


def _encoded(body: bytes, *, cut: bool = False) -> tuple[str, str]:
    try:
        return _UTF8().decode(body, not cut), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
