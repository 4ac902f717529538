"""Dead letters on the wire: their ids, how they are recognised, and what a received one says.

A letter announces a death. What the incident says comes from the inbox row, so nobody forges it by a letter.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID, uuid5

from relay.domain.disclosure import clean, safe_text
from relay.domain.envelopes import LETTER
from relay.domain.errors import MalformedMessage
from relay.domain.identity import (
    CAUSATION_ID,
    CORRELATION_ID,
    ID,
    Originals,
    originals_of,
    read_id,
    read_optional_id,
)
from relay.domain.policies import DeadLetterClass
from relay.domain.subject import is_letter_subject

#: The field of a letter that holds the key of the inbox, if this is not the message's id.
INBOX_ID: Final = "inbox_id"
#: The payload of EVT-047-002: whatever has these fields is a letter.
_SHAPE: Final = frozenset({"message_id", "original_subject", "reason", "attempts"})
#: Where an envelope holds its event.
_INSIDE: Final = ("payload", "data")
#: The fields that are the same whenever a letter is made again. Its place in the source stream may change.
_SAME: Final = (
    *("message_id", INBOX_ID, "occurrence", "original_subject", "reason", "class", "attempts", "subscription"),
    "original",
)
# This must never change: all versions and processes must find the same UUID.
_LETTERS: Final = UUID("0f9c1c6e-3b52-5d0b-8f0e-5d3f0c9a7e24")
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
#: How much of a letter that nothing confirms is kept. The stream holds all of it.
_KEPT_BYTES: Final = 256 * 1024


def letter_id(context: str, subscription: str, row: UUID, occurrence: int) -> UUID:
    """The id of a letter: always the same for one death, and never the id of a message."""
    return uuid5(_LETTERS, f"{context}/{subscription}/{row}/{occurrence}")


def another_id(id: UUID, seq: int) -> UUID:
    """The next id to try if the message at ``seq`` of the stream has this one and is not ours."""
    return uuid5(_LETTERS, f"{id}/{seq}")


def is_letter(subject: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a message is a dead letter: by its subject, its header or its shape, also inside an envelope.

    So it is recognised in a copy of its stream, and if a handler publishes it again.
    """
    if is_letter_subject(subject) or any(name.lower() == LETTER.lower() for name in headers):
        return True
    if b'"original_subject"' not in body:
        return False
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    return any(isinstance(it, dict) and it.keys() >= _SHAPE for it in (content, *map(content.get, _INSIDE)))


def is_same_letter(ours: bytes, stored: bytes) -> bool:
    """Whether a stored message is the letter that we have made again."""
    if ours == stored:
        return True
    try:
        one, other = json.loads(ours), json.loads(stored)
    except (ValueError, RecursionError):
        return False
    return isinstance(other, dict) and all(one.get(name) == other.get(name) for name in _SAME)


class Match(StrEnum):
    """What the inbox says about a letter. Only a ``dead`` row confirms it, or an incident that is ``known``."""

    KNOWN = "known"
    DEAD = "dead"
    UNKNOWN = "unknown"
    ELSEWHERE = "elsewhere"
    ALIVE = "alive"
    OTHER_DEATH = "other_death"
    UNREADABLE = "unreadable"


_WHY: Final = {
    Match.UNKNOWN: "the inbox has no such message",
    Match.ELSEWHERE: "the message belongs to another subscription",
    Match.ALIVE: "the message has not died",
    Match.OTHER_DEATH: "the message did not die so often",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as the DLQ stream holds it. ``message_id``, ``occurrence`` and ``subscription`` name a death.

    ``originals``: the texts of ids that are no UUIDs. ``original`` None: the original body did not fit into the
    letter; the inbox row still holds it. ``readable``: False if ``message_id`` only stands in for one.
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
    stored_at: datetime | None = None
    originals: Originals = field(default_factory=dict)
    readable: bool = True

    @property
    def key(self) -> tuple[UUID, int]:
        """What names its death in the inbox."""
        return self.message_id, self.occurrence

    def unconfirmed(self, match: Match) -> Letter:
        """The letter as an incident of its own, under a key that no message and no other letter has."""
        place = f"unconfirmed/{self.letter_stream}/{self.letter_seq}/{self.stored_at}"
        reason = self.reason
        if self.readable:
            reason = f"{_WHY[match]}; the letter says: {reason}"
        claimed = {ID: str(self.message_id), **self.originals} if self.readable else self.originals
        kept = self.original if self.original is None or len(self.original) <= _KEPT_BYTES else None
        return replace(
            self,
            message_id=uuid5(_LETTERS, place),
            occurrence=1,
            kind=DeadLetterClass.UNCONFIRMED,
            reason=clean(f"unconfirmed: {reason}"),
            originals=claimed,
            original=kept,
        )

    def bare(self) -> Letter:
        """The letter without the parts that PostgreSQL may have refused."""
        return replace(self, headers={}, original=None, subject="unknown", originals={})


def read_letter(subject: str, body: bytes, stream: str, seq: int, stored_at: datetime | None = None) -> Letter:
    """Read a dead letter. Never fails: an unreadable letter, from any sender, is an incident too."""
    place: dict[str, Any] = {"letter_stream": stream, "letter_seq": seq, "stored_at": stored_at}
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
            subject=_text(fields.get("original_subject")) or clean(subject),
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
            originals=originals_of(name, key.uuid, correlation, causation),
            **place,
        )
    except (MalformedMessage, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return Letter(
            message_id=uuid5(_LETTERS, f"unreadable/{stream}/{seq}"),
            subject=clean(subject),
            kind=DeadLetterClass.POISON,
            reason=clean(f"the dead letter itself cannot be read: {safe_text(error)}"),
            original=body,
            readable=False,
            **place,
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
